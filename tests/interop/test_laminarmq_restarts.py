"""laminarmq is killed and restarted. It takes the next index from its index file, which is written later than the
store, and appends at the end of the store: records without an entry stay in the file, and their indices are reused."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from sawlog import Log, interop
from sawlog.interop import Finding, Kind
from sawlog.storage import MemoryDirectory

from ..log.sampling import some_of, some_or_all
from ..looping import for_each
from .test_defects import entry, marker, record
from .test_unindexed import index_of, wide, with_metadata

Damage = Literal["stop", "skip"]


def own(index: int, value: bytes) -> bytes:
    """A record with metadata that needs a decoder."""
    return with_metadata(index, b"own", value)


@dataclass
class Laminarmq:
    """A laminarmq with one segment, which can be killed at any byte of either file."""

    base: int = 0
    make: object = record
    store: bytes = b""
    index: bytes = b""
    #: Complete records in the store: first byte and value.
    complete: list[tuple[int, bytes]] = field(default_factory=list)

    def run(self, values: list[bytes], store_bytes: int | None = None, index_bytes: int | None = None) -> None:
        """Start, append, and get killed after this many bytes of the two files; None: after all of them."""
        following = self.base + max(len(self.index) - 16, 0) // 16
        store, index = b"", b"" if self.index else marker(self.base)
        appended = []
        for number, value in enumerate(values):
            content = self.make(following + number, value)  # type: ignore[operator]
            index += entry(content, len(self.store + store))
            appended.append((len(self.store + store), len(content), value))
            store += content
        self.store += store[:store_bytes]
        self.index += index[:index_bytes]
        self.complete += [(at, value) for at, size, value in appended if at + size <= len(self.store)]

    def directory(self, *, indexed: bool = True) -> MemoryDirectory:
        made = MemoryDirectory()
        made.create(f"{self.base}.store").append(self.store)
        if indexed:
            made.create(f"{self.base}.index").append(self.index)
        return made

    def open(self, damage: Damage = "skip", *, indexed: bool = True) -> interop.ForeignLog:
        decoder = index_of if self.make is own else None
        directory = self.directory(indexed=indexed)
        return interop.open(directory, format="laminarmq", damage=damage, metadata=decoder)


def check(system: Laminarmq, hint: str = "", *, indexed: bool = True) -> None:
    """Check that every complete record is read exactly once, in the order of the file, or is reported."""
    with system.open(indexed=indexed) as log:
        found = [(each.offset, each.value) for each in log]
        named = [each for each in log.report if each.outcome in ("cut", "lost") and each.file.endswith(".store")]
    offsets = [offset for offset, _ in found]
    assert offsets == sorted(set(offsets))
    values = [value for _, value in found]
    left = iter(values)
    following = next(left, None)
    for position, value in system.complete:
        if value == following:
            following = next(left, None)
        else:
            assert any(each.position <= position < each.position + each.size_bytes for each in named), (
                hint,
                position,
                value,
            )
    assert following is None, f"{hint}: {following!r} was never written, or is out of order"


@some_or_all(15)
@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "unindexed"])
@pytest.mark.parametrize("make", [record, wide, own])
def test_every_complete_record_of_every_run_is_read_once_or_reported(  # type: ignore[no-untyped-def]
    make, indexed: bool, most: int | None
) -> None:
    """laminarmq may be killed at any byte of the store and of the index."""
    for seed in some_of(range(150), most):
        chosen = random.Random(seed)
        system = Laminarmq(chosen.choice([0, 5, 42]), make)
        for run in range(chosen.randint(1, 5)):
            values = [b"%d of run %d" % (i, run) + b"." * chosen.randint(0, 40) for i in range(chosen.randint(0, 12))]
            total = sum(len(make(0, value)) for value in values)
            entries = chosen.choice([0, None, chosen.randint(0, 16 + 16 * len(values))]) if indexed else 0
            system.run(values, chosen.randint(0, total), entries)
        if system.store:
            check(system, f"seed {seed}", indexed=indexed)


def test_complete_records_of_all_runs_are_imported_with_new_offsets() -> None:
    first, second = [b"first %d" % i for i in range(100)], [b"second %d" % i for i in range(10)]
    system = Laminarmq()
    system.run([*first, b"torn"], -2, 0)
    system.run(second)
    with system.open("stop") as log, Log.in_memory() as mine:
        report = interop.import_log(log, mine)
        assert [(each.offset, each.value) for each in mine] == list(enumerate([*first, *second]))
        assert dict(mine.read(105).headers) == {"laminarmq.offset": (5).to_bytes(8, "big")}
        assert [(each.kind, each.outcome) for each in report.findings] == [
            (Kind.INDEX_BEHIND, "repaired"),
            (Kind.ORPHAN_BYTES, "cut"),
            (Kind.RESTART, "repaired"),
        ]


@for_each("kept", [1, 4, 5, 8, 9, 10, 30])
def test_runs_are_never_spliced(kept: int) -> None:
    """The second run is longer than the first; its record 110 does not follow record 109 of the first."""
    runs = [[b"%d of run %d" % (i, run) for i in range(count)] for run, count in enumerate((110, 43, 208))]
    system = Laminarmq()
    for values in runs:
        last = len(record(0, b"torn" * 20))
        system.run([*values, b"torn" * 20], kept - last, 0)
    torn_head = kept < 9  # then the end of the record before it is unknown as well
    with system.open("stop") as log:
        values = [each.value for each in log]
        assert values == [value for run in runs for value in (run[:-1] if torn_head else run)]
        assert len([each for each in log.report if each.kind is Kind.RESTART]) == 2
        assert len([each for each in log.report if each.outcome == "cut"]) == 3


def test_an_import_continues_after_a_kill_and_a_restart() -> None:
    """The import may be repeated after the kill, after the restart, or once the index has been written."""
    system = Laminarmq(42)
    with Log.in_memory() as mine:
        for run in range(3):
            values = [b"%d of run %d" % (i, run) for i in range(20 + 10 * run)]
            before = Laminarmq(42, record, system.store, system.index)
            for index_bytes in (0, 16 + 16 * 5, 16 + 16 * 5 + 3):
                system.store, system.index = before.store, before.index
                system.complete = [each for each in system.complete if each[0] < len(before.store)]
                system.run(values, None, index_bytes)
                with system.open("stop") as log:
                    interop.import_log(log, mine)
                    assert [(each.offset, each.value) for each in mine] == [(each.offset, each.value) for each in log]
        check(system)


@some_or_all(40)
def test_a_value_that_contains_the_beginning_of_a_record_never_changes_another_silently(most: int | None) -> None:
    """The exception is the last value before a kill, where the two cannot be distinguished."""
    for seed in some_of(range(200), most):
        chosen = random.Random(seed)
        values = [b"%d of run 0, " % i for i in range(chosen.randint(2, 20))]
        values[chosen.randrange(len(values) - 1)] += record(chosen.randrange(21), b"inner")
        system = Laminarmq()
        system.run(values, -chosen.randint(0, 2) or None, 0)
        with system.open() as log:
            invented = [each.value for each in log if each.value not in values]
            named = [each for each in log.report if each.outcome in ("cut", "lost")]
        # A value that contains the first record of a run looks like a torn record and a restart.
        assert not invented or len(named) > 1, seed


def test_many_runs_are_read_in_one_pass() -> None:
    """Killed after every record. A reader with quadratic cost would take minutes."""
    system = Laminarmq()
    contents = [record(i % 2, b"%d" % i) for i in range(8_000)]
    system.store = b"".join(contents)
    with system.open() as log:
        assert [each.value for each in log] == [b"%d" % i for i in range(0, 8_000, 2)]


def findings(system: Laminarmq) -> list[Finding]:
    with system.open() as log:
        return list(log.report)


def test_the_report_names_the_record_whose_end_is_unknown(tmp_path: Path) -> None:
    system = Laminarmq(7)
    system.run([b"a", b"b", b"c"], None, 16 + 16)
    system.run([b"d"])
    (cut,) = [each for each in findings(system) if each.outcome == "cut"]
    assert (cut.file, cut.position, cut.size_bytes, cut.offset) == ("7.store", 20, 10, 9)
    assert "the record with index 9" in cut.detail
    assert "may be torn" in cut.detail
