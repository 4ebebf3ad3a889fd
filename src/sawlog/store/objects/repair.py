"""Diagnosis and repair of a store on object storage that has lost objects: return it to its last consistent state.

Commits follow each other without a gap, and each carries the digest of the state before it. So a store is intact up to
the first commit that is missing, damaged, or continues another history. Everything beyond is unusable, because later
commits build on a state that can no longer be computed. `diagnose` compares that end with everything that records how
many commits there were: later commits, checkpoints, the collector's notes, and the keys of uploads.

    cause                                       detected by
    commits were deleted or lost                the numbers around them, checkpoints, notes, uploads
    a commit was damaged                        its checksum
    the bucket was rolled back under a writer   a gap, or a commit with another digest
    `sawlog.json` was deleted                   commits without it
    only the last commit was lost               nothing, unless a later checkpoint, note or upload records it

`repair` moves unusable objects to a prefix next to them, `before-repair-.../`, and restores `sawlog.json`. It can be
interrupted and repeated: until the last step, opening the store fails. No process may use the store meanwhile.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count

from ...display import counted, time_text
from ...errors import CorruptData, InvalidConfig, StoreNotFound
from . import checkpoints
from .bucket import Bucket
from .checkpoints import CHECKPOINTS, Checkpoint
from .collect import GARBAGE, NOTES, note_of, read_garbage
from .journal import STORE, STORE_COPY, StoreParameters
from .state import State
from .state.commit import (
    COMMITS,
    SEGMENTS,
    STAGED,
    TOMBSTONE_BYTES,
    Collected,
    Commit,
    Nonce,
    UpgradeRequired,
    begun_at,
    commit_key,
    read_commit,
    verified_commit,
)
from .store import identity_of, new_store

#: Number of commits requested at a time.
_STEP = 16
_UPLOADS = (STAGED, SEGMENTS)
_MISSING, _REPLACED = "an object is missing", "an object is another one"
#: An extent as its entry describes it: base offset, key, position, size, end, newest timestamp.
_Placed = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect of a store, and what `repair` does about it."""

    what: str
    #: "restore", "set aside", "return", or "report" if nothing can be done.
    action: str
    detail: str
    topic: str = ""
    partition: int | None = None

    def __str__(self) -> str:
        return f"{self.what}: {self.detail}"


@dataclass(slots=True)
class Diagnosis:
    """The defects of a store, and how to repair them."""

    #: The state after the last usable commit.
    state: State = field(default_factory=State)
    findings: list[Finding] = field(default_factory=list)
    #: The objects to set aside, in order.
    stray: list[str] = field(default_factory=list)
    #: The content for `sawlog.json`, if it is missing or damaged.
    founded: bytes | None = None
    #: Extents of commits that have replaced the ones from which the state was computed.
    replaced: set[_Placed] = field(default_factory=set)
    #: True if the state is that of a checkpoint whose confirming commit is gone.
    is_unconfirmed: bool = False

    @property
    def is_repairable(self) -> bool:
        """True if a repair would change anything."""
        return bool(self.stray or self.founded is not None or self.is_unconfirmed)

    @property
    def is_missing_objects(self) -> bool:
        """True if records are in objects that are gone, which no repair restores."""
        return any(each.what in (_MISSING, _REPLACED) for each in self.findings)

    def add(self, what: str, action: str, detail: str, topic: str = "", partition: int | None = None) -> None:
        self.findings.append(Finding(what, action, detail, topic, partition))


