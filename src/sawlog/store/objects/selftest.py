"""Self-test of object storage (`sawlog store test URL`): verify the guarantees that a store needs.

A store is safe if the server creates an object only where none exists, however many clients ask at the same time, and
shows what was stored to every client at once. Some servers look like S3 and do not: two writers would both be told that
commit 42 is theirs. `run` tries it and returns the evidence; `check` does so with a few requests before a store is
created. Each trial is a function that returns the evidence for one guarantee, or raises `Broken` with it.

All objects are below `sawlog-selftest/` and a unique name, and are deleted afterwards, so a bucket in use can be
tested. A test finds faults and cannot prove their absence: a fault in one of a million requests may not show.
"""

from __future__ import annotations

import errno
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...clock import Deadline, Stopwatch
from ...display import size_text
from ...errors import StorageError, UnsafeStorage
from .bucket import Bucket, Unanswered

FOLDER = "sawlog-selftest/"
#: The guarantee holds, is broken, does not apply to this kind of storage, or is unknown because requests failed.
OK, BAD, SKIPPED, FAILED = "ok", "bad", "skipped", "failed"
#: Requests are abandoned after these fractions of a typical round trip, and may be in flight for this long.
_IMPATIENCE, _SETTLE_S = (0.3, 0.6, 0.9, 1.2), 1.0
#: Number of unanswered writes that are tolerated in addition to one for each answered write, and for how long.
_UNANSWERED, _PATIENCE_S = 10, 30.0
_RANGED_BYTES = (1 << 20) + 1


@dataclass(frozen=True, slots=True)
class Scale:
    """Size of a self-test."""

    threads: int = 8
    #: Number of keys in each race, and the time after which a race ends early: SeaweedFS makes the losers wait for
    #: seconds.
    races: int = 40
    race_s: float = 20.0
    #: Number of objects that are written and then looked up, one after the other.
    rounds: int = 25
    #: More than the 1,000 keys of one page.
    listed: int = 1100
    large_bytes: int = 32 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one trial."""

    check: str
    state: str
    evidence: str
    requests: int
    elapsed_s: float


class Broken(Exception):
    """A guarantee is broken; the message is the evidence."""

    state = BAD


class NotHere(Broken):
    """The trial does not apply to this kind of storage; the message says why."""

    state = SKIPPED


class Probe:
    """The bucket under test. Counts and times every request, and remembers stored objects for deletion.

    Writes are sent once; reads that fail in transit are retried.
    """

    def __init__(self, bucket: Bucket, scale: Scale) -> None:
        self.bucket, self.scale = bucket, scale
        self.is_remote = not bucket.url.startswith(("memory:", "file:"))
        once = Bucket(bucket.url, {**bucket.options, "max_retries": "0"}) if self.is_remote else bucket
        self.prefix = f"{FOLDER}{uuid.uuid4().hex}/"
        #: Durations of the requests made through this object.
        self.times_ms: list[float] = []
        #: Number of all other requests, which races make.
        self.others = 0
        self._keys: list[str] = []
        timed = self._timed
        self.create, self.put, self.delete = timed(once.create), timed(once.put), timed(once.delete)
        self.get, self.get_range = timed(bucket.get), timed(bucket.get_range)
        self._list = timed(lambda folder, after: [entry.key for entry in bucket.list(folder, after)])

    def _timed(self, request: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            watch = Stopwatch()
            try:
                return request(*arguments)
            finally:
                self.times_ms.append(watch.elapsed_ms)

        return timed

    @property
    def requests(self) -> int:
        return len(self.times_ms) + self.others

    def key(self, name: str) -> str:
        """Return a key of this test, to be deleted at the end."""
        self._keys.append(f"{self.prefix}{name}")
        return self._keys[-1]

    def list(self, beside: str, after: str = "") -> list[str]:
        """Return the keys in the folder of a key."""
        found: list[str] = self._list(beside.rpartition("/")[0] + "/", after)
        return found

    def clean_up(self) -> None:
        """Delete everything that may have been stored, and the folders that this leaves in a directory."""
        if self._keys:
            self.bucket.delete_many(self._keys)
        self._keys = []
        if self.bucket.url.startswith("file://"):
            top = Path(self.bucket.url.removeprefix("file://"))
            for folder in [*sorted((top / self.prefix).rglob("*"), reverse=True), top / self.prefix, top / FOLDER]:
                with suppress(OSError):  # another test is running there
                    folder.rmdir()


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


# --- one client


def access(probe: Probe) -> str:
    """Everything that a store does is allowed and works."""

    def use(key: str) -> None:
        if not probe.create(key, b"sawlog\n"):
            raise Broken(f"creating {key}, which did not exist, was refused")
        if probe.get(key) != b"sawlog\n":
            raise Broken(f"{key} was created and cannot be read")
        if probe.list(key) != [key]:
            raise Broken(f"{key} was created and is not in the listing")
        probe.delete(key)

    _rounds(probe, "access", 1, use)
    return "create, read, list and delete work"


def create_once(probe: Probe) -> str:
    """An object that exists is not created again."""

    def create_twice(key: str) -> None:
        first, second = probe.create(key, b"first\n"), probe.create(key, b"second\n")
        found = probe.get(key)
        if not first or second or found != b"first\n":
            said = " and ".join("created" if each else "refused" for each in (first, second))
            raise Broken(f"two creates of one key were {said}; it contains {found!r}: preconditions are ignored")

    before, count = len(probe.times_ms), probe.scale.rounds
    _rounds(probe, "once", count, create_twice)
    times_ms = sorted(probe.times_ms[before:])
    middle, worst = (times_ms[len(times_ms) * part // 100] for part in (50, 99))
    latency = f"a request took {middle:.1f} ms (median), {worst:.1f} ms (p99)"
    return f"{count} of {count} second creates were refused; {latency}"


# --- races: each writer stores its own content, so that the object identifies the winner even if its answer was lost


class Attempt(NamedTuple):
    """A create by one of several writers, and the server's answer: None if there was none."""

    writer: str
    content: bytes
    created: bool | None


