"""Act five: change one byte of a sealed segment, in a copy, and detect it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from rich.text import Text

from sawlog import Log
from sawlog.errors import CorruptBatch

from .screen import Screen


@dataclass(frozen=True, slots=True)
class Forgery:
    """A changed byte."""

    file: str
    position: int
    offset: int
    before: bytes
    after: bytes

    def shown(self, order: bytes) -> Text:
        """Return the end of an order, with the price and the changed byte marked."""
        digit = next(i for i, (a, b) in enumerate(zip(self.before, self.after, strict=True)) if a != b)
        text, start = order.decode(), order.index(b'"items"')
        shown = Text(f"...{text[start:digit]}")
        shown.append(text[digit], "bold reverse")
        return shown.append(text[digit + 1 :])


def play(screen: Screen, path: Path, copy: Path) -> None:
    """Verify the log, damage a copy, verify the copy, and read on after the damage."""
    screen.act(
        "Damage",
        "In a copy of the log somebody raises the price of one order: one byte of a sealed segment, and the JSON is "
        "as valid as before.",
    )
    with Log.open(path, mode="r") as log:
        total = len(log)
        began = perf_counter()
        report = log.verify()
        screen.result("verify, every byte", report.records, "orders", perf_counter() - began)
        screen.check(
            report.ok and report.records == total,
            f"the original: {report.records:,} records, {report.batches:,} batches, all good",
        )
    shutil.copytree(path, copy)
    forgery = forge(copy)
    screen.line()
    screen.facts(
        ("order", f"{forgery.offset:,}"),
        ("was", forgery.shown(forgery.before)),
        ("is", forgery.shown(forgery.after)),
        ("where", f"{forgery.file}, byte {forgery.position:,}"),
    )
    with Log.open(copy, mode="r") as log:
        _find(screen, log, forgery)
        _read_on(screen, log, forgery, total)


def forge(copy: Path) -> Forgery:
    """Set one bit in the price of an order in the middle of a segment in the middle of the log."""
    with Log.open(copy, mode="r") as log:
        sealed = [each for each in log.segments if each.sealed]
        segment = sealed[len(sealed) // 2]
        offset = (segment.base_offset + segment.next_offset) // 2
        while not _digit_of(before := log.read(offset).value or b"")[1]:
            offset += 1
    at, _ = _digit_of(before)
    after = before[:at] + bytes([before[at] | 8]) + before[at + 1 :]
    position = Path(segment.path).read_bytes().index(before) + at
    with open(segment.path, "r+b") as file:
        file.seek(position)
        file.write(after[at : at + 1])
    return Forgery(Path(segment.path).name, position, offset, before, after)


def _digit_of(order: bytes) -> tuple[int, bool]:
    """Return the position of the price, and whether setting one bit changes its first digit (0 to 8, 1 to 9)."""
    at = order.index(b'"cents":') + len(b'"cents":')
    return at, order[at : at + 1] in (b"0", b"1")


def _find(screen: Screen, log: Log, forgery: Forgery) -> None:
    report = log.verify()
    for problem in report.problems:
        screen.print(f"{Path(problem.path).name} at byte {problem.position:,}: {problem.reason}", "yellow")
    first = report.problems[0] if report.problems else None
    screen.check(
        len(report.problems) == 1
        and first is not None
        and Path(first.path).name == forgery.file
        and first.position <= forgery.position
        and forgery.offset < (first.next_offset or 0),
        f"verify(): {len(report.problems)} problem, the batch around the forged byte",
    )


def _read_on(screen: Screen, log: Log, forgery: Forgery, total: int) -> None:
    """Read every readable record: an error names the offset at which to continue."""
    served, lost, start = 0, range(0), 0
    while start < total:
        try:
            for record in log.scan(start):
                served += 1
                start = record.offset + 1
        except CorruptBatch as error:
            following = total if error.next_offset is None else error.next_offset
            lost = range(start, following)
            start = following
    screen.check(
        forgery.offset in lost,
        f"scan() raises CorruptBatch: offsets {lost.start:,} to {lost.stop - 1:,} are not served",
    )
    screen.check(
        served + len(lost) == total and 0 < lost.stop < total,
        f"and continues after it: {served:,} of {total:,} records are served",
    )