def diagnose(bucket: Bucket) -> Diagnosis:
    """Compare a store with everything that records how it should be. Read-only; other processes may use the store."""
    found = Diagnosis()
    listed = checkpoints.listed(bucket)
    notes = [entry.key for entry in bucket.list(NOTES)]
    uploads = [entry.key for prefix in _UPLOADS for entry in bucket.list(prefix)]
    numbers = [(entry.key.removeprefix(COMMITS), entry.size_bytes) for entry in bucket.list(COMMITS)]
    commits = {int(number): size for number, size in numbers if number.isdecimal()}
    if not listed and not commits and bucket.get(STORE) is None:
        raise StoreNotFound(errno.ENOENT, f"no store in {bucket.url}")
    _check_founded(bucket, found)
    wrong = _begin(bucket, found, listed, commits)
    reason = _fold(bucket, found.state)
    end = found.state.number
    recorded = {
        **{key: number for key in uploads if (number := begun_at(key)) is not None},
        **{key: note_of(key).commits for key in notes},
        **{each.key: each.number for each in listed},
    }
    beyond = [key for key, number in recorded.items() if number > end]
    later = sorted(number for number in commits if number > end or (number == end and reason))
    if reason or beyond or later:
        most = max([end, *(recorded[key] for key in beyond), *(number + 1 for number in later)])
        _explain_end(bucket, found, reason or f"{commit_key(end)} is missing", most)
        _list_losses(bucket, found, [each for each in listed if each.number > end], later)
    for each in wrong:
        if each.number <= end:
            found.add(each.key, "set aside", "it is not the state that the commits lead to, or cannot be read")
    # Lists of garbage with keys that the state refers to: later commits had replaced them.
    referenced, lists = found.state.referenced(), [entry.key for entry in bucket.list(GARBAGE)]
    garbage = [key for key in lists if not referenced.isdisjoint(read_garbage(bucket, key))]
    # A half-done repair must be refused when the store is opened, so the lowest commit goes last.
    found.stray = [
        *garbage,
        *(key for key in beyond if not key.startswith(CHECKPOINTS)),
        *(each.key for each in wrong if each.number <= end),
        *(key for key in beyond if key.startswith(CHECKPOINTS)),
        *(commit_key(number) for number in reversed(later)),
    ]
    _list_missing(bucket, found)
    return found


def repair(bucket: Bucket, found: Diagnosis, folder: str) -> None:
    """Repair what `diagnose` has found. Removed objects are copied to `folder` first. No process may use the store
    meanwhile."""
    for key in found.stray:
        data = bucket.get(key)
        if data is not None:
            bucket.put(f"{folder}/{key}", data)
            bucket.delete(key)
    if found.is_unconfirmed:
        made = Commit(Nonce(f"repair-{folder}", 1), found.state.number, found.state.digest, ())
        bucket.create(commit_key(found.state.number), made.encode())
    if found.founded is not None:
        bucket.put(STORE, found.founded)
        bucket.put(STORE_COPY, found.founded)


# --- sawlog.json


def _check_founded(bucket: Bucket, found: Diagnosis) -> None:
    what = f"{STORE} is missing"
    for key in (STORE, STORE_COPY):
        data = bucket.get(key)
        if data is None:
            continue
        try:
            identity_of(bucket, data)
        except InvalidConfig:
            what = f"{STORE} is damaged" if key == STORE else what
            continue
        if key == STORE_COPY:
            found.founded = data
            found.add(what, "restore", f"as {STORE_COPY} has it, with the same id and parameters")
        return
    found.founded = new_store(StoreParameters())
    found.add(what, "restore", "with a new id and default parameters: there is no copy that says what they were")


# --- the end of the log


def _begin(bucket: Bucket, found: Diagnosis, listed: list[Checkpoint], commits: dict[int, int]) -> list[Checkpoint]:
    """Find the state to start from, and return the checkpoints that are wrong."""
    wrong: list[Checkpoint] = []
    readable: list[Checkpoint] = []
    base: State | None = None
    for each in listed:
        is_confirmed = False
        try:
            with suppress(Collected):
                is_confirmed = checkpoints.is_confirmed(bucket, each)
            if base is None:
                state = checkpoints.loaded(bucket, each)
                readable.append(each)
                base = state if is_confirmed else None
        except (CorruptData, Collected):  # damaged, or of another history
            wrong.append(each)
    if base is not None:
        found.state = base
        found.replaced = _replaced(bucket, base, listed, commits)
        return wrong
    if commits.get(0, 0) > TOMBSTONE_BYTES or (not commits and not listed):
        return wrong
    for each in sorted([*readable, *wrong], reverse=True):
        with suppress(CorruptData, Collected):
            found.state = checkpoints.loaded(bucket, each)
            found.is_unconfirmed = True
            return [other for other in wrong if other != each]
    raise CorruptData(
        f"{bucket.url} cannot be repaired: commit 0 is gone, and no checkpoint can be read. Bring them back from a "
        "version or a copy of the bucket"
    )


