"""The last write did not get through: torn at any byte, padded with zeros, followed by garbage.

Without a clean mark, after a restart of the machine, it is a torn tail: cut, copied aside, and the log continues at the
offset that the torn batch would have had. With a clean mark, below the watermark, or below what readers have seen since
the machine started, the same bytes are corruption: reported, kept, and the offset is not used again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from sawlog import Log, Producer
from sawlog.batch.build import encode
from sawlog.errors import CorruptBatch
from sawlog.log import recovery
from sawlog.storage.published import WORDS_AT

from ..places import Place, fill, named, now_ms, values
from .test_recovery_table import mark

CHANCE = random.Random(4)
GARBAGE = [b"\0", b"\xff", b"\0" * 100, b"\xff" * 100, *(CHANCE.randbytes(size) for size in (60, 61, 500))]


def sizes(place: Place, base: int = 0) -> Iterator[int]:
    """Every length of the file at which its last batch is torn; on files every few of them."""
    last = place.batches(base)[-1]
    every = 1 if place.kind == "memory" else 13
    yield from range(last.position, last.position + last.size_bytes, every)


def last_batch(log: Log, kind: str) -> None:
    if kind == "one":
        log.append(b"last", b"key", [("h", b"v")])
    elif kind == "many":
        log.append_many([b"last"] * 5)
    elif kind == "stream":
        log.append_stream([b"la", b"st"])
    else:
        log.append_many([b"last" * 30] * 5)


@pytest.mark.alternating
@pytest.mark.sampled(3)  # 0.3 s each
@pytest.mark.parametrize("kind", ["one", "many", "stream", "packed"])
def test_power_cut_leaves_a_log_that_ends_before_the_torn_batch(place: Place, kind: str) -> None:
    log = place.open(compression="zstd" if kind == "packed" else "none")
    expected = fill(log, 4)
    last_batch(log, kind)
    for size in sizes(place):
        torn = place.copy(restarted=True)
        torn.cut(named(0), size)
        again = torn.open()
        assert values(again) == expected
        assert again.next_offset == 4
        assert bool(again.recovery)
        assert not again.recovery.clean
        assert again.recovery.truncated_bytes == size - place.batches()[-1].position
        assert again.verify()
        assert again.append(b"next") == 4
        torn.close()
        assert values(torn.open()) == [*expected, b"next"]
        torn.close()


def test_torn_batch_after_a_clean_close_is_corruption(place: Place) -> None:
    log = place.open()
    expected = fill(log, 5)
    log.close()
    for size in sizes(place):
        torn = place.copy()
        torn.cut(named(0), size)
        again = torn.open()
        assert not again.recovery
        assert values(again.scan(end=4)) == expected[:4]
        with pytest.raises(CorruptBatch):
            again.read(4)
        assert torn.files()[named(0)] == place.files()[named(0)][:size]
        assert again.append(b"next") == 5
        assert again.read(5).value == b"next"
        torn.close()


def test_torn_batch_that_readers_have_seen_is_lost_and_its_offset_is_not_used_again(place: Place) -> None:
    """The writer was killed, and the machine not restarted: nothing that was visible may be gone."""
    log = place.open()
    expected = fill(log, 5)
    for size in sizes(place):
        torn = place.copy()
        torn.cut(named(0), size)
        again = torn.open()
        assert [finding.where for finding in again.recovery.corruption] == [recovery.Where.TAIL_BELOW_VISIBLE]
        assert again.recovery.truncated_bytes == 0
        assert values(again.scan(end=4)) == expected[:4]
        with pytest.raises(CorruptBatch):
            again.read(4)
        assert again.append(b"next") == 5
        assert again.leader_epoch > log.leader_epoch
        torn.close()
        with torn.open(mode="r") as beside:
            assert not beside.verify()
            assert beside.read(5).value == b"next"


def test_torn_batch_below_the_watermark_is_corruption(place: Place) -> None:
    log = place.open()
    expected = fill(log, 5)
    end = len(place.files()[named(0)])
    for size in sizes(place):
        torn = place.copy()
        mark(torn, clean=False, durable=5, segment=0, position=end)
        torn.cut(named(0), size)
        again = torn.open()
        assert not again.recovery
        assert values(again.scan(end=4)) == expected[:4]
        with pytest.raises(CorruptBatch):
            again.read(4)
        assert again.append(b"next") == 5
        torn.close()


@pytest.mark.parametrize("watermark", range(6))
def test_everything_whole_is_kept_wherever_the_watermark_is(place: Place, watermark: int) -> None:
    """The watermark is a lower bound: complete batches above it were written, and may have been read."""
    log = place.open()
    expected = fill(log, 5)
    positions = [batch.position for batch in place.batches()] + [len(place.files()[named(0)])]
    for tail in (b"", *GARBAGE):
        torn = place.copy()
        mark(torn, clean=False, durable=watermark, segment=0, position=positions[watermark])
        torn.extend(named(0), tail)
        again = torn.open()
        assert values(again) == expected
        assert bool(again.recovery)
        assert again.recovery.truncated_bytes == len(tail)
        assert again.durable_offset == 5
        assert again.append(b"next") == 5
        assert again.verify()
        torn.close()


@pytest.mark.parametrize("tail", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_behind_a_killed_log_is_put_aside(place: Place, tail: bytes) -> None:
    log = place.open()
    expected = fill(log, 3)
    torn = place.copy()
    torn.extend(named(0), tail)
    again = torn.open()
    assert values(again) == expected
    assert torn.files()[named(0)] == place.files()[named(0)]
    if tail.strip(b"\0"):
        assert again.recovery.torn_files == (named(0) + ".torn",)
        assert torn.files()[named(0) + ".torn"] == tail
    else:
        assert again.recovery.torn_files == ()


@pytest.mark.parametrize("tail", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_behind_a_closed_log_is_reported_and_kept(place: Place, tail: bytes) -> None:
    log = place.open()
    expected = fill(log, 3)
    log.close()
    torn = place.copy()
    torn.extend(named(0), tail)
    again = torn.open()
    assert not again.recovery
    assert values(again.scan(end=3)) == expected
    assert torn.files()[named(0)].endswith(tail)
    assert again.append(b"next") == 3
    assert again.read(3).value == b"next"
    again.close()
    assert torn.open().read(3).value == b"next"


def test_earlier_torn_tails_are_not_overwritten(place: Place) -> None:
    log = place.open()
    fill(log, 3)
    torn = place
    for i in range(3):
        torn = torn.copy()
        torn.extend(named(0), b"tail %d" % i)
        log = torn.open()
    kept = {name: data for name, data in torn.files().items() if ".torn" in name}
    assert kept == {
        named(0) + ".torn": b"tail 0",
        named(0) + ".torn.1": b"tail 1",
        named(0) + ".torn.2": b"tail 2",
    }


def in_files(place: Place) -> dict[str, bytes]:
    """Everything but the words of `visible`, which count recoveries during one boot of the machine."""
    return {name: data[:WORDS_AT] if name == "visible" else data for name, data in place.files().items()}


def test_opening_a_torn_log_twice_changes_nothing_more(place: Place) -> None:
    log = place.open(segment_bytes=400)
    fill(log, 12)
    torn = place.copy()
    torn.extend(named(log.segments[-1].base_offset), b"torn")
    torn.open()
    first = in_files(torn)
    for _ in range(3):
        torn = torn.copy()
        again = torn.open()
        assert again.recovery.truncated_bytes == 0
        assert in_files(torn) == first


@pytest.mark.parametrize("checkpoint", ["missing", "damaged"])
def test_without_a_checkpoint_whole_batches_are_kept_and_the_rest_is_cut(place: Place, checkpoint: str) -> None:
    log = place.open()
    expected = fill(log, 4)
    log.append(b"last")
    for size in sizes(place):
        torn = place.copy(restarted=True)
        torn.cut(named(0), size)
        if checkpoint == "missing":
            torn.remove("checkpoint")
        else:
            torn.write("checkpoint", b"junk")
        again = torn.open()
        assert values(again) == expected
        assert again.append(b"next") == 4
        torn.close()


def test_without_a_checkpoint_damage_in_the_middle_costs_only_itself(place: Place) -> None:
    """A torn tail is not followed by whole batches; these were acknowledged."""
    log = place.open()
    expected = fill(log, 6)
    log.close()
    place.remove("checkpoint")
    place.flip(named(0), place.batches()[2].position + 65)
    log = place.open()
    assert not log.recovery
    assert [log.read(i).value for i in (0, 1, 3, 4, 5)] == expected[:2] + expected[3:]
    assert log.append(b"next") == 6


def test_torn_first_batch_of_a_log(place: Place) -> None:
    log = place.open(initial_offset=7)
    log.append(b"first")
    for size in sizes(place, 7):
        for state in ("as it was", "missing"):
            torn = place.copy(restarted=True)
            torn.cut(named(7), size)
            if state == "missing":
                torn.remove("checkpoint")
            again = torn.open()
            assert (again.lowest_offset, again.next_offset) == (7, 7)
            assert again.append(b"next") == 7
            torn.close()


def test_torn_batch_of_a_producer_is_forgotten(place: Place) -> None:
    log = place.open()
    log.append_many([b"a"], producer=Producer(7, 0, 0))
    log.append_many([b"b"], producer=Producer(7, 0, 1))
    torn = place.copy(restarted=True)
    torn.cut(named(0), len(place.files()[named(0)]) - 1)
    again = torn.open()
    assert again.append_many([b"b"], producer=Producer(7, 0, 1)) == range(1, 2)
    assert values(again) == [b"a", b"b"]


def test_whole_looking_batch_inside_a_torn_record_is_not_taken_for_one(place: Place) -> None:
    """Somebody's value is itself a batch, with the very offset that comes next: it is part of a torn record."""
    log = place.open()
    fill(log, 2)
    log.append(encode([b"inner"], base_offset=2) + b"x" * 100)
    torn = place.copy(restarted=True)
    torn.cut(named(0), len(place.files()[named(0)]) - 10)
    again = torn.open()
    assert again.next_offset == 2
    assert again.append(b"next") == 2


