"""The trials of a self-test, one function a promise: it returns the evidence, or raises `Broken` with it."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from ..clock import Deadline, Stopwatch
from ..display import size_text
from . import racing
from .bucket import Bucket, Unanswered
from .probing import Probe
from .racing import Attempt

T = TypeVar("T")

#: How long a request that was given up may be on its way: nothing may change afterwards.
_SETTLE_S = 1.0
#: Requests are given up after these parts of the time that a usual one takes.
_IMPATIENCE = (0.3, 0.6, 0.9, 1.2)
#: How many writes may have no answer, besides one for each that has; and for how long that is tolerated.
_UNANSWERED, _PATIENCE_S = 10, 30.0
_RANGED_BYTES = (1 << 20) + 1
#: What a server or a proxy between might change on its way.
_CONTENTS = {
    "nothing": b"",
    "all bytes": bytes(range(256)) * 4,
    "line ends": b"a\r\nb\nc\rd\r\n\r\n",
    "gzip's first bytes": b"\x1f\x8b\x08\x00" + bytes(16),
    "text with a mark": "\ufeffsäge\n".encode(),
}


class Broken(Exception):
    """A promise is broken; the text is the evidence."""


class NotHere(Exception):
    """The trial does not apply to this kind of storage; the text says why."""


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
    made = list(_raced(probe, "threads", lambda key: racing.in_threads(probe.bucket, key, count)))
    return f"{count} threads, {_settled(probe, made)}"


def racing_processes(probe: Probe) -> str:
    """The same with processes, each with its own connections."""
    if probe.bucket.url.startswith("memory:"):
        raise NotHere("memory belongs to one process")
    with racing.Racers(probe.bucket, probe.scale.processes) as racers:
        made = list(_raced(probe, "processes", racers.race))
    return f"{probe.scale.processes} processes, {_settled(probe, made)}"


def _raced(probe: Probe, name: str, race: Callable[[str], list[T]]) -> Iterator[T]:
    """What was made in races for one key after the other, until there were enough or the time is over."""
    watch = Stopwatch()
    for key in probe.keys(name, probe.scale.races):
        made = race(key)
        probe.others += len(made)
        yield from made
        if watch.elapsed_s > probe.scale.race_s:
            return


def _settled(probe: Probe, made: Iterable[Attempt]) -> str:
    """Check that every key has one winner, and that it contains what that one has stored."""
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
        # Without a winner it is one whose answer was lost: then the content says who.
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
    """What became of a create that may have been given up."""

    key: str
    content: bytes
    is_ours: bool
    was_given_up: bool


def ambiguous(probe: Probe) -> str:
    """A create that was given up was applied or not; reading back says which, and it stays so."""
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
        raise Broken(f"{len(changed)} of {len(keys)} keys changed later: {changed[0]} was created over what was there")
    given_up = sum(each.was_given_up for each in made)
    return f"{given_up} of {len(made)} creates were given up and repeated: {len(keys)} keys have one owner each"


def _impatient(bucket: Bucket, timeout_ms: float) -> Bucket:
    """The same bucket, but requests are given up early and not repeated."""
    return Bucket(bucket.url, {**bucket.options, "timeout": f"{round(timeout_ms)}ms", "max_retries": "0"})


def _insist(patient: Bucket, hasty: Bucket, key: str, number: int) -> _Insisted:
    """Create an object as a writer does that gets no answer: ask again, then look whose it is."""
    data = racing.content_of(key, f"writer-{number}")
    try:
        return _Insisted(key, data, is_ours=hasty.create(key, data), was_given_up=False)
    except Unanswered:
        is_ours = patient.create(key, data) or patient.get(key) == data
        return _Insisted(key, data, is_ours=is_ours, was_given_up=True)


# --- what others see


def create_after_delete(probe: Probe) -> str:
    """What was deleted is gone, and can be created again."""

    def replace(key: str) -> None:
        probe.create(key, b"before\n")
        probe.delete(key)
        if (found := probe.get(key)) is not None:
            raise Broken(f"{key} was deleted, and contains {found!r}")
        if not probe.create(key, b"after\n"):
            raise Broken(f"{key} was deleted, and creating it again was refused")
        if (found := probe.get(key)) != b"after\n":
            raise Broken(f"{key} was deleted and created again, and contains {found!r}")

    _rounds(probe, "again", probe.scale.rounds, replace)
    return f"{probe.scale.rounds} keys were deleted, gone, and created again"


def read_after_write(probe: Probe) -> str:
    """What was stored is what others read at once, also if they have just seen that there was nothing."""
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
    """What was created is listed at once, and what was deleted is not."""

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
    """A listing of several pages has every key once; one that begins later has the rest."""
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
    """A part of an object is that part."""
    key, data = probe.key("ranges/object"), _random(_RANGED_BYTES)
    probe.put(key, data)
    wanted = [(0, 1), (0, 100), (1, 1), (65_535, 2), (100_000, 300_000), (len(data) - 1, 1), (1000, len(data) - 1000)]
    for start, size in wanted:
        if probe.get_range(key, start, size) != data[start : start + size]:
            raise Broken(f"{size} bytes from {start} on of {key} are not those that were stored there")
    return f"{len(wanted)} ranges of {size_text(len(data))} are right"


def large_object(probe: Probe) -> str:
    """A large object, which is sent in parts, comes back whole."""
    key, data = probe.key("large/object"), _random(probe.scale.large_bytes)
    watch = Stopwatch()
    probe.put(key, data)
    sent_s = watch.restart()
    found = probe.get(key)
    if found != data:
        raise Broken(f"{size_text(len(data))} were stored, {size_text(len(found or b''))} other bytes came back")
    speeds = [f"{size_text(len(data) / max(seconds, 1e-9))}/s" for seconds in (sent_s, watch.elapsed_s)]
    return f"{size_text(len(data))} came back; sent with {speeds[0]}, read with {speeds[1]}"


def content(probe: Probe) -> str:
    """No byte is changed on its way."""
    for number, (name, data) in enumerate(_CONTENTS.items()):
        key = probe.key(f"content/{number}")
        probe.create(key, data)
        if (found := probe.get(key)) != data:
            raise Broken(f"{name}: {data[:20]!r} was stored, {(found or b'')[:20]!r} came back")
    return f"{', '.join(_CONTENTS)}: unchanged"


# --- in common


def _rounds(probe: Probe, name: str, count: int, one: Callable[[str], None]) -> None:
    """Do something with so many keys, one after the other.

    A write that got no answer may be applied later, over what was written since: that would look like a broken promise.
    So writes are not repeated here, and a round with such a write is worth nothing: another key takes its place.
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
    """Do something with every key, several at the same time."""
    with ThreadPoolExecutor(probe.scale.threads * 2) as pool:
        for _ in pool.map(each, keys):
            pass


def _random(size_bytes: int) -> bytes:
    """The same bytes each time, which do not compress."""
    return random.Random(size_bytes).randbytes(size_bytes)


def median(times_ms: Sequence[float]) -> float:
    """The middle one."""
    return sorted(times_ms)[len(times_ms) // 2] if times_ms else 0.0


def latency(times_ms: Sequence[float]) -> str:
    """What a request took."""
    worst = sorted(times_ms)[min(len(times_ms) * 99 // 100, len(times_ms) - 1)]
    return f"a request took {median(times_ms):.1f} ms (median), {worst:.1f} ms (p99)"