def _race(
    probe: Probe, name: str, buckets: Sequence[Bucket], unanswered: Callable[[Bucket, str, bytes], bool | None]
) -> dict[str, list[Attempt]]:
    """Create one key after the other, each through all buckets at once, until there were enough or the time is up."""
    start, watch = threading.Barrier(len(buckets)), Stopwatch()
    made: dict[str, list[Attempt]] = {}

    def attempt(key: str, number: int) -> Attempt:
        writer = f"thread-{number}"
        content = f"{key} {writer}\n".encode()
        start.wait()
        try:
            return Attempt(writer, content, buckets[number].create(key, content))
        except Unanswered:
            return Attempt(writer, content, unanswered(probe.bucket, key, content))

    with ThreadPoolExecutor(len(buckets)) as pool:
        for number in range(probe.scale.races):
            key = probe.key(f"{name}/{number:06}")
            made[key] = list(pool.map(attempt, [key] * len(buckets), range(len(buckets))))
            probe.others += len(buckets)
            if watch.elapsed_s > probe.scale.race_s:
                break
    return made


def racing_threads(probe: Probe) -> str:
    """Of several threads that create the same object, each over its own connections like a process, one succeeds."""
    count = probe.scale.threads
    made = _race(probe, "threads", [probe.bucket.again() for _ in range(count)], lambda *_: None)
    winners = {key: [each for each in attempts if each.created] for key, attempts in made.items()}
    if double := [key for key, found in winners.items() if len(found) > 1]:
        shown = ", ".join(each.writer for each in winners[double[0]])
        raise Broken(
            f"{len(double)} of {len(made)} keys were created more than once: {double[0]} by {shown}; "
            "two writers would both believe that a commit is theirs"
        )
    # Without a winner, the winner's answer was lost, and the content identifies it.
    if wrong := [key for key in made if probe.get(key) not in [each.content for each in winners[key] or made[key]]]:
        raise Broken(
            f"{len(wrong)} of {len(made)} keys do not contain what their winner stored, the first is {wrong[0]}"
        )
    refused = sum(each.created is False for attempts in made.values() for each in attempts)
    unclear = sum(not found for found in winners.values())
    lost = f", {unclear} known by their content only" if unclear else ""
    return f"{count} threads, {len(made)} keys: {len(made)} winners{lost}, {refused} refused"


