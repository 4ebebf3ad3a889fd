"""Self-test of object storage: does a bucket give the guarantees that a store depends on? (`sawlog store test URL`)

A store is safe if the server creates an object only where none exists, however many clients ask at the same time, and
shows what was stored to every client at once. Some servers look like S3 and do not: two writers would both be told that
commit 42 is theirs. `run` tries it and returns the evidence; `check` does so with a few requests before a store is
created. Each trial is a function that returns the evidence for one guarantee, or raises `Broken` with it.

In a race, several threads or processes create the same object at the same time, and only one may win. Each racer stores
its own content, so that the object identifies the winner, even if the winner got no answer. A racing process is a
separate program (`main`). It reads on its standard input what to create and answers on its standard output, one line of
JSON each, and exits at the end of its input.

All objects are below `sawlog-selftest/` and a unique name, and are deleted afterwards, so a bucket in use can be
tested. A test finds faults and cannot prove their absence: a fault in one of a million requests may not show.
"""

from __future__ import annotations

import errno
import json
import random
import subprocess
import sys
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ....clock import Deadline, Stopwatch
from ....display import size_text
from ....errors import StorageError, UnsafeStorage
from .bucket import Bucket, Unanswered

T = TypeVar("T")

FOLDER = "sawlog-selftest/"


@dataclass(frozen=True, slots=True)
class Scale:
    """Size of a self-test."""

    threads: int = 8
    processes: int = 3
    #: Number of keys in each race, and the time after which a race ends early: SeaweedFS makes the losers wait for
    #: seconds.
    races: int = 40
    race_s: float = 20.0
    #: Number of objects that are written and then looked up, one after the other.
    rounds: int = 25
    #: More than the 1,000 keys of one page.
    listed: int = 1100
    large_bytes: int = 32 << 20


class Probe:
    """The bucket under test. Counts and times every request, and remembers stored objects for deletion.

    Writes are sent once; reads that fail in transit are retried.
    """

    def __init__(self, bucket: Bucket, scale: Scale) -> None:
        self.bucket, self.scale = bucket, scale
        self._once = Bucket(bucket.url, {**bucket.options, "max_retries": "0"}) if self.is_remote else bucket
        self.prefix = f"{FOLDER}{uuid.uuid4().hex}/"
        #: Durations of the requests made through this object.
        self.times_ms: list[float] = []
        #: Number of all other requests, which races make.
        self.others = 0
        self._keys: list[str] = []

    def key(self, name: str) -> str:
        """Return a key of this test, to be deleted at the end."""
        made = f"{self.prefix}{name}"
        self._keys.append(made)
        return made

    def keys(self, name: str, count: int) -> list[str]:
        """Return several keys, in order."""
        return [self.key(f"{name}/{number:06}") for number in range(count)]

    def again(self) -> Bucket:
        """Return the same bucket with its own connections."""
        return self.bucket.again()

    @property
    def requests(self) -> int:
        """Number of requests so far."""
        return len(self.times_ms) + self.others

    @property
    def is_remote(self) -> bool:
        """Whether requests go through a network."""
        return not self.bucket.url.startswith(("memory:", "file:"))

    def create(self, key: str, data: bytes) -> bool:
        return self._timed(lambda: self._once.create(key, data))

    def get_range(self, key: str, start: int, size_bytes: int) -> bytes:
        return self._timed(lambda: self.bucket.get_range(key, start, size_bytes))

    def put(self, key: str, data: bytes) -> None:
        self._timed(lambda: self._once.put(key, data))

    def get(self, key: str) -> bytes | None:
        return self._timed(lambda: self.bucket.get(key))

    def list_beside(self, key: str) -> list[str]:
        """Return the keys in the folder of a key."""
        return self.list(key.removeprefix(self.prefix).rpartition("/")[0] + "/")

    def list(self, folder: str, after: str = "") -> list[str]:
        """Return the keys below a folder."""
        return self._timed(lambda: [entry.key for entry in self.bucket.list(self.prefix + folder, after)])

    def delete(self, key: str) -> None:
        self._timed(lambda: self._once.delete(key))

    def _timed(self, request: Callable[[], T]) -> T:
        watch = Stopwatch()
        try:
            return request()
        finally:
            self.times_ms.append(watch.elapsed_ms)

    def clean_up(self) -> None:
        """Delete everything that may have been stored."""
        if self._keys:
            self.bucket.delete_many(self._keys)
        self._keys = []
        if self.bucket.url.startswith("file://"):
            self._remove_folders(Path(self.bucket.url.removeprefix("file://")))

    def _remove_folders(self, top: Path) -> None:
        """Remove the folders that deleted objects leave behind in a directory."""
        below = sorted((top / self.prefix).rglob("*"), reverse=True)
        for folder in [*below, top / self.prefix, top / FOLDER]:
            with suppress(OSError):  # another test is running there
                folder.rmdir()


