"""The recovery table is complete, and each of its rows happens: on a real directory, damaged by hand.

A log of thirteen records in three segments is closed cleanly, or copied while it is open (as a killed process leaves
it); then one thing is damaged; then it is opened. Whatever the row says about the damage, every readable record is
read, no offset is reused, and nothing reported is deleted.

Two rows cannot be found by opening: a cleanly closed log is not read through (it may be large), so damage inside its
sealed segments is reported when it is read; only their sizes are compared. The promise of the row holds: nothing is
deleted, and the rest is served.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from sawlog import Log
from sawlog.batch import kernel
from sawlog.errors import CorruptBatch
from sawlog.log.checkpoint import Checkpoint
from sawlog.log.epochs import Epochs
from sawlog.log.recovery import RECOVERY_ACTIONS, Action, Where
from sawlog.log.remote import UNKNOWN

from ..places import INDEX, TIME_INDEX, Place, fill, named, values

#: The replacement of the segments with offsets from 0 to 9.
SWAPPED = f"{0:020d}-{10:020d}.log"
#: Content of the log's checkpoint when the list of leader epochs is missing or damaged.
EPOCHS = Epochs(((0, 0), (3, 13)))
RECORDS = [b"%d" % i + b"." * (10 - len(b"%d" % i)) for i in range(13)]


def mark(place: Place, *, clean: bool, durable: int, segment: int, position: int, log_start: int = 0) -> None:
    """Write another checkpoint."""
    place.write("checkpoint", Checkpoint(clean, durable, segment, position, log_start).encode())


def built(place: Place, closed: bool) -> Place:
    """Segments 0 to 4, 5 to 9, 10 to 12; closed cleanly, or as a killed process leaves it."""
    log = place.open(index_interval_bytes=100)
    for start, count in ((0, 5), (5, 5), (10, 3)):
        if start:
            log.seal()
        fill(log, count, start=start)
    assert values(log) == RECORDS
    if closed:
        log.close()
    return place.copy()


def end_of_last(place: Place) -> int:
    return len(place.files()[named(10)])


# --- the damage; each says which offsets cannot be read afterwards


def tail_above_watermark(place: Place, closed: bool) -> set[int]:
    place.extend(named(10), b"\0\0\0\0\0\0\0\x0d garbage")
    return set()


def tail_below_watermark(place: Place, closed: bool) -> set[int]:
    if closed:
        place.cut(named(10), end_of_last(place) - 1)
        return {12}
    mark(place, clean=False, durable=13, segment=10, position=end_of_last(place))
    place.flip(named(10), place.batches(10)[1].position + 65)
    return {11}


def tail_below_visible(place: Place, closed: bool) -> set[int]:
    """Older files were restored over newer ones; or, if the process was killed, the end of the last segment is gone."""
    end = place.batches(10)[2].position
    place.cut(named(10), end)
    mark(place, clean=closed, durable=12 if closed else 10, segment=10, position=end if closed else 0)
    return {12}


def beginning(place: Place, closed: bool) -> set[int]:
    mark(place, clean=closed, durable=13, segment=10, position=end_of_last(place))
    for name in (named(0), named(0, INDEX), named(0, TIME_INDEX)):
        place.remove(name)
    return set(range(5))


def all_segments(place: Place, closed: bool) -> set[int]:
    mark(place, clean=closed, durable=13, segment=10, position=end_of_last(place))
    for name in place.names():
        if name.startswith("0"):
            place.remove(name)
    return set(range(13))


def sealed_segment(place: Place, closed: bool) -> set[int]:
    if not closed:  # a watermark from before the segment was sealed
        mark(place, clean=False, durable=5, segment=5, position=0)
    place.flip(named(5), place.batches(5)[2].position + 65)
    return {7}


def gap_between_segments(place: Place, closed: bool) -> set[int]:
    if not closed:
        mark(place, clean=False, durable=5, segment=5, position=0)
    place.cut(named(5), place.batches(5)[4].position)
    return {9}


def overlap_of_segments(place: Place, closed: bool) -> set[int]:
    if not closed:
        mark(place, clean=False, durable=5, segment=5, position=0)
    last = place.files()[named(10)]
    place.extend(named(5), last[: place.batches(10)[2].position])
    return set()


def index(place: Place, closed: bool) -> set[int]:
    place.remove(named(0, INDEX))
    return set()


def checkpoint(place: Place, closed: bool) -> set[int]:
    place.flip("checkpoint", 30)
    return set()


def producers(place: Place, closed: bool) -> set[int]:
    place.flip("producers", 5)
    return set()


def epochs(place: Place, closed: bool) -> set[int]:
    """The log is in a later epoch, and the list of epochs is damaged; or missing, if the process was killed."""
    saved = Checkpoint.decode(place.files()["checkpoint"])
    place.write("checkpoint", replace(saved, leader_epoch=EPOCHS.current, epochs_crc=EPOCHS.crc).encode())
    if closed:
        place.write("leader-epoch-checkpoint", EPOCHS.encode()[:-3])
    return set()


def truncation(place: Place, closed: bool) -> set[int]:
    """A truncation to thirteen records had begun, and one more record is in the log. If the checkpoint says that the
    log was closed since, that is impossible, and nothing is cut."""
    start = 10 if closed else 13
    if not closed:
        last = place.batches(10)[2]
        more = bytearray(place.files()[named(10)][last.position :])
        kernel.patch_place(more, 0, 13, 0)
        place.extend(named(10), bytes(more))
    begun = Epochs().begun(1, start)
    place.write("leader-epoch-checkpoint", begun.encode())
    position = 0 if closed else place.batches(10)[3].position
    place.write("checkpoint", Checkpoint(closed, start, 10, position, 0, 1, begun.crc).encode())
    return set()


def swap(place: Place, closed: bool) -> set[int]:
    """The first two segments were being replaced by one; the second is gone already, and the index of the first."""
    files = place.files()
    place.write(SWAPPED + ".swap", files[named(0)] + files[named(5)])
    for name in (named(5), named(5, INDEX), named(5, TIME_INDEX), named(0, INDEX)):
        place.remove(name)
    return set()


def damaged_swap(place: Place, closed: bool) -> set[int]:
    files = place.files()
    data = bytearray(files[named(0)] + files[named(5)])
    data[len(data) // 2] ^= 1
    place.write(SWAPPED + ".swap", bytes(data))
    return set()


def remote(place: Place, closed: bool) -> set[int]:
    place.write("remote", b"not a list of segments")
    return set()


def leftover(place: Place, closed: bool) -> set[int]:
    for name in (named(10) + ".tmp", named(20) + ".deleted", "checkpoint.tmp", named(0, INDEX) + ".tmp"):
        place.write(name, b"left over")
    return set()


def stranger(place: Place, closed: bool) -> set[int]:
    place.write("README.txt", b"mine")
    return set()


DAMAGE: dict[Where, Callable[[Place, bool], set[int]]] = {
    Where.TAIL_ABOVE_WATERMARK: tail_above_watermark,
    Where.TAIL_BELOW_WATERMARK: tail_below_watermark,
    Where.TAIL_BELOW_VISIBLE: tail_below_visible,
    Where.BEGINNING: beginning,
    Where.ALL_SEGMENTS: all_segments,
    Where.SEALED_SEGMENT: sealed_segment,
    Where.GAP_BETWEEN_SEGMENTS: gap_between_segments,
    Where.OVERLAP_OF_SEGMENTS: overlap_of_segments,
    Where.INDEX: index,
    Where.CHECKPOINT: checkpoint,
    Where.PRODUCERS: producers,
    Where.EPOCHS: epochs,
    Where.TRUNCATION: truncation,
    Where.SWAP: swap,
    Where.DAMAGED_SWAP: damaged_swap,
    Where.REMOTE: remote,
    Where.LEFTOVER: leftover,
    Where.STRANGER: stranger,
}

#: All records can be read, but there are bytes that belong to nobody; `verify` says so.
SUPERFLUOUS = {(Where.TAIL_ABOVE_WATERMARK, True), (Where.OVERLAP_OF_SEGMENTS, True)}

#: Found by reading, not by opening.
UNSEEN = {
    (Where.SEALED_SEGMENT, True),
    (Where.OVERLAP_OF_SEGMENTS, True),
}


def test_table_is_exhaustive() -> None:
    assert set(RECOVERY_ACTIONS) == set(product(Where, (False, True)))
    assert set(DAMAGE) == set(Where)
    assert set(RECOVERY_ACTIONS.values()) == set(Action)


@pytest.mark.alternating
@pytest.mark.parametrize(
    ("where", "closed"),
    list(product(Where, (False, True))),
    ids=lambda x: getattr(x, "name", "closed" if x else "killed"),
)
def test_row(place: Place, where: Where, closed: bool) -> None:
    damaged = built(place, closed)
    action = RECOVERY_ACTIONS[where, closed]
    unreadable = DAMAGE[where](damaged, closed)
    before = damaged.files()
    log = damaged.open(index_interval_bytes=100)

    found = {(finding.where, finding.action) for finding in log.recovery.findings}
    if (where, closed) in UNSEEN:
        assert where not in {each for each, _ in found}
    else:
        assert (where, action) in found
        assert bool(log.recovery) == (action not in (Action.REPORT, Action.RESERVE, Action.SET_ASIDE))
        assert str(where.value) in str(log.recovery)

    serves_the_rest(log, unreadable)
    # Without the list of tiered segments, all local records are readable, but the start of the log is unknown.
    is_complete = not unreadable and where is not Where.REMOTE
    assert log.verify().ok == (is_complete and (where, closed) not in SUPERFLUOUS)
    CHECKS[action](damaged, log, where, before)
    goes_on(damaged, log, unreadable)


def serves_the_rest(log: Log, unreadable: set[int]) -> None:
    assert (log.lowest_offset, log.next_offset) == (0, 13)
    for offset in range(13):
        if offset in unreadable:
            with pytest.raises(CorruptBatch):
                log.read(offset)
        else:
            assert log.read(offset).value == RECORDS[offset]
    seen: list[bytes | None] = []
    offset = 0
    for _ in range(len(unreadable) + 1):
        try:
            for record in log.scan(offset):
                assert record.offset >= offset
                seen.append(record.value)
                offset = record.offset + 1
        except CorruptBatch as error:
            assert error.next_offset is not None
            offset = error.next_offset
    assert seen == [value for i, value in enumerate(RECORDS) if i not in unreadable]


def goes_on(place: Place, log: Log, unreadable: set[int]) -> None:
    """A new record gets an offset of its own, and the next open has nothing new to repair."""
    assert log.append(b"next") == 13
    if not unreadable:
        assert values(log.scan()) == [*RECORDS, b"next"]
    log.close()
    log = place.open(index_interval_bytes=100)
    assert log.next_offset == 14
    assert [log.read(i).value for i in range(13) if i not in unreadable] == [
        value for i, value in enumerate(RECORDS) if i not in unreadable
    ]
    assert log.read(13).value == b"next"
    assert log.recovery.clean
    assert log.recovery.truncated_bytes == log.recovery.rebuilt_indexes == 0


def cut_aside(place: Place, log: Log, where: Where, before: dict[str, bytes]) -> None:
    assert log.recovery.torn_files == (named(10) + ".torn",)
    kept, torn = place.files()[named(10)], place.files()[named(10) + ".torn"]
    assert kept + torn == before[named(10)]
    assert log.recovery.truncated_bytes == len(torn) > 0


def report(place: Place, log: Log, where: Where, before: dict[str, bytes]) -> None:
    after = place.files()
    for name, data in before.items():
        if name.endswith(".log"):
            assert after[name] == data
    assert log.recovery.truncated_bytes == 0


def finish(place: Place, log: Log, where: Where, before: dict[str, bytes]) -> None:
    after = place.files()
    if where is Where.SWAP:
        assert place.bases() == [0, 10]
        assert after[named(0)] == before[SWAPPED + ".swap"]
        assert {SWAPPED + ".swap", named(5, INDEX), named(5, TIME_INDEX)}.isdisjoint(after)
        return
    if where is Where.TRUNCATION:
        assert before[named(10)].startswith(after[named(10)])
        assert len(place.batches(10)) == 3
        assert log._leader_epochs == ((0, 0), (log.leader_epoch, 13))
        return
    assert before[named(5)].startswith(after[named(5)])
    assert len(place.batches(5)) == 5
    assert after[named(10)] == before[named(10)]


def set_aside(place: Place, log: Log, where: Where, before: dict[str, bytes]) -> None:
    after = place.files()
    assert after[SWAPPED + ".quarantined"] == before[SWAPPED + ".swap"]
    assert SWAPPED + ".swap" not in after
    assert [after[named(base)] for base in (0, 5, 10)] == [before[named(base)] for base in (0, 5, 10)]


def rebuild(place: Place, log: Log, where: Where, before: dict[str, bytes]) -> None:
    after = place.files()
    if where is Where.INDEX:
        assert {named(0, INDEX), named(0, TIME_INDEX)} <= set(after)
        assert log.recovery.rebuilt_indexes >= 1
    elif where is Where.CHECKPOINT:
        assert Checkpoint.decode(after["checkpoint"]).durable_offset == 13
    elif where is Where.EPOCHS:
        assert log._leader_epochs[0] == (0, 0)
        assert log._leader_epochs[-1] == (log.leader_epoch, 13)
        assert log.leader_epoch == (3 if log.recovery.clean else 4), "no number is used twice"
        assert after["leader-epoch-checkpoint"] == Epochs(log._leader_epochs).encode()
    else:
        log.seal()
        log.append(b"x")
        log.truncate(13)
        assert place.files()["producers"].startswith(b"sawlog producers 2 13\n")


def remove(place: Place, log: Log, where: Where, before: dict[str, bytes]) -> None:
    assert not [name for name in place.names() if name.endswith((".tmp", ".deleted"))]


def ignore(place: Place, log: Log, where: Where, before: dict[str, bytes]) -> None:
    assert place.files()["README.txt"] == b"mine"


def ask(place: Place, log: Log, where: Where, before: dict[str, bytes]) -> None:
    """The file is kept until the replica has listed its segments."""
    assert place.files()["remote"] == before["remote"]
    assert log._segment_set.remote is UNKNOWN


CHECKS: dict[Action, Callable[[Place, Log, Where, dict[str, bytes]], None]] = {
    Action.CUT_ASIDE: cut_aside,
    Action.REPORT: report,
    Action.RESERVE: report,
    Action.FINISH: finish,
    Action.REBUILD: rebuild,
    Action.SET_ASIDE: set_aside,
    Action.REMOVE: remove,
    Action.ASK: ask,
    Action.IGNORE: ignore,
}


def test_sound_log_has_no_finding(place: Place) -> None:
    for closed in (True, False):
        log = built(place, closed).open(index_interval_bytes=100)
        assert log.recovery.findings == []
        assert log.recovery.clean == closed
        assert bool(log.recovery)
        assert str(log.recovery).startswith("closed cleanly" if closed else "not closed cleanly")
        place.close()
        for name in place.names():
            place.remove(name)
