"""What must be true of a store, whatever was done to its processes: for what is simulated and for what is real."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sawlog.batch.kernel import Record
from sawlog.config import LogConfig
from sawlog.errors import SawlogError
from sawlog.store.objects.bucket.bucket import Bucket
from sawlog.store.objects.journal import checkpoints
from sawlog.store.objects.maintenance.collect import GARBAGE
from sawlog.store.objects.partition import ObjectPartition
from sawlog.store.objects.session import StoreSession
from sawlog.store.objects.state.commit import COMMITS, commit_key
from sawlog.store.objects.state.extents import SEGMENTS, STAGED
from sawlog.store.objects.state.state import State
from sawlog.store.objects.store import ObjectStore
from sawlog.store.objects.tiered import TieredLog

#: What the topics are for: all is kept; the last of each key; the newest bytes.
PLAIN, KEYED, SHORT = "plain", "keyed", "short"
PARTITIONS = {PLAIN: 2, KEYED: 1, SHORT: 1}

#: So many extents of each partition are damaged, one after the other.
_DAMAGED = 2

Place = tuple[str, int]


@dataclass
class Told:
    """What writers were told: where each value is."""

    acked: dict[bytes, tuple[Place, int]] = field(default_factory=dict)

    def note(self, place: Place, offsets: range, values: Iterable[bytes]) -> None:
        """These values were acknowledged."""
        for offset, value in zip(offsets, values, strict=True):
            self.acked[value] = (place, offset)


def value_of(writer: str, number: int, size: int) -> bytes:
    """A value that nobody else writes, and that says who wrote it and when."""
    return f"{writer}:{number:08}:".encode().ljust(size, b".")


def found_in(store: ObjectStore) -> dict[Place, list[Record]]:
    """All records, by topic and partition."""
    return {
        (topic, number): list(store.topic(topic).partition(number).scan())
        for topic, count in PARTITIONS.items()
        for number in range(count)
    }


def wrong_with_records(store: ObjectStore, told: Told) -> list[str]:
    """Acknowledged records that are lost, doubled or in another order; offsets that are missing."""
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
    """Readers that have kept other bytes than there are."""
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
    """Processes that have computed different states."""
    states = [each._session.look(lambda state: (state.number, state.digest), fresh=True) for each in (one, other)]
    return [] if states[0] == states[1] else [f"two processes have computed {states[0]} and {states[1]}"]


class Stored(Protocol):
    """A bucket whose content a test can change."""

    #: The bytes of each object, and when it was stored.
    objects: dict[str, tuple[bytes, float]]


def wrong_with_proofs(store: ObjectStore, bucket: Stored) -> list[str]:
    """Objects that are damaged or lost while the cache has a good copy of their blocks: whoever must find that does."""
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
    """What does not notice that an object of a partition is not what it was."""
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
    """After a quiet time: what is referred to and not there, what is there and not referred to."""
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
