"""`FastReader` returns the same records and pages as the general steps of `Reader`.

A reader whose `_fast` returns nothing takes only the general steps; here it judges one that uses `FastReader`.
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from sawlog import Log, Record
from sawlog.batch.header import BatchHeader, scan
from sawlog.config import Isolation
from sawlog.errors import CorruptBatch, LogClosed, OffsetOutOfRange, RecordRemoved
from sawlog.log.reader import Fetched
from sawlog.storage.file import FileStorage
from sawlog.store.directory.store import DirectoryStore

from ..places import FilePlace, Place
from ..transactional import send


class Nothing:
    """Stands in for `FastReader` and never has a result."""

    def read(self, offset: Any, committed: Any) -> None:
        return None

    def page(self, offset: Any, max_bytes: Any, committed: Any) -> None:
        return None

    def part(self, offset: Any, max_bytes: Any, end_offset: Any) -> None:
        return None


class Counted:
    """`FastReader`, counting its results."""

    def __init__(self, log: Log) -> None:
        self._real, self.answers = log._access.reader._fast, 0
        log._access.reader._fast = self

    def _counted(self, found: Any) -> Any:
        self.answers += found is not None
        return found

    def read(self, offset: Any, committed: Any) -> Any:
        return self._counted(self._real.read(offset, committed))

    def page(self, offset: Any, max_bytes: Any, committed: Any) -> Any:
        return self._counted(self._real.page(offset, max_bytes, committed))

    def part(self, offset: Any, max_bytes: Any, end_offset: Any) -> Any:
        return self._counted(self._real.part(offset, max_bytes, end_offset))


def filled(place: Place, seed: int, **settings: Any) -> Log:
    """Batches of all sizes, in several segments, of which the last is active."""
    rng = random.Random(seed)
    log = place.open(segment_bytes=150_000, index_interval_bytes=1000, segment_age_ms=None, **settings)
    while log.size_bytes < 400_000:
        count = rng.choice([1] * 40 + [3, 90, 700])
        value = rng.randbytes(rng.choice([5, 40, 150, 800]) if count < 90 else 20)
        log.append_many([(value, b"key", (), 1_700_000_000_000)] * count)
    return log


def same(one: Fetched, other: Fetched) -> bool:
    return (one.raw, *one[1:]) == (other.raw, *other[1:])


CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "compressed": {"compression": "lz4"},
    "one mapped": {"max_mapped_segments": 1},
    "none mapped": {"max_mapped_segments": 0},
}


@pytest.mark.sampled(2)  # 0.5 s each
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_reads_and_pages_are_those_of_the_general_steps(
    file_place: FilePlace, settings: dict[str, Any], seed: int
) -> None:
    rng = random.Random(seed)
    log = filled(file_place, seed, **settings)
    with Log.open(log.path, log.config, mode="r") as reader:
        counted = Counted(log), Counted(reader)
        judge = Log.open(log.path, log.config, mode="r")
        judge._access.reader._fast = Nothing()
        for number in range(250):
            offset, most = rng.randrange(log.next_offset), rng.choice([1, 100, 3000, 20_000, 100_000, 10**6])
            if number % 25 == 0:
                log.append(b"more")
                assert reader.visible_offset == judge.visible_offset == log.next_offset
            for each in (log, reader):
                assert each.read(offset) == judge.read(offset)
                assert same(each.fetch(offset, most), judge.fetch(offset, most)), (offset, most)
        for each in counted:
            assert each.answers > 450
        judge.close()


def outcome(log: Log, offset: int, isolation: Isolation = "committed") -> object:
    try:
        return log.read(offset, isolation=isolation)
    except (RecordRemoved, OffsetOutOfRange) as error:
        return type(error), str(error)


def test_what_compaction_removed_is_said_to_be_removed(file_place: FilePlace) -> None:
    rng = random.Random(1)
    log = file_place.open(segment_bytes=9000, segment_age_ms=None)
    for _ in range(400):
        log.append(rng.randbytes(20), b"%d" % rng.randrange(30))
    log.seal()
    log.compact()
    with Log.open(log.path, log.config, mode="r") as judge:
        judge._access.reader._fast = Nothing()
        found = [outcome(log, offset) for offset in range(400)]
        assert found == [outcome(judge, offset) for offset in range(400)]
    assert any(isinstance(each, tuple) for each in found)
    assert any(isinstance(each, Record) for each in found)


@pytest.mark.alternating
@pytest.mark.parametrize("decided", [True, False])
def test_transactions_are_those_of_the_general_steps(file_place: FilePlace, decided: bool) -> None:
    """Of the writer, and of a reader that does not know of any when all of them are decided."""
    rng = random.Random(decided)
    log = file_place.open(segment_bytes=60_000, index_interval_bytes=1000, segment_age_ms=None)
    for number in range(700):
        log.append(rng.randbytes(100))
        if number % 60 == 0:
            send(log, [b"in a transaction"] * rng.choice([1, 300]), 7)
        elif number % 60 == 40:
            log.append_marker(7, 0, commit=rng.random() < 0.5)
    if decided:
        log.append_marker(7, 0, commit=False)
    log.seal()
    log.append(b"after all")
    judge = Log.open(log.path, log.config, mode="r")
    judge._access.reader._fast = Nothing()
    with Log.open(log.path, log.config, mode="r") as reader:
        counted = Counted(reader)
        for offset in (0, 0, *rng.choices(range(log.next_offset), k=300)):
            most = rng.choice([1, 3000, 50_000, 10**6])
            isolation: Isolation = rng.choice(["committed", "uncommitted"])
            expected = outcome(judge, offset, isolation)
            page = None if offset > judge.last_stable_offset else judge.fetch(offset, most, isolation=isolation)
            for each in (log, reader):
                assert outcome(each, offset, isolation) == expected
                if page is not None:
                    assert same(each.fetch(offset, most, isolation=isolation), page), (offset, most)
        assert counted.answers > 0
    judge.close()


def test_records_have_their_topic(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path) as store:
        topic = store.create_topic("orders", partitions=3, durability="os")
        log = topic.partition(2)
        offsets = [log.append(b"%d" % number) for number in range(20)]
        log.seal()
        log.read(offsets[0])  # opens the segment
        counted = Counted(log)
        record = log.read(offsets[7])
        assert (record.topic, record.partition, record.value) == ("orders", 2, b"7")
        assert counted.answers == 1


@pytest.mark.parametrize("offset", [-1, 10**9, 2**63, 2**70, -(2**70)])
def test_offsets_that_are_not_there_are_refused(file_place: FilePlace, offset: int) -> None:
    log = filled(file_place, 1)
    with pytest.raises(OffsetOutOfRange):
        log.read(offset)
    with pytest.raises(OffsetOutOfRange):
        log.fetch(offset)


def test_what_is_trimmed_truncated_or_not_visible_is_refused(file_place: FilePlace) -> None:
    log = filled(file_place, 2)
    log.trim(100)
    end = log.next_offset
    log.truncate(end - 5)
    for offset in (99, end - 5, end - 1):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset)
    with log._appending():
        at = log.append(b"not yet")
        with pytest.raises(OffsetOutOfRange):
            log.read(at)
        assert log.fetch(at).raw == b""
    assert log.read(at).value == b"not yet"
    log.close()
    with pytest.raises(LogClosed):
        log.read(at)
    with pytest.raises(LogClosed):
        log.fetch(at)


def test_a_page_and_a_read_stop_at_the_visible_end_inside_a_sealed_segment(file_place: FilePlace) -> None:
    log = file_place.open(segment_bytes=20_000, segment_age_ms=None)
    offsets = [log.append(b"x" * 50) for _ in range(100)]
    with log._appending() as end:
        while len(log.segments) < 3:
            log.append(b"y" * 50)
        log.read(0)  # opens the segment
        log.fetch(0)
        counted = Counted(log)
        page = log.fetch(0, 10**6)
        assert page.next_offset == end == len(offsets)
        assert scan(page.raw)[-1].last_offset == end - 1
        assert log.read(end - 1)
        assert counted.answers == 2
        for offset in (end, end + 1):
            with pytest.raises(OffsetOutOfRange):
                log.read(offset)


def test_what_the_active_segment_has_mapped_is_not_used_after_it_was_cut(file_place: FilePlace) -> None:
    log = file_place.open(segment_age_ms=None)
    for number in range(3000):
        log.append(b"%d " % number * 100)
    for number in range(3000):  # until it is mapped
        assert log.read(number).value == b"%d " % number * 100
    counted = Counted(log)
    assert log.read(2000)
    assert counted.answers == 1
    for number in range(3000, 3050):  # after what is mapped
        log.append(b"%d " % number * 100)
        assert log.read(number).value == b"%d " % number * 100
        assert log.fetch(number).next_offset == number + 1
    log.truncate(1000)
    for number in range(1000, 1100):
        log.append(b"other %d" % number)
        assert log.read(number).value == b"other %d" % number
    assert [record.offset for record in log.scan(990)] == list(range(990, 1100))
    with pytest.raises(OffsetOutOfRange):
        log.read(1100)


def places_of(path: Path) -> list[tuple[int, BatchHeader]]:
    """Return position and header of each batch of a segment."""
    found, at = [], 0
    for header in scan(path.read_bytes()):
        found.append((at, header))
        at += header.size_bytes
    return found


@pytest.mark.parametrize("seed", range(4))
def test_damage_is_found_unless_the_batch_was_compared_before(file_place: FilePlace, seed: int) -> None:
    """A batch that no page and no read had before is never returned damaged, whatever was remembered of others."""
    rng = random.Random(seed)
    log = filled(file_place, seed)
    log.seal()
    segment = log.segments[0]
    batches = places_of(Path(segment.path))
    seen: set[int] = set()
    for _ in range(30):
        page = log.fetch(rng.randrange(segment.next_offset), rng.choice([1, 9000, 60_000]))
        seen |= {header.base_offset for header in scan(page.raw)}
    data = bytearray(Path(segment.path).read_bytes())
    with Path(segment.path).open("r+b") as file:
        for at, header in rng.sample(batches, min(60, len(batches))):
            file.seek(at + 64)
            file.write(bytes([data[at + 64] ^ 1]))
            file.flush()
            before = max(header.base_offset - rng.randrange(60), 0)
            try:
                found = {each.base_offset for each in scan(log.fetch(before, 30_000).raw)}
            except CorruptBatch:
                found = set()
            assert header.base_offset not in found or header.base_offset in seen
            seen |= found
            file.seek(at + 64)
            file.write(bytes([data[at + 64]]))
            file.flush()
    assert len(seen) > 20


def test_a_page_is_whole_while_other_threads_map_the_file_again(file_place: FilePlace) -> None:
    """A walk lets other threads run; its bytes stay mapped until it has ended."""
    log = file_place.open(segment_age_ms=None)
    for number in range(5000):
        log.append(b"%d " % number * 20)
    storage = cast("FileStorage", log._access.reader.segments.active.storage)
    done, pages = threading.Event(), 500

    def mapping() -> None:
        while not done.is_set():
            storage._remap(storage.size)

    with ThreadPoolExecutor(1) as pool:
        mapped = pool.submit(mapping)
        try:
            for number in range(pages):
                page = log.fetch(number, 10**6)
                assert page.next_offset == log.next_offset
                assert log.read(number).value == b"%d " % number * 20
        finally:
            done.set()
        mapped.result()
