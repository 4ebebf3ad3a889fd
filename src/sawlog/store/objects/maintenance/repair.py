"""Find out what a store on object storage has lost, and return it to its last consistent state.

Commits follow each other without a gap, and each carries the digest of the state before it. So a store is whole up to
the first commit that is missing, damaged, or continues another history. What lies beyond that commit cannot be used: a
later commit builds on a state that nobody can compute any more. `diagnose` compares that end with everything that
records how many commits there were: later commits, checkpoints, the collector's notes, and the keys of uploads.

    cause                                       found by
    commits were deleted, or lost               the numbers around them, checkpoints, notes, uploads
    a commit was damaged                        its checksum
    the bucket was rolled back under a writer   a gap, or a commit with another digest
    `sawlog.json` was deleted                   commits without it
    the last commit was lost, and nothing else  nothing, unless a checkpoint, a note or an upload was made after it
    records it

`repair` moves what cannot be used into a folder beside it, `before-repair-.../`, and restores `sawlog.json`. It can be
interrupted and repeated: until the last step the store is refused by everybody who opens it. No process may use the
store meanwhile.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ....display import counted, time_text
from ....errors import CorruptData, InvalidConfig, StoreNotFound
from ..bucket.bucket import Bucket
from ..journal import checkpoints
from ..journal.checkpoints import CHECKPOINTS, COMMITS, Checkpoint, Collected, commit_key
from ..journal.parameters import STORE, STORE_COPY, Terms
from ..state.commit import TOMBSTONE_BYTES, Commit, Nonce, UpgradeRequired
from ..state.extents import SEGMENTS, STAGED, begun_at
from ..state.state import State
from ..store import described, new_store
from .collect import GARBAGE, NOTES, note_of, read_garbage

#: So many commits are requested at a time.
_STEP = 16
_UPLOADS = (STAGED, SEGMENTS)
_MISSING, _REPLACED = "an object is missing", "an object is another one"
#: What an entry says of an extent: its base offset, key, position, size, end, newest timestamp.
_Placed = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with a store, and what `repair` does about it."""

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
    """What is wrong with a store, and how it would be repaired."""

    #: The state after the last commit that can be used.
    state: State = field(default_factory=State)
    findings: list[Finding] = field(default_factory=list)
    #: The objects to set aside, in order.
    stray: list[str] = field(default_factory=list)
    #: What `sawlog.json` must say, if it is missing or damaged.
    founded: bytes | None = None
    #: Extents in commits that are not those which the state was made of.
    replaced: set[_Placed] = field(default_factory=set)
    #: The state is that of a checkpoint, and the commit that has confirmed it is gone.
    is_unconfirmed: bool = False

    @property
    def is_repairable(self) -> bool:
        """Whether a repair would change anything."""
        return bool(self.stray or self.founded is not None or self.is_unconfirmed)

    @property
    def is_missing_objects(self) -> bool:
        """Whether records are in objects that are gone, which no repair brings back."""
        return any(each.what in (_MISSING, _REPLACED) for each in self.findings)

    def add(self, what: str, action: str, detail: str, topic: str = "", partition: int | None = None) -> None:
        """Note something that is wrong."""
        self.findings.append(Finding(what, action, detail, topic, partition))


