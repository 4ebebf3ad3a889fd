"""Actions of the writer, the groups and the planners in `readers`: one function each, by name in `ACTS`."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from sawlog.batch import kernel
from sawlog.batch.build import encode
from sawlog.log.log import Log
from sawlog.testing import Fault

from .eyes import partition_of, restore, view_of
from .planners import PLANNERS, TOPIC, Planner
from .witness import PARTITIONS

if TYPE_CHECKING:
    from .readers import Shift

#: A fixed timestamp, old enough that results do not depend on the time of the run.
_STAMP = 1_000_000_000_000


class GivenUp(Exception):
    """Raised inside an append to abandon it."""


def append(shift: Shift) -> None:
    number, log = shift.some()
    value = shift.run.value()
    key = shift.random.choice((None, b"a", b"b"))
    shift.send({number: [value]}, lambda: log.append(value, key, (), _STAMP))


def append_many(shift: Shift) -> None:
    for number in range(PARTITIONS):
        values, log = shift.run.values(shift.random.randrange(2, 5), 40), shift.log(number)
        shift.send({number: values}, lambda log=log, values=values: log.append_many(values))


def append_arrow(shift: Shift) -> None:
    """Append Arrow rows as several batches, across several segments."""
    number, log = shift.some()
    values = shift.run.values(6, 150)
    table = pa.table({"value": pa.array(values, pa.binary())})
    shift.send({number: values}, lambda: log.append_arrow(table))


def append_stream(shift: Shift) -> None:
    number, log = shift.some()
    value = shift.run.value(300)
    shift.send({number: [value]}, lambda: log.append_stream([value[:100], value[100:]]))


def append_batches(shift: Shift) -> None:
    number, log = shift.some()
    values = shift.run.values(4, 250)
    shift.send({number: values}, lambda: log.append_batches(b"".join(encode([value]) for value in values)))


def append_kept(shift: Shift) -> None:
    """Append batches with given offsets and gaps before and between them."""
    number, log = shift.some()
    values = shift.run.values(4, 90)
    raw, offset = bytearray(), log.next_offset + shift.random.randrange(2)
    for value in values:
        batch = bytearray(encode([value]))
        kernel.patch_place(memoryview(batch), 0, offset, 0)
        raw += batch
        offset += 1 + shift.random.randrange(2)
    shift.send({number: values}, lambda: log._append_at_offsets(bytes(raw)))


def advance(shift: Shift) -> None:
    number, log = shift.some()
    shift.send({number: []}, lambda: log._advance(log.next_offset + 2))


def block(shift: Shift) -> None:
    """Group several appends into one."""
    number, log = shift.some()
    first, *others = shift.run.values(4, 120)

    inside = shift.random.random() < 0.5

    def act() -> None:
        with log._appending():
            log.append(first)
            log.append_many(others)
            if inside:
                log.sync()
        log.sync()  # nothing is acknowledged before: an append inside does not wait for the disk

    shift.send({number: [first, *others]}, act)


def block_given_up(shift: Shift) -> None:
    number, log = shift.some()
    values = shift.run.values(5, 250)

    def act() -> None:
        with log._appending():
            for value in values:
                log.append(value)
            log.sync()
            raise GivenUp

    assert not shift.send({number: values}, act)


def block_truncated(shift: Shift) -> None:
    """Truncate records that no reader has seen: no new epoch begins, and later appends are kept."""
    number, log = shift.some()
    kept, cut, more = shift.run.values(2, 100), shift.run.values(4, 250), shift.run.values(2, 40)
    before = log.leader_epoch

    def act() -> None:
        with log._appending():
            log.append_many(kept)
            offset = log.next_offset
            for value in cut:
                log.append(value)
            log.truncate(offset)
            log.append_many(more)
        log.sync()

    said = shift.witness.send({number: cut})
    if shift.send({number: [*kept, *more]}, act):
        assert log.leader_epoch == before, "nobody has read what was cut off, and a new epoch has begun"
    shift.witness.refuse(said)


def truncate(shift: Shift) -> None:
    number, log = shift.some()
    with log._hold():
        lowest, following = log.lowest_offset, log.next_offset
    few = shift.random.random() < 0.7  # so that the next append reuses all offsets that were read
    offset = shift.random.randrange(max(lowest, following - 4 if few else 0), following + 1)
    before, dropped = log.leader_epoch, offset < following
    shift.witness.begin_truncation(number, offset)
    log.truncate(offset)
    shift.witness.end_truncation(number, offset)
    assert log.leader_epoch == before + dropped, f"was in epoch {before}, is in {log.leader_epoch}"
    shift.come_as_old()


def trim(shift: Shift) -> None:
    """Trim to an offset that slow readers have passed."""
    number, log = shift.some()
    offset = shift.random.randrange(log.lowest_offset, log.next_offset + 1)
    if "late" in shift.witness.got:
        shift.come("late", None, on_lost="latest")
    shift.witness.begin_trim(number, offset)
    log.trim(offset)
    shift.witness.end_trim(number, offset)


def seal(shift: Shift) -> None:
    shift.some()[1].seal()


def compact(shift: Shift) -> None:
    for log in map(shift.log, range(PARTITIONS)):
        log.seal()
        last = {record.key: record.offset for record in log.scan() if record.key is not None}
        shift.witness.going.update(
            record.value or b"" for record in log.scan() if record.key is not None and last[record.key] > record.offset
        )
        log.compact()


def merge(shift: Shift) -> None:
    for log in map(shift.log, range(PARTITIONS)):
        log.seal()
        log._merge_segments()


def sync(shift: Shift) -> None:
    shift.some()[1].sync()


def reopen(shift: Shift) -> None:
    """Reopen the log after a clean close: nothing is lost, so no epoch begins."""
    shift.hold_all()
    before = [shift.log(number)._leader_epochs for number in range(PARTITIONS)]
    shift.reopen()
    after = [shift.log(number)._leader_epochs for number in range(PARTITIONS)]
    assert before == after, f"closed cleanly in the epochs {before}, and opened in {after}"


def transaction(shift: Shift) -> None:
    parts = {number: shift.run.values(shift.random.randrange(1, 4), 90) for number in range(PARTITIONS)}

    def act() -> None:
        with shift.store.transaction() as made:
            for number, values in parts.items():
                for value in values:
                    made.append_many(TOPIC, [value], partition=number)

    shift.send(parts, act)


def failing(shift: Shift) -> None:
    """Fail a call, or fill the disk, during a group of appends."""
    chance = shift.random
    if chance.random() < 0.3:
        used = sum(map(len, shift.disk.content().values()))
        shift.disk.capacity_bytes = used + chance.randrange(2000)
    else:
        fault = Fault(
            chance.randrange(1, 5),
            chance.choice((errno.EIO, errno.ENOSPC)),
            chance.choice(({"append"}, {"append", "create"}, {"sync"}, {"replace", "rename"}, {"claim", "append"})),
            names=chance.choice(("*.log", "*")),
            forever=chance.random() < 0.3,
            effect=chance.choice(("nothing", "part", "all")),
            undo=chance.random() < 0.7,
        )
        shift.disk.arm(fault)
    chance.choice((transaction, transaction, append_arrow, block, append_batches))(shift)
    shift.disk.disarm()
    shift.disk.capacity_bytes = None
    if any(log._access.appender is not None and not log._is_writable for log in map(shift.log, range(PARTITIONS))):
        shift.reopen()


def restore_published(shift: Shift) -> None:
    """Restore an older file with the published end while a writer is open and readers read."""
    number = shift.random.randrange(PARTITIONS)
    restore(partition_of(shift.disk, number), shift.witness, number, shift.random)
    shift.look("a reader who is told an older end")
    shift.come("early", 3)
    _planner(shift).drain()
    shift.send({number: [value := shift.run.value()]}, lambda: shift.log(number).append(value))


def look(shift: Shift) -> None:
    """Read in every way with a newly opened reader."""
    for number in range(PARTITIONS):
        with Log.open(partition_of(shift.disk, number), mode="r") as log:
            view = view_of("a new reader", log)
            shift.witness.look(number, view)
            values = {offset: value for offset, (value, _) in view.rows.items()}
            assert {record.offset: record.value for record in log.follow(timeout=0)} == values
            batches = list(log.scan_arrow(columns=("offset", "value")))
            found = [row for batch in batches for row in batch.to_pylist()]
            assert {row["offset"]: row["value"] for row in found} == values
            assert log.fetch(log.lowest_offset).next_offset == view.end


def early_group(shift: Shift) -> None:
    shift.come("early", shift.random.randrange(2, 9))


def late_group(shift: Shift) -> None:
    shift.come("late", shift.random.randrange(2, 9), on_lost="latest")


def strict_group(shift: Shift) -> None:
    shift.come("strict", shift.random.randrange(2, 9), on_lost="error")


def old_group(shift: Shift) -> None:
    """Commit without a leader epoch, as a client on the network may."""
    shift.witness.old = True
    shift.come("old", None, keep_epochs=False)


def _planner(shift: Shift) -> Planner:
    return PLANNERS[shift.random.choice(shift.run.planners)](shift.disk, shift.witness)


def plan(shift: Shift) -> None:
    """Plan a micro-batch, to be read later."""
    _planner(shift).plan(shift.random.choice((None, 3, 6)))


def micro_batch(shift: Shift) -> None:
    planner = _planner(shift)
    if planner.plan(shift.random.choice((None, 5))):
        planner.finish()


#: Actions by their names in plans.
ACTS: dict[str, Callable[[Shift], None]] = {
    each.__name__: each
    for each in (
        append,
        append_many,
        append_arrow,
        append_stream,
        append_batches,
        append_kept,
        advance,
        block,
        block_given_up,
        block_truncated,
        truncate,
        trim,
        seal,
        compact,
        merge,
        sync,
        reopen,
        transaction,
        failing,
        restore_published,
        look,
        early_group,
        late_group,
        strict_group,
        old_group,
        plan,
        micro_batch,
    )
}
