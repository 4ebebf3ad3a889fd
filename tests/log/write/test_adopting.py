"""A file of finished batches becomes a segment without being copied, and only if it can be one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from sawlog import Log, LogConfig, Producer
from sawlog.batch.build import encode
from sawlog.errors import LogFailed, OffsetMismatch, StorageError
from sawlog.storage import Directory
from sawlog.storage.file import FileDirectory

from ...faults.disk import FaultyStorage
from ..places import FilePlace, Place, named, values

NAMES = [b"%d" % number for number in range(12)]


def staged(place: Place, *batches: bytes, name: str = "batches") -> Directory:
    """A file beside the log's directory, as tasks leave it."""
    root = FileDirectory(str(place.path.parent)) if isinstance(place, FilePlace) else place.directory()
    area = root.child("staging", create=True)
    area.replace(name, b"".join(batches))
    return area


def adopted(log: Log, area: Directory, name: str = "batches") -> range | None:
    with log._hold():
        file = log._number_file(area, name, log.next_offset)
        if file is None:
            return None
        file.sync()
        return log._adopt_file(file)


def three() -> tuple[bytes, ...]:
    return encode(NAMES[:4]), encode(NAMES[4:5], compression="gzip"), encode(NAMES[5:])


@pytest.mark.parametrize("before", [0, 1, 5])
def test_its_records_follow_what_is_there_and_more_follow_them(place: Place, before: int) -> None:
    log = place.open()
    for number in range(before):
        log.append(b"before %d" % number)
    assert adopted(log, staged(place, *three())) == range(before, before + 12)
    log.append(b"after")
    expected = [*(b"before %d" % number for number in range(before)), *NAMES, b"after"]
    for reader in (log, place.open(mode="r")):
        assert values(reader.scan()) == expected
        assert [record.offset for record in reader.scan()] == list(range(before + 13))
        assert reader.read(before + 4).value == NAMES[4]
        assert reader.verify().ok
    log.close()
    assert values(place.open().scan()) == expected


def test_it_is_a_segment_of_its_own_with_indexes(place: Place) -> None:
    log = place.open(index_interval_bytes=1)
    log.append(b"before")
    adopted(log, staged(place, *three()))
    log.append(b"after")
    assert place.bases() == [0, 1, 13]
    assert {named(1, ".index"), named(1, ".timeindex")} <= set(place.names())
    assert [each.base_offset for each in place.batches(1)] == [1, 5, 6]


def test_the_file_keeps_its_other_name_and_truncation_leaves_it_alone(place: Place) -> None:
    log = place.open()
    log.append(b"before")
    area = staged(place, *three())
    adopted(log, area)
    numbered = area.read("batches")
    log.truncate(3)
    log.append(b"after")
    assert values(log.scan()) == [b"before", *NAMES[:2], b"after"]
    log.truncate(1)
    assert area.read("batches") == numbered
    assert adopted(log, area) == range(1, 13)
    assert values(log.scan()) == [b"before", *NAMES]


def test_batches_belong_to_the_leader_epoch_in_which_they_are_adopted(place: Place) -> None:
    log = place.open()
    log.append_many(NAMES)
    log.truncate(4)
    adopted(log, staged(place, *three()))
    assert log.leader_epoch == 1
    assert {each.leader_epoch for each in place.batches(4)} == {1}


def test_it_is_a_part_of_an_append_and_is_rolled_back_with_it(place: Place) -> None:
    log = place.open()
    log.append(b"before")
    area = staged(place, *three())
    with suppress(ZeroDivisionError), log._appending():
        log.append(b"a part")
        adopted(log, area)
        assert (log.visible_offset, log.next_offset) == (1, 14)
        raise ZeroDivisionError
    assert (values(log.scan()), log.next_offset) == ([b"before"], 1)
    with log._appending():
        adopted(log, area)
        log.append(b"after")
        assert values(log.scan()) == [b"before"]
    assert values(log.scan()) == [b"before", *NAMES, b"after"]


@pytest.mark.parametrize(
    ("settings", "batches"),
    [
        ({"segment_bytes": 100}, [encode([b"x" * 60]), encode([b"x" * 60])]),
        ({"timestamp_type": "append"}, [encode(NAMES)]),
        ({"max_index_bytes": 24, "index_interval_bytes": 1}, list(three())),
        ({}, [encode(NAMES, producer=Producer(7, 0, 0))]),
        ({}, []),
    ],
    ids=["too large", "the log's own time", "too long an index", "of a producer", "empty"],
)
def test_what_cannot_be_a_segment_here_is_left_as_it_is(
    place: Place, settings: dict[str, Any], batches: list[bytes]
) -> None:
    log = place.open(**settings)
    area = staged(place, *batches)
    assert adopted(log, area) is None
    assert (area.read("batches"), log.next_offset) == (b"".join(batches), 0)


def test_a_file_that_was_numbered_for_another_offset_is_refused(place: Place) -> None:
    log = place.open()
    file = log._number_file(staged(place, *three()), "batches", 0)
    log.append(b"before")
    assert file is not None
    with pytest.raises(OffsetMismatch):
        log._adopt_file(file)
    assert values(log.scan()) == [b"before"]


def test_where_files_have_one_name_only_nothing_happens(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("not supported here")

    log = place.open()
    log.append(b"before")
    area = staged(place, *three())
    monkeypatch.setattr(type(area), "link", refuse)
    assert adopted(log, area) is None
    log.append(b"after")
    assert values(log.scan()) == [b"before", b"after"]


def test_a_log_that_has_lost_its_segment_half_way_takes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the empty segment was given to the file, and then the disk failed."""

    def failing(*_: object) -> None:
        raise StorageError("the disk has failed")

    disk = FaultyStorage()
    log = Log.open(disk.child("log", create=True), LogConfig(durability="os"))
    area = disk.child("staging", create=True)
    area.replace("batches", b"".join(three()))
    file = log._number_file(area, "batches", 0)
    assert file is not None
    with monkeypatch.context() as patch:
        patch.setattr(type(area), "open", failing)
        with pytest.raises(StorageError):
            log._adopt_file(file)
    with pytest.raises(LogFailed):
        log.append(b"lost?")
    log.close()
    with Log.open(disk.child("log")) as again:
        assert values(again.scan()) == NAMES


def test_only_offsets_and_epoch_are_written_and_anything_in_their_place_is_no_matter(place: Place) -> None:
    """A power cut in the middle of it may leave garbage where something was being written."""
    log = place.open()
    log.append(b"before")
    before = b"".join(three())
    area = staged(place, before)
    file = log._number_file(area, "batches", 1)
    assert file is not None
    changing = {at + byte for at in _positions(before) for byte in (*range(8), *range(12, 16))}
    after = area.read("batches")
    assert {at for at in range(len(before)) if before[at] != after[at]} <= changing
    area.replace("batches", bytes(0xA5 if at in changing else byte for at, byte in enumerate(after)))
    assert adopted(log, area) == range(1, 13)
    assert values(log.scan()) == [b"before", *NAMES]


def _positions(batches: bytes) -> list[int]:
    found, at = [], 0
    while at < len(batches):
        found.append(at)
        at += 12 + int.from_bytes(batches[at + 8 : at + 12], "big")
    return found