def diagnose(bucket: Bucket) -> Diagnosis:
    """Compare a store with everything that records how it should be. Writes nothing; other processes may use it."""
    found = Diagnosis()
    listed = checkpoints.listed(bucket)
    notes = [entry.key for entry in bucket.list(NOTES)]
    uploads = [entry.key for prefix in _UPLOADS for entry in bucket.list(prefix)]
    commits = {number: entry.size_bytes for entry in bucket.list(COMMITS) if (number := _number(entry.key)) is not None}
    if not listed and not commits and bucket.get(STORE) is None:
        raise StoreNotFound(errno.ENOENT, f"no store in {bucket.url}")
    _check_founded(bucket, found)
    wrong = _begin(bucket, found, listed, commits)
    reason = _fold(bucket, found.state)
    end = found.state.number
    recorded = {
        **{key: number for key in uploads if (number := _begun(key)) is not None},
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
    garbage = list(_contradicting_garbage(bucket, found.state))
    # Whatever is left half done is refused when the store is opened: the lowest commit goes last.
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
    """Carry out what `diagnose` has found; what is removed is copied to that folder first. No process may use the store
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
            described(bucket, data)
        except InvalidConfig:
            what = f"{STORE} is damaged" if key == STORE else what
            continue
        if key == STORE_COPY:
            found.founded = data
            found.add(what, "restore", f"as {STORE_COPY} has it, with the same id and terms")
        return
    found.founded = new_store(Terms())
    found.add(what, "restore", "with a new id and default terms: there is no copy that says what they were")


# --- the end of the log


def _begin(bucket: Bucket, found: Diagnosis, listed: list[Checkpoint], commits: dict[int, int]) -> list[Checkpoint]:
    """Find the state to begin with; returns the checkpoints that are wrong."""
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
    """Extents of a checkpoint in commits that are not those which it was made of: two writers have continued a bucket
    that was rolled back, or has lost a commit, and a reader would get the records of the other one."""
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
    """What a state says of the batches in some commits."""
    for name in state.entries.of_kind("extent"):
        value = state.entries.get(name)
        if value[0] in keys:
            yield (int(name.rpartition("/")[2]), *value)


def _fold(bucket: Bucket, state: State, end: int | None = None) -> str:
    """Fold all commits that can be used; why the next one cannot be, or "" if there is none."""
    for first in count(state.number, _STEP):
        keys = [commit_key(number) for number in range(first, first + _STEP)]
        for key, data in zip(keys, bucket.get_many(keys), strict=True):
            if data is None or state.number == end:
                return ""
            try:
                _, (commit, inline_at) = checkpoints.intact(bucket, key, data)
            except CorruptData as error:
                return f"{key} is damaged ({error})"
            except Collected:
                return f"{key} was emptied"
            if commit.digest != state.digest:
                return f"{key} continues another history"
            state.apply(commit, key, inline_at)
    raise AssertionError  # the loop has no end


def _explain_end(bucket: Bucket, found: Diagnosis, reason: str, most: int) -> None:
    end = found.state.number
    with_time = ""
    if end and (last := bucket.get(commit_key(end - 1))) is not None:
        with suppress(CorruptData, Collected, UpgradeRequired):
            _, (commit, _) = checkpoints.intact(bucket, commit_key(end - 1), last)
            with_time = f", of {time_text(commit.time_ms)}"
    lost = counted(most - end, "commit")
    detail = f"the last consistent state is that after {counted(end, 'commit')}{with_time}; at least {lost} lost"
    found.add(reason, "return", detail)


def _list_losses(bucket: Bucket, found: Diagnosis, ahead: list[Checkpoint], later: list[int]) -> None:
    """What is known of the records that are lost: from checkpoints of the state after them, and from commits that
    cannot be used."""
    ends: dict[tuple[str, int], int] = {}
    for each in reversed(ahead):
        with suppress(CorruptData, Collected):
            state = checkpoints.loaded(bucket, each)
            ends |= {place: state.ends(topic, number)[1] for place, topic, number in _places(state)}
    names = {place: (topic, number) for place, topic, number in _places(found.state)}
    for (name, number), end in sorted(ends.items()):
        topic = names.get((name, number))
        now = 0 if topic is None else found.state.ends(*topic)[1]
        if end > now:
            found.add("records are lost", "report", f"offsets {now} to {end - 1}", name, number)
    by_id = {topic: place for place, (topic, _) in names.items()}
    for number in later:
        data = bucket.get(commit_key(number))
        with suppress(CorruptData, Collected):
            commit = None if data is None else checkpoints.intact(bucket, commit_key(number), data)[1][0]
            appends: list[Any] = [] if commit is None else [each for request in commit.requests for each in request]
            for each in appends:
                if each.get("do") == "append":
                    where = by_id.get(each["topic"], (each["topic"], 0))[0]
                    records = counted(sum(extent[2] for extent in each["extents"]), "record")
                    detail = f"{records} in {commit_key(number)}, of {time_text(commit.time_ms if commit else 0)}"
                    found.add("records cannot be placed", "set aside", detail, where, each["partition"])


# --- what the state refers to


def _list_missing(bucket: Bucket, found: Diagnosis) -> None:
    """Extents whose objects are gone: nothing can be done, and reading them raises an error."""
    there = {entry.key for prefix in _UPLOADS for entry in bucket.list(prefix)}
    there |= {entry.key for entry in bucket.list(COMMITS) if entry.size_bytes > TOMBSTONE_BYTES}
    replaced = {placed[:2] for placed in found.replaced}
    if found.state.referenced() <= there and not replaced:
        return
    for (name, number), topic, _ in _places(found.state):
        for extent in found.state.extents(topic, number, found.state.ends(topic, number)[0]):
            offsets = f"offsets {extent.base_offset} to {extent.next_offset - 1} are in {extent.key}"
            if extent.key not in there:
                found.add(_MISSING, "report", offsets, name, number)
            elif (extent.base_offset, extent.key) in replaced:
                found.add(_REPLACED, "report", f"{offsets}, which has other records now", name, number)


def _contradicting_garbage(bucket: Bucket, state: State) -> Iterator[str]:
    """Lists of garbage that were written when later commits had replaced what the state needs."""
    referenced = state.referenced()
    for entry in bucket.list(GARBAGE):
        if not referenced.isdisjoint(read_garbage(bucket, entry.key)):
            yield entry.key


def _places(state: State) -> Iterator[tuple[tuple[str, int], str, int]]:
    """All partitions: their name, and the id of their topic with their number."""
    for name in state.topics():
        entry = state.topic(name) or {}
        for number in range(int(entry["partitions"])):
            yield (name, number), str(entry["id"]), number


def _number(key: str) -> int | None:
    number = key.removeprefix(COMMITS)
    return int(number) if number.isdecimal() else None


def _begun(key: str) -> int | None:
    try:
        return begun_at(key)
    except ValueError:
        return None