# --- the large segment: durable batches stay in place, the rest moves


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every segment counts as a large one."""
    monkeypatch.setattr(recovery, "SMALL_BYTES", 10)
    monkeypatch.setattr(recovery, "_COPY_BYTES", 50)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("watermark", range(1, 6))
@pytest.mark.parametrize("tail", [b"", b"torn", b"\0" * 80])
def test_large_segment_is_split_at_the_watermark(place: Place, watermark: int, tail: bytes) -> None:
    log = place.open(index_interval_bytes=0)
    expected = fill(log, 5)
    positions = [batch.position for batch in place.batches()] + [len(place.files()[named(0)])]
    torn = place.copy()
    mark(torn, clean=False, durable=watermark, segment=0, position=positions[watermark])
    torn.extend(named(0), tail)
    again = torn.open(index_interval_bytes=0)
    assert bool(again.recovery)
    assert values(again) == expected
    assert [again.read(i).value for i in range(5)] == expected
    assert torn.bases() == ([0] if watermark == 5 else [0, watermark])
    assert len(torn.files()[named(0)]) == positions[watermark]
    assert again.verify()
    assert again.offset_at(now_ms() + 1000) == 5
    assert again.append(b"next") == 5
    again.close()
    again = torn.open()
    assert again.recovery.clean
    assert values(again) == [*expected, b"next"]


@pytest.mark.alternating
@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("finished", ["copied", "renamed", "cut", "indexed"])
@pytest.mark.parametrize("watermark", [1, 3])
def test_interrupted_split_is_finished(place: Place, finished: str, watermark: int) -> None:
    """Each state that a crash during a split leaves."""
    log = place.open()
    expected = fill(log, 5)
    whole = place.files()[named(0)]
    position = place.batches()[watermark].position
    torn = place.copy()
    mark(torn, clean=False, durable=watermark, segment=0, position=position)
    if finished == "copied":
        for size in range(0, len(whole) - position, 20):
            half = torn.copy()
            half.write(named(watermark) + ".tmp", whole[position : position + size])
            again = half.open()
            assert values(again) == expected
            assert not [name for name in half.names() if name.endswith(".tmp")]
            half.close()
        return
    torn.write(named(watermark), whole[position:])
    if finished in ("cut", "indexed"):
        torn.write(named(0), whole[:position])
    if finished == "indexed":
        torn.write(named(0, ".index"), b"")
    again = torn.open()
    assert values(again) == expected
    assert bool(again.recovery)
    assert torn.bases() == [0, watermark]
    assert torn.files()[named(0)] == whole[:position]
    assert again.append(b"next") == 5
    assert again.verify()
    again.close()
    assert values(torn.open()) == [*expected, b"next"]


@pytest.mark.usefixtures("large")
def test_split_of_a_trimmed_log(place: Place) -> None:
    log = place.open()
    expected = fill(log, 5)
    log.trim(1)
    torn = place.copy()
    mark(torn, clean=False, durable=3, segment=0, position=place.batches()[3].position, log_start=1)
    again = torn.open()
    assert (again.lowest_offset, values(again)) == (1, expected[1:])


# --- segments that are gone


def test_log_whose_segments_are_all_gone_does_not_use_its_offsets_again(place: Place) -> None:
    log = place.open()
    fill(log, 5)
    log.close()
    for name in place.names():
        if name.startswith("0"):
            place.remove(name)
    log = place.open()
    assert not log.recovery
    assert "offsets 0 to 4" in str(log.recovery)
    assert (log.lowest_offset, log.next_offset) == (0, 5)
    with pytest.raises(CorruptBatch) as lost:
        log.read(0)
    assert lost.value.next_offset == 5
    assert log.append(b"next") == 5
    log.close()
    assert not place.open(mode="r").verify()


def test_last_segment_gone_is_reported_and_its_offsets_are_not_used_again(place: Place) -> None:
    log = place.open()
    expected = fill(log, 5)
    log.seal()
    fill(log, 5, start=5)
    log.close()
    place.remove(named(5))
    log = place.open()
    assert not log.recovery
    assert values(log.scan(end=5)) == expected
    with pytest.raises(CorruptBatch):
        log.read(7)
    assert log.append(b"next") == 10


def test_every_reader_notices_a_missing_segment_in_the_middle(place: Place) -> None:
    log = place.open()
    expected = []
    for start in (0, 5, 10):
        expected += fill(log, 5, start=start)
        log.seal()
    log.close()
    for name in place.names():
        if name.startswith(f"{5:020d}"):
            place.remove(name)
    log = place.open()
    assert values(log.scan(end=5)) == expected[:5]
    with pytest.raises(CorruptBatch) as caught:
        list(log.scan())
    assert caught.value.next_offset == 10
    with pytest.raises(CorruptBatch):
        log.read(6)
    assert values(log.scan(10)) == expected[10:]
    assert not log.verify()


@pytest.mark.parametrize("left", [0, 1, 30])
def test_emptied_segment_is_noticed(place: Place, left: int) -> None:
    """The first reader reports the damage, once; later segments are served."""
    log = place.open()
    fill(log, 5)
    log.seal()
    expected = fill(log, 5, start=5)
    log.close()
    place.cut(named(0), left)
    log = place.open()
    for attempt in (lambda: list(log.scan()), lambda: log.read(0), lambda: log.read(4), lambda: log.fetch(2)):
        with pytest.raises(CorruptBatch) as caught:
            attempt()
        assert caught.value.next_offset == 5
    assert values(log.scan(5)) == expected
    assert [problem.next_offset for problem in log.verify().problems] == [5]