def ambiguous(probe: Probe) -> str:
    """An abandoned create was applied or not; reading back tells which, and that never changes."""
    if not probe.is_remote:
        raise NotHere("no network between, so no request is given up")
    usual_ms = sorted(probe.times_ms)[len(probe.times_ms) // 2] if probe.times_ms else 0.0
    timeouts_ms = [max(usual_ms * part, 1.0) for part in _IMPATIENCE]
    given = [{**probe.bucket.options, "timeout": f"{round(each)}ms", "max_retries": "0"} for each in timeouts_ms]
    given_up: list[str] = []

    def insist(bucket: Bucket, key: str, content: bytes) -> bool:
        """Retry like a writer that got no answer, and read back whose object it is."""
        given_up.append(key)
        return bucket.create(key, content) or bucket.get(key) == content

    made = _race(probe, "ambiguous", [Bucket(probe.bucket.url, each) for each in given], insist)
    owners = {key: [each.content for each in attempts if each.created] for key, attempts in made.items()}
    if bad := [key for key, found in owners.items() if len(found) != 1]:
        raise Broken(f"{bad[0]} has {len(owners[bad[0]])} owners after creates that were given up and repeated")
    threading.Event().wait(_SETTLE_S)
    if changed := [key for key, found in owners.items() if [probe.get(key)] != found]:
        raise Broken(f"{len(changed)} of {len(owners)} keys changed later: {changed[0]} was overwritten by a create")
    total = len(made) * len(given)
    return f"{len(given_up)} of {total} creates were given up and repeated: {len(owners)} keys have one owner each"


# --- visibility


def read_after_write(probe: Probe) -> str:
    """Other clients read an object as soon as it is stored, even if they have just seen that it was missing."""
    reader, count = probe.bucket.again(), 2 * probe.scale.rounds

    def write(key: str) -> None:
        if reader.get(key) is not None:
            raise Broken(f"{key} was never created, and exists")
        for data, store in ((b"created\n", probe.create), (b"replaced\n", probe.put)):
            store(key, data)
            if (found := reader.get(key)) != data:
                raise Broken(f"{key}: {data!r} was stored, another client read {found!r} afterwards")

    _rounds(probe, "read", probe.scale.rounds, write)
    return f"{count} of {count} writes were read at once by another client"


def list_after_write(probe: Probe) -> str:
    """A listing has objects as soon as they are created, and no deleted ones."""
    count = 2 * probe.scale.rounds

    def write(key: str) -> None:
        probe.create(key, b"listed\n")
        if (found := probe.list(key)) != [key]:
            raise Broken(f"{key} was created, and a listing has {found}")
        probe.delete(key)
        if found := probe.list(key):
            raise Broken(f"{key} was deleted, and a listing has {found}")

    _rounds(probe, "listed", probe.scale.rounds, write)
    return f"{count} of {count} listings were up to date"


def listing(probe: Probe) -> str:
    """A listing of several pages has every key once; a listing from an offset has the rest."""
    keys = [probe.key(f"pages/{number:06}") for number in range(probe.scale.listed)]
    with ThreadPoolExecutor(probe.scale.threads * 2) as pool:
        list(pool.map(lambda key: probe.bucket.create(key, b""), keys))
    probe.others += len(keys)
    found = probe.list(keys[0])
    if found != keys:
        right = len(set(found) & set(keys))
        raise Broken(f"{len(keys)} keys were created; the listing has {len(found)}, of which {right} are right")
    for at in (0, len(keys) // 2, 998, 999, 1000, len(keys) - 2, len(keys) - 1):
        if 0 <= at < len(keys) and probe.list(keys[0], keys[at]) != keys[at + 1 :]:
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
            raise Broken(f"{size} bytes from {start} on of {key} are not the stored ones")
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


def _random(size_bytes: int) -> bytes:
    return random.Random(size_bytes).randbytes(size_bytes)


# --- running trials

#: The trials by name, in order. The first one tells whether there is anything to test.
TRIALS: dict[str, Callable[[Probe], str]] = {
    "access": access,
    "create once": create_once,
    "racing threads": racing_threads,
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


def run(
    bucket: Bucket,
    scale: Scale | None = None,
    *,
    names: Iterable[str] = tuple(TRIALS),
    on_found: Callable[[Finding], object] = lambda _: None,
) -> list[Finding]:
    """Run the trials. Raises `StorageError` if the bucket cannot be used at all. Objects that could not be deleted
    afterwards are a finding."""
    probe = Probe(bucket, scale or Scale())
    found: list[Finding] = []
    try:
        for name in names:
            found.append(_tried(probe, name))
            on_found(found[-1])
    finally:
        watch = Stopwatch()
        try:
            probe.clean_up()
        except StorageError as error:  # an earlier exception takes precedence
            left = f"{error.strerror}; delete {probe.prefix}"
            found.append(Finding("clean up", FAILED, left, 0, watch.elapsed_s))
    return found


def _tried(probe: Probe, name: str) -> Finding:
    watch, before = Stopwatch(), probe.requests
    try:
        state, evidence = OK, TRIALS[name](probe)
    except Broken as error:
        state, evidence = error.state, str(error)
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
