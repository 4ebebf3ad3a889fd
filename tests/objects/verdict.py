"""Checks of a store after its processes, simulated or real, were disturbed: lost records, digests, readers, garbage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sawlog.batch.kernel import Record
from sawlog.config import LogConfig
from sawlog.errors import SawlogError
from sawlog.store.objects import checkpoints
from sawlog.store.objects.bucket import Bucket
from sawlog.store.objects.collect import GARBAGE
from sawlog.store.objects.partition import ObjectPartition
from sawlog.store.objects.session import StoreSession
from sawlog.store.objects.state import State
from sawlog.store.objects.state.commit import COMMITS, SEGMENTS, STAGED, commit_key
from sawlog.store.objects.store import ObjectStore
from sawlog.store.objects.tiered import TieredLog

#: The topics: one keeps everything, one the last record of each key, one the newest bytes.
PLAIN, KEYED, SHORT = "plain", "keyed", "short"
PARTITIONS = {PLAIN: 2, KEYED: 1, SHORT: 1}

#: Number of extents of each partition that are damaged, one after the other.
_DAMAGED = 2

Place = tuple[str, int]


@dataclass
class Told:
    """The acknowledgements: the place of each value."""

    acked: dict[bytes, tuple[Place, int]] = field(default_factory=dict)

    def note(self, place: Place, offsets: range, values: Iterable[bytes]) -> None:
        """Record acknowledged values."""
        for offset, value in zip(offsets, values, strict=True):
            self.acked[value] = (place, offset)


def value_of(writer: str, number: int, size: int) -> bytes:
    """Return a unique value that names its writer and a number."""
    return f"{writer}:{number:08}:".encode().ljust(size, b".")


def found_in(store: ObjectStore) -> dict[Place, list[Record]]:
    """Return all records by topic and partition."""
    return {
        (topic, number): list(store.topic(topic).partition(number).scan())
        for topic, count in PARTITIONS.items()
        for number in range(count)
    }


def wrong_with_records(store: ObjectStore, told: Told) -> list[str]:
    """List acknowledged records that are lost, duplicated or reordered, and missing offsets."""
    found = found_in(store)
    wrong: list[str] = []
    for place, records in found.items():
        partition = store.topic(place[0]).partition(place[1])
        lowest, end = partition.lowest_offset, partition.visible_offset
        offsets = [each.offset for each in records]
        if place[0] != KEYED and offsets != list(range(lowest, end)):
            wrong.append(f"offsets of {place} are not {lowest} to {end}: {_gaps(offsets, lowest, end)}")
        if place[0] == PLAIN and lowest:
            wrong.append(f"{place} starts at {lowest}")
        wrong += _doubled(place, records)
        wrong += _reordered(place, records)
    wrong += _lost(store, found, told)
    return wrong


def _gaps(offsets: list[int], lowest: int, end: int) -> str:
    missing = sorted(set(range(lowest, end)) - set(offsets))
    return f"{len(missing)} missing, the first is {missing[0]}" if missing else f"{len(offsets)} records"


def _doubled(place: Place, records: list[Record]) -> list[str]:
    count = Counter(each.value for each in records)
    return [f"{place}: {value!r:.40} is there {n} times" for value, n in count.items() if n > 1]


def _reordered(place: Place, records: list[Record]) -> list[str]:
    last: dict[bytes, int] = {}
    wrong = []
    for each in records:
        writer, number, _ = (each.value or b"").split(b":", 2)
        if last.get(writer, -1) >= int(number):
            wrong.append(f"{place}: {each.value!r:.40} at {each.offset} comes after a later one")
        last[writer] = int(number)
    return wrong


def _lost(store: ObjectStore, found: Mapping[Place, list[Record]], told: Told) -> list[str]:
    wrong = []
    by_offset = {place: {each.offset: each for each in records} for place, records in found.items()}
    newest = {each.key: each.offset for each in found[KEYED, 0]}
    lowest = store.topic(SHORT).partition(0).lowest_offset
    for value, (place, offset) in told.acked.items():
        record = by_offset[place].get(offset)
        if record is not None and record.value == value:
            continue
        key = value.rpartition(b"key=")[2].rstrip(b".")
        if place[0] == KEYED and record is None and newest.get(key, -1) > offset:
            continue
        if place[0] == SHORT and offset < lowest:
            continue
        wrong.append(f"{place}: {value!r:.40} was acknowledged at {offset}, where {record and record.value!r:.40} is")
    return wrong


def wrong_with_readers(store: ObjectStore, folder: Path) -> list[str]:
    """List readers whose bytes differ from the stored ones."""
    wrong = []
    for number in range(PARTITIONS[PLAIN]):
        whole, at, part = bytearray(), 0, store.topic(PLAIN).partition(number)
        while at < part.visible_offset:
            page = part.fetch(at)
            whole += page.raw
            at = page.next_offset
        for file in folder.glob(f"read-*.{number}.seen"):
            seen = file.read_bytes()
            if whole[: len(seen)] != seen:
                wrong.append(f"{file.name} has other bytes than there are")
    return wrong


def wrong_with_digests(one: ObjectStore, other: ObjectStore) -> list[str]:
    """List processes that have computed different states."""
    states = [each._session.look(lambda state: (state.number, state.digest), fresh=True) for each in (one, other)]
    return [] if states[0] == states[1] else [f"two processes have computed {states[0]} and {states[1]}"]


class Stored(Protocol):
    """Access to the content of a bucket, for damaging it."""

    #: The bytes of each object, and the time of its creation.
    objects: dict[str, tuple[bytes, float]]


def wrong_with_proofs(store: ObjectStore, bucket: Stored) -> list[str]:
    """Damage and delete objects whose blocks are cached, and list the operations that wrongly do not notice."""
    wrong = []
    for topic, count in PARTITIONS.items():
        for number in range(count):
            partition = store.topic(topic).partition(number)
            before = [record.value for record in partition.scan()]
            for extent in partition._extents(partition.lowest_offset, partition.visible_offset)[:_DAMAGED]:
                whole = bucket.objects[extent.key]
                at = extent.position + extent.size_bytes - 3  # in the last record
                flipped = whole[0][:at] + bytes([whole[0][at] ^ 1]) + whole[0][at + 1 :]
                bucket.objects[extent.key] = flipped, whole[1]
                wrong += [f"{extent.key} is damaged, and {each}" for each in _believed(store, partition, before)]
                del bucket.objects[extent.key]
                wrong += [f"{extent.key} is lost, and {each}" for each in _believed(store, partition, before)]
                bucket.objects[extent.key] = whole
    return wrong


def _believed(store: ObjectStore, partition: ObjectPartition, before: list[bytes | None]) -> Iterator[str]:
    """List the operations that do not notice a changed object of a partition."""
    replica = TieredLog(store._session, "", partition._topic, partition._id, partition._number, LogConfig())
    try:
        for _ in replica.chunks(partition.lowest_offset, partition.visible_offset, committed=False, cached=False):
            pass
        yield f"tiering would delete the only copy of {partition.path}"
    except SawlogError:
        pass
    if partition.verify().ok:
        yield f"verification of {partition.path} finds nothing"
    if [record.value for record in partition.scan()] != before:
        yield f"a reader gets other records of {partition.path} from the cache"


def wrong_with_bucket(session: StoreSession) -> list[str]:
    """List missing objects that are referenced, and remaining objects that are not, after collection is done."""
    bucket = session.bucket
    state: State = session.look(lambda state: state, fresh=True)
    referenced = state.referenced()
    wrong = [f"{key} is referred to, and gone" for key in sorted(referenced) if bucket.get(key) is None]
    for prefix in (STAGED, SEGMENTS):
        left = [each.key for each in bucket.list(prefix) if each.key not in referenced]
        wrong += [f"{key} is not referred to, and stays" for key in left]
    wrong += [f"{each.key} stays" for each in bucket.list(GARBAGE)]
    listed = checkpoints.listed(bucket)
    confirmed = [each for each in listed if checkpoints.is_confirmed(bucket, each)]
    if len(confirmed) > 2:
        wrong.append(f"{len(confirmed)} confirmed checkpoints stay")
    if len(confirmed) == 2:
        wrong += _old_commits(bucket, confirmed[1].number, referenced)
    return wrong


def _old_commits(bucket: Bucket, behind: int, referenced: set[str]) -> list[str]:
    left = [each.key for each in bucket.list(COMMITS) if each.key < commit_key(behind) and each.key not in referenced]
    return [f"{key} is behind two checkpoints, and stays" for key in left]