def _replaced(bucket: Bucket, base: State, listed: list[Checkpoint], commits: dict[int, int]) -> set[_Placed]:
    """Return extents of a checkpoint in commits other than those it was computed from: two writers have continued a
    bucket that was rolled back or has lost a commit, and a reader would get the records of the other one."""
    state = State()
    if commits.get(0, 0) <= TOMBSTONE_BYTES:
        for each in reversed(listed):
            with suppress(CorruptData, Collected):
                if checkpoints.is_confirmed(bucket, each):
                    state = checkpoints.loaded(bucket, each)
                    break
    first = state.number
    _fold(bucket, state, base.number)
    folded = {commit_key(number) for number in range(first, state.number)}
    return set(_extents_in(base, folded)) - set(_extents_in(state, folded))


def _extents_in(state: State, keys: set[str]) -> Iterator[_Placed]:
    """Yield the extents in some commits, as a state describes them."""
    for name in state.entries.of_kind("extent"):
        value = state.entries.get(name)
        if value[0] in keys:
            yield (int(name.rpartition("/")[2]), *value)


def _fold(bucket: Bucket, state: State, end: int | None = None) -> str:
    """Fold all usable commits and return why the next one is unusable, or "" if there is none."""
    for first in count(state.number, _STEP):
        keys = [commit_key(number) for number in range(first, first + _STEP)]
        for key, data in zip(keys, bucket.get_many(keys), strict=True):
            if data is None or state.number == end:
                return ""
            try:
                _, (commit, inline_at) = verified_commit(bucket, key, data)
            except CorruptData as error:
                return f"{key} is damaged ({error})"
            except Collected:
                return f"{key} was emptied"
            if commit.digest != state.digest:
                return f"{key} continues another history"
            state.apply(commit, key, inline_at)
    raise AssertionError  # the loop is infinite


def _explain_end(bucket: Bucket, found: Diagnosis, reason: str, most: int) -> None:
    end = found.state.number
    with_time = ""
    with suppress(CorruptData, UpgradeRequired):
        if end and (last := read_commit(bucket, commit_key(end - 1))):
            with_time = f", of {time_text(last[0].time_ms)}"
    lost = counted(most - end, "commit")
    detail = f"the last consistent state is that after {counted(end, 'commit')}{with_time}; at least {lost} lost"
    found.add(reason, "return", detail)


def _list_losses(bucket: Bucket, found: Diagnosis, ahead: list[Checkpoint], later: list[int]) -> None:
    """List the lost records, as far as later checkpoints and unusable commits tell."""
    ends: dict[tuple[str, int], int] = {}
    for each in reversed(ahead):
        with suppress(CorruptData, Collected):
            state = checkpoints.loaded(bucket, each)
            ends |= {(name, number): state.ends(topic, number)[1] for name, topic, number in state.partitions()}
    ids = {(name, number): topic for name, topic, number in found.state.partitions()}
    for (name, number), end in sorted(ends.items()):
        now = found.state.ends(ids.get((name, number), ""), number)[1]
        if end > now:
            found.add("records are lost", "report", f"offsets {now} to {end - 1}", name, number)
    names = {topic: name for (name, _), topic in ids.items()}
    for key in map(commit_key, later):
        with suppress(CorruptData):
            if (read := read_commit(bucket, key)) is None:
                continue
            for action in chain.from_iterable(read[0].requests):
                if action.get("do") == "append":
                    records = counted(sum(extent[2] for extent in action["extents"]), "record")
                    detail = f"{records} in {key}, of {time_text(read[0].time_ms)}"
                    where = names.get(action["topic"]) or action["topic"]
                    found.add("records cannot be placed", "set aside", detail, where, action["partition"])


# --- referenced objects


def _list_missing(bucket: Bucket, found: Diagnosis) -> None:
    """List extents whose objects are gone. They cannot be repaired, and reading them raises an error."""
    there = {entry.key for prefix in _UPLOADS for entry in bucket.list(prefix)}
    there |= {entry.key for entry in bucket.list(COMMITS) if entry.size_bytes > TOMBSTONE_BYTES}
    replaced = {placed[:2] for placed in found.replaced}
    if found.state.referenced() <= there and not replaced:
        return
    for name, topic, number in found.state.partitions():
        for extent in found.state.extents(topic, number, found.state.ends(topic, number)[0]):
            offsets = f"offsets {extent.base_offset} to {extent.next_offset - 1} are in {extent.key}"
            if extent.key not in there:
                found.add(_MISSING, "report", offsets, name, number)
            elif (extent.base_offset, extent.key) in replaced:
                found.add(_REPLACED, "report", f"{offsets}, which has other records now", name, number)