_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.readline()); "
    "from sawlog.store.objects.bucket.selftest import main; main()"
)
_RACE_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """A create by one racer, and the server's answer. `created` is None if there was none."""

    key: str
    racer: str
    created: bool | None
    elapsed_ms: float

    @property
    def content(self) -> bytes:
        """The content that the racer tried to store."""
        return content_of(self.key, self.racer)


def content_of(key: str, racer: str) -> bytes:
    """Return the content that a racer stores under a key."""
    return f"{key} {racer}\n".encode()


def attempt(bucket: Bucket, key: str, racer: str) -> Attempt:
    """Create an object and report the outcome."""
    watch = Stopwatch()
    created: bool | None = None
    with suppress(Unanswered):
        created = bucket.create(key, content_of(key, racer))
    return Attempt(key, racer, created, watch.elapsed_ms)


def in_threads(bucket: Bucket, key: str, count: int) -> list[Attempt]:
    """Create the object in `count` threads at the same time."""
    start = threading.Barrier(count)

    def run(number: int) -> Attempt:
        start.wait()
        return attempt(bucket, key, f"thread-{number}")

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


# --- processes


class Racers:
    """Racing processes, for use as a context manager."""

    def __init__(self, bucket: Bucket, count: int) -> None:
        self._names = [f"process-{number}" for number in range(count)]
        self._running: list[subprocess.Popen[str]] = []
        self._bucket = bucket

    def __enter__(self) -> Racers:
        try:
            for name in self._names:
                self._start(name)
            for each in self._running:
                self._hear(each)  # it is ready
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, name: str) -> None:
        command, pipe = [sys.executable, "-c", _PROGRAM], subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        self._running.append(process)
        # On its input rather than its command line, which is visible to other users: options may be credentials.
        self._say(process, sys.path)
        self._say(process, {"url": self._bucket.url, "options": self._bucket.options, "racer": name})

    def __exit__(self, *_: object) -> None:
        for each in self._running:
            for stream in (each.stdin, each.stdout):
                with suppress(OSError):
                    assert stream is not None
                    stream.close()
        for each in self._running:
            try:
                each.wait(_RACE_PATIENCE_S)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()

    def race(self, key: str) -> list[Attempt]:
        """Create the object in all processes at the same time."""
        for each in self._running:
            self._say(each, key)
        return [Attempt(key, name, *self._hear(each)) for name, each in zip(self._names, self._running, strict=True)]

    @staticmethod
    def _say(process: subprocess.Popen[str], what: Any) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(what) + "\n")
        process.stdin.flush()

    @staticmethod
    def _hear(process: subprocess.Popen[str]) -> Any:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise StorageError(errno.ECHILD, f"a process of the race ended with code {process.wait(_RACE_PATIENCE_S)}")
        heard = json.loads(line)
        if isinstance(heard, str):
            raise StorageError(errno.EIO, heard)
        return heard


def main() -> None:
    """Run a racing process."""
    try:
        given = json.loads(sys.stdin.readline())
        bucket = Bucket(given["url"], given["options"])
        bucket.get(f"{FOLDER}none")  # connect before the first race
        _answer(True)
        for line in sys.stdin:
            made = attempt(bucket, json.loads(line), given["racer"])
            _answer([made.created, made.elapsed_ms])
    except StorageError as error:
        _answer(error.strerror or str(error))


def _answer(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


#: How long an abandoned request may be in flight: nothing may change afterwards.
_SETTLE_S = 1.0
#: Requests are abandoned after these fractions of a typical round trip.
_IMPATIENCE = (0.3, 0.6, 0.9, 1.2)
#: Number of unanswered writes that are tolerated in addition to one for each answered write, and for how long.
_UNANSWERED, _PATIENCE_S = 10, 30.0
_RANGED_BYTES = (1 << 20) + 1


class Broken(Exception):
    """A guarantee is broken; the message is the evidence."""


class NotHere(Exception):
    """The trial does not apply to this kind of storage; the message says why."""


def access(probe: Probe) -> str:
    """Everything that a store does is allowed and works."""

    def use(key: str) -> None:
        if not probe.create(key, b"sawlog\n"):
            raise Broken(f"creating {key}, which did not exist, was refused")
        if probe.get(key) != b"sawlog\n":
            raise Broken(f"{key} was created and cannot be read")
        if probe.list_beside(key) != [key]:
            raise Broken(f"{key} was created and is not in the listing")
        probe.delete(key)

    _rounds(probe, "access", 1, use)
    return "create, read, list and delete work"


def create_once(probe: Probe) -> str:
    """An object that exists is not created again."""

    def create_twice(key: str) -> None:
        first = probe.create(key, b"first\n")
        second = probe.create(key, b"second\n")
        found = probe.get(key)
        if not first or second or found != b"first\n":
            said = " and ".join("created" if each else "refused" for each in (first, second))
            raise Broken(f"two creates of one key were {said}; it contains {found!r}: preconditions are ignored")

    before, count = len(probe.times_ms), probe.scale.rounds
    _rounds(probe, "once", count, create_twice)
    return f"{count} of {count} second creates were refused; {latency(probe.times_ms[before:])}"


# --- races


def racing_threads(probe: Probe) -> str:
    """Of several threads that create the same object, one succeeds."""
    count = probe.scale.threads
    made = list(_raced(probe, "threads", lambda key: in_threads(probe.bucket, key, count)))
    return f"{count} threads, {_settled(probe, made)}"


def racing_processes(probe: Probe) -> str:
    """Of several processes that create the same object, each with its own connections, one succeeds."""
    if probe.bucket.url.startswith("memory:"):
        raise NotHere("memory belongs to one process")
    with Racers(probe.bucket, probe.scale.processes) as racers:
        made = list(_raced(probe, "processes", racers.race))
    return f"{probe.scale.processes} processes, {_settled(probe, made)}"


def _raced(probe: Probe, name: str, race: Callable[[str], list[T]]) -> Iterator[T]:
    """Yield the outcomes of races for one key after the other, until there were enough or the time is up."""
    watch = Stopwatch()
    for key in probe.keys(name, probe.scale.races):
        made = race(key)
        probe.others += len(made)
        yield from made
        if watch.elapsed_s > probe.scale.race_s:
            return


def _settled(probe: Probe, made: Iterable[Attempt]) -> str:
    """Check that every key has one winner and holds the winner's content."""
    of_key: dict[str, list[Attempt]] = defaultdict(list)
    for each in made:
        of_key[each.key].append(each)
    keys = list(of_key)
    double, wrong, refused, unclear = [], [], 0, 0
    for key in keys:
        winners = [each for each in of_key[key] if each.created]
        refused += sum(each.created is False for each in of_key[key])
        unclear += not winners
        double += [key] if len(winners) > 1 else []
        # Without a winner, the winner's answer was lost, and the content identifies it.
        found = probe.get(key)
        wrong += [key] if found not in [each.content for each in winners or of_key[key]] else []
    if double:
        shown = ", ".join(each.racer for each in of_key[double[0]] if each.created)
        raise Broken(
            f"{len(double)} of {len(keys)} keys were created more than once: {double[0]} by {shown}; "
            "two writers would both believe that a commit is theirs"
        )
    if wrong:
        raise Broken(
            f"{len(wrong)} of {len(keys)} keys do not contain what their winner stored, the first is {wrong[0]}"
        )
    lost = f", {unclear} known by their content only" if unclear else ""
    return f"{len(keys)} keys: {len(keys)} winners{lost}, {refused} refused"


@dataclass(frozen=True, slots=True)
class _Insisted:
    """The outcome of a create that may have been abandoned."""

    key: str
    content: bytes
    is_ours: bool
    was_given_up: bool


def ambiguous(probe: Probe) -> str:
    """An abandoned create was applied or not; reading back tells which, and that never changes."""
    if not probe.is_remote:
        raise NotHere("no network between, so no request is given up")
    usual_ms = median(probe.times_ms)
    hasty = [_impatient(probe.bucket, max(usual_ms * part, 1.0)) for part in _IMPATIENCE]

    def race(key: str) -> list[_Insisted]:
        return list(pool.map(lambda number: _insist(probe.bucket, hasty[number], key, number), range(len(hasty))))

    with ThreadPoolExecutor(len(hasty)) as pool:
        made = list(_raced(probe, "ambiguous", race))
    keys = list(dict.fromkeys(each.key for each in made))
    owners = {key: [each.content for each in made if each.key == key and each.is_ours] for key in keys}
    if bad := [key for key in keys if len(owners[key]) != 1]:
        raise Broken(f"{bad[0]} has {len(owners[bad[0]])} owners after creates that were given up and repeated")
    settling = Deadline(_SETTLE_S, first_pause_s=_SETTLE_S / 4, longest_pause_s=_SETTLE_S)
    while settling.retry():
        pass
    if changed := [key for key in keys if [probe.get(key)] != owners[key]]:
        raise Broken(f"{len(changed)} of {len(keys)} keys changed later: {changed[0]} was overwritten by a create")
    given_up = sum(each.was_given_up for each in made)
    return f"{given_up} of {len(made)} creates were given up and repeated: {len(keys)} keys have one owner each"


def _impatient(bucket: Bucket, timeout_ms: float) -> Bucket:
    """Return the same bucket with a short timeout and no retries."""
    return Bucket(bucket.url, {**bucket.options, "timeout": f"{round(timeout_ms)}ms", "max_retries": "0"})


def _insist(patient: Bucket, hasty: Bucket, key: str, number: int) -> _Insisted:
    """Create an object like a writer that gets no answer: retry, then read back whose it is."""
    data = content_of(key, f"writer-{number}")
    try:
        return _Insisted(key, data, is_ours=hasty.create(key, data), was_given_up=False)
    except Unanswered:
        is_ours = patient.create(key, data) or patient.get(key) == data
        return _Insisted(key, data, is_ours=is_ours, was_given_up=True)


# --- visibility


def read_after_write(probe: Probe) -> str:
    """Other clients read an object as soon as it is stored, even if they have just seen that it was missing."""
    reader = probe.again()

    def write(key: str) -> None:
        if reader.get(key) is not None:
            raise Broken(f"{key} was never created, and exists")
        for data, store in ((b"created\n", probe.create), (b"replaced\n", probe.put)):
            store(key, data)
            if (found := reader.get(key)) != data:
                raise Broken(f"{key}: {data!r} was stored, another client read {found!r} afterwards")

    _rounds(probe, "read", probe.scale.rounds, write)
    return f"{2 * probe.scale.rounds} of {2 * probe.scale.rounds} writes were read at once by another client"


def list_after_write(probe: Probe) -> str:
    """A listing has objects as soon as they are created, and no deleted ones."""

    def write(key: str) -> None:
        probe.create(key, b"listed\n")
        if (found := probe.list_beside(key)) != [key]:
            raise Broken(f"{key} was created, and a listing has {found}")
        probe.delete(key)
        if found := probe.list_beside(key):
            raise Broken(f"{key} was deleted, and a listing has {found}")

    _rounds(probe, "listed", probe.scale.rounds, write)
    return f"{2 * probe.scale.rounds} of {2 * probe.scale.rounds} listings were up to date"


def listing(probe: Probe) -> str:
    """A listing of several pages has every key once; a listing from an offset has the rest."""
    keys = probe.keys("pages", probe.scale.listed)
    _at_once(probe, lambda key: probe.bucket.create(key, b""), keys)
    probe.others += len(keys)
    found = probe.list("pages/")
    if found != keys:
        right = len(set(found) & set(keys))
        raise Broken(f"{len(keys)} keys were created; the listing has {len(found)}, of which {right} are right")
    for at in (0, len(keys) // 2, 998, 999, 1000, len(keys) - 2, len(keys) - 1):
        if 0 <= at < len(keys) and probe.list("pages/", keys[at]) != keys[at + 1 :]:
            raise Broken(f"the listing after key {at + 1} of {len(keys)} is not the rest")
    return f"{len(keys):,} keys, each listed once and in order, also from the middle on"


# --- bytes


def ranges(probe: Probe) -> str:
    """A range of an object holds the bytes stored there."""
    key, data = probe.key("ranges/object"), _random(_RANGED_BYTES)
    probe.put(key, data)
    wanted = [(0, 1), (0, 100), (1, 1), (65_535, 2), (100_000, 300_000), (len(data) - 1, 1), (1000, len(data) - 1000)]
    for start, size in wanted:
        if probe.get_range(key, start, size) != data[start : start + size]:
            raise Broken(f"{size} bytes from {start} on of {key} are not those that were stored there")
    return f"{len(wanted)} ranges of {size_text(len(data))} are right"


def large_object(probe: Probe) -> str:
    """A large object, uploaded in parts, comes back complete."""
    key, data = probe.key("large/object"), _random(probe.scale.large_bytes)
    watch = Stopwatch()
    probe.put(key, data)
    sent_s = watch.restart()
    found = probe.get(key)
    if found != data:
        raise Broken(f"{size_text(len(data))} were stored, {size_text(len(found or b''))} other bytes came back")
    speeds = [f"{size_text(len(data) / max(seconds, 1e-9))}/s" for seconds in (sent_s, watch.elapsed_s)]
    return f"{size_text(len(data))} came back; sent with {speeds[0]}, read with {speeds[1]}"


# --- helpers


def _rounds(probe: Probe, name: str, count: int, one: Callable[[str], None]) -> None:
    """Run `one` with `count` keys, one after the other.

    An unanswered write may be applied later, over newer content, which would look like a broken guarantee. So writes
    are not retried here, and a round with such a write does not count: another key replaces it.
    """
    patience = Deadline(_PATIENCE_S, first_pause_s=0.05, longest_pause_s=0.3)
    done = unanswered = 0
    while done < count:
        try:
            one(probe.key(f"{name}/{done + unanswered:06}/object"))
            done += 1
        except Unanswered:
            unanswered += 1
            if unanswered > count + _UNANSWERED or not patience.retry():
                raise


def _at_once(probe: Probe, each: Callable[[str], object], keys: Sequence[str]) -> None:
    """Call `each` for every key, several at a time."""
    with ThreadPoolExecutor(probe.scale.threads * 2) as pool:
        for _ in pool.map(each, keys):
            pass


def _random(size_bytes: int) -> bytes:
    """Return reproducible bytes that do not compress."""
    return random.Random(size_bytes).randbytes(size_bytes)


def median(times_ms: Sequence[float]) -> float:
    return sorted(times_ms)[len(times_ms) // 2] if times_ms else 0.0


def latency(times_ms: Sequence[float]) -> str:
    """Describe the duration of requests."""
    worst = sorted(times_ms)[min(len(times_ms) * 99 // 100, len(times_ms) - 1)]
    return f"a request took {median(times_ms):.1f} ms (median), {worst:.1f} ms (p99)"


__all__ = ["BRIEF", "BRIEF_SCALE", "TRIALS", "Finding", "Scale", "check", "refuse", "run"]

#: The guarantee holds, is broken, does not apply to this kind of storage, or is unknown because requests failed.
OK, BAD, SKIPPED, FAILED = "ok", "bad", "skipped", "failed"

#: The trials by name, in order. The first one tells whether there is anything to test.
TRIALS: dict[str, Callable[[Probe], str]] = {
    "access": access,
    "create once": create_once,
    "racing threads": racing_threads,
    "racing processes": racing_processes,
    "ambiguous time-outs": ambiguous,
    "read after write": read_after_write,
    "list after write": list_after_write,
    "listing": listing,
    "ranges": ranges,
    "large object": large_object,
}
#: About thirty requests: enough to catch a server that ignores preconditions.
BRIEF = ("access", "create once", "racing threads", "read after write", "list after write")
BRIEF_SCALE = Scale(threads=4, races=2, rounds=1)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one trial."""

    check: str
    state: str
    evidence: str
    requests: int
    elapsed_s: float


def run(
    bucket: Bucket,
    scale: Scale | None = None,
    *,
    names: Iterable[str] = tuple(TRIALS),
    on_found: Callable[[Finding], object] = lambda _: None,
) -> list[Finding]:
    """Run the trials. Raises `StorageError` if the bucket cannot be used at all."""
    probe = Probe(bucket, scale or Scale())
    found: list[Finding] = []
    try:
        for name in names:
            found.append(_tried(probe, name))
            on_found(found[-1])
    finally:
        left = _cleaned(probe)  # an exception takes precedence over what could not be deleted
    return [*found, *left]


def _cleaned(probe: Probe) -> list[Finding]:
    """Delete the stored objects; a failure to do so is a finding."""
    watch = Stopwatch()
    try:
        probe.clean_up()
    except StorageError as error:
        return [Finding("clean up", FAILED, f"{error.strerror}; delete {probe.prefix}", 0, watch.elapsed_s)]
    return []


def _tried(probe: Probe, name: str) -> Finding:
    watch, before = Stopwatch(), probe.requests
    try:
        state, evidence = OK, TRIALS[name](probe)
    except Broken as error:
        state, evidence = BAD, str(error)
    except NotHere as error:
        state, evidence = SKIPPED, str(error)
    except StorageError as error:
        if name == "access":
            raise
        state, evidence = FAILED, error.strerror or str(error)
    return Finding(name, state, evidence, probe.requests - before, watch.elapsed_s)


def check(bucket: Bucket) -> None:
    """Run the brief test of about thirty requests. Raises `UnsafeStorage` with the evidence if a guarantee is broken,
    and another `StorageError` if requests failed."""
    refuse(bucket, run(bucket, BRIEF_SCALE, names=BRIEF))


def refuse(bucket: Bucket, findings: Iterable[Finding]) -> None:
    """Raise `UnsafeStorage` if a guarantee is broken, another `StorageError` if that is unknown."""
    for each in sorted(findings, key=lambda each: each.state != BAD):
        if each.state == BAD:
            raise UnsafeStorage(
                errno.ENOTSUP,
                f"{bucket.url} is not safe for a store: {each.check}: {each.evidence}; use other storage, or a newer "
                "version of this server",
            )
        if each.state == FAILED:
            raise StorageError(errno.EIO, f"{bucket.url} could not be tested: {each.check}: {each.evidence}")
