"""`sawlog inspect FILE`: show the contents of one file of a log.

A segment is shown batch by batch. A damaged range appears as a hex dump with a marker below the first bad byte, and
reading continues after it. Index files are shown entry by entry and compared with the segment next to them. For a
checkpoint, a document of the store (sawlog.json, topic.json) or a lock, the fields are shown. The file is only read; a
writer may be using its log.
"""

from __future__ import annotations

import dataclasses
import mmap
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from ..batch.header import HEADER_BYTES
from ..display import counted, size_text, time_text
from ..errors import CorruptFile
from ..log.checkpoint import Checkpoint
from ..log.epochs import Epochs
from ..log.files import CHECKPOINT, INDEX, LEADER_EPOCHS, LOCK, LOG, PRODUCERS, REMOTE, TIME_INDEX, VISIBLE
from ..log.producers import ProducerBatch, ProducersFile
from ..log.remote import RemoteSegments
from ..storage import FileDirectory, checksummed
from . import CORRUPT
from .dissect import Batch, Damage, dissect, records_of
from .options import Output, argument, flag
from .output import Column, Printer, Row, columns, note

_ROW_BYTES, _ROWS_AROUND = 16, 3
_DOCUMENT = ".json"

_BATCH_COLUMNS = columns(
    "position",
    Column("size_bytes", "bytes"),
    Column("base_offset", "first"),
    Column("last_offset", "last"),
    Column("records"),
    Column("leader_epoch", "epoch"),
    "codec",
    Column("base_timestamp", "first time", time_text),
    Column("max_timestamp", "newest", time_text),
    Column("timestamp_type", "time by"),
    "producer marks crc",
    Column("remark", cut=False),
)
_MACHINE_COLUMNS = columns("kind", *_BATCH_COLUMNS, "bad_position dump record_values")


def inspect(
    file: Path = argument(
        "FILE",
        "A file of a store: .log, .index, .timeindex, .json, checkpoint, leader-epoch-checkpoint, visible, "
        "producers or LOCK.",
        ...,
    ),
    records: bool = flag("--records", "Also show the records of each batch."),
    output: Output = "table",
) -> None:
    """Show the contents of one file of a log, batch by batch, with the first bad byte marked.

    Each batch is one line: position, size, offsets, records, leader epoch, codec, timestamps, producer, and whether the
    checksum is correct. A hex dump shows the first bad byte of a damaged range, and reading continues after it. Exits
    with 4 if there is damage.

    \b
    Examples:
      sawlog inspect data/topics/orders/partition-0/00000000000000000000.log
      sawlog inspect 00000000000000000000.log --records
      sawlog inspect 00000000000000000000.index
      sawlog inspect checkpoint --output json
      sawlog inspect leader-epoch-checkpoint
      sawlog inspect data/topics/orders/topic.json
    """
    printer = Printer(output)
    if file.is_dir():
        example = next((path.name for path in sorted(file.glob("*.log"))), "00000000000000000000.log")
        raise typer.BadParameter(f"{file} is a directory; give a file in it, such as {example}")
    small = _SMALL_FILES.get(_DOCUMENT if file.suffix == _DOCUMENT else file.name)
    if small is not None:
        good = _inspect_small(file, printer, *small)
    elif file.suffix in (INDEX, TIME_INDEX):
        good = _inspect_index(file, printer)
    else:
        good = _inspect_log(file, printer, records)
    if not good:
        raise typer.Exit(CORRUPT)


def _contents(file: Path) -> memoryview:
    """Return the bytes of a file. It is mapped only if it is sealed, that is, if its index exists: a writer may
    truncate the active segment, and reading a mapping past the end would kill this process."""
    if not file.stat().st_size or not file.with_suffix(INDEX).exists():
        return memoryview(file.read_bytes())
    with file.open("rb") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))


# --- segments


def _inspect_log(file: Path, printer: Printer, records: bool) -> bool:
    view = _contents(file)
    tally = _Tally()
    if printer.for_people:
        _print_for_people(view, printer, tally, records)
        printer.flush()
        note(f"{file}: {tally}")
    else:
        rows = (_machine_row(view, part, records) for part in tally.watch(dissect(view)))
        printer.rows(rows, _MACHINE_COLUMNS)
    return not tally.problems


class _Tally:
    """Counts batches, records, bytes and damaged ranges."""

    def __init__(self) -> None:
        self.batches = self.records = self.size_bytes = self.problems = 0

    def watch(self, parts: Iterator[Batch | Damage]) -> Iterator[Batch | Damage]:
        """Count the parts and pass them through."""
        for part in parts:
            if isinstance(part, Damage):
                self.problems += 1
                self.size_bytes += part.size_bytes
            else:
                self.batches += 1
                self.records += part.header.count
                self.size_bytes += part.header.size_bytes
                self.problems += part.wrong
            yield part

    def __str__(self) -> str:
        verdict = counted(self.problems, "damaged range") if self.problems else "no damage"
        batches = counted(self.batches, "batch", "batches")
        return f"{counted(self.records, 'record')} in {batches}, {size_text(self.size_bytes)}, {verdict}"


def _print_for_people(view: memoryview, printer: Printer, tally: _Tally, records: bool) -> None:
    """Print consecutive batches as tables, with damaged ranges and remarks between them."""
    parts = tally.watch(dissect(view))
    run: list[Batch] = []
    for part in parts:
        if isinstance(part, Batch):
            run.append(part)
        if run and (isinstance(part, Damage) or records or len(run) >= 1000):
            _print_run(run, printer)
            run = []
        if isinstance(part, Damage):
            _print_damage(view, part, printer)
        elif records:
            for record in records_of(view, part.header):
                printer.line(f"    {record!r}")
    if run:
        _print_run(run, printer)


def _print_run(run: list[Batch], printer: Printer) -> None:
    rows = [_batch_row(each) for each in run]
    rare = ("producer", "marks", "remark")
    printer.rows(
        rows, [each for each in _BATCH_COLUMNS if each.name not in rare or any(row[each.name] for row in rows)]
    )


def _batch_row(batch: Batch) -> dict[str, Any]:
    header = batch.header
    marks = [
        name for name, is_set in (("transaction", header.is_transactional), ("control", header.is_control)) if is_set
    ]
    producer = f"{header.producer_id}/{header.producer_epoch}/{header.base_sequence}" if header.producer_id >= 0 else ""
    return {
        "position": header.position,
        "size_bytes": header.size_bytes,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.count,
        "leader_epoch": header.leader_epoch,
        "codec": batch.codec,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "log" if header.timestamp_type else "producer",
        "producer": producer,
        "marks": ",".join(marks),
        "crc": "ok",
        "remark": batch.remark,
    }


def _machine_row(view: memoryview, part: Batch | Damage, records: bool) -> Row:
    if isinstance(part, Damage):
        start, end = _window(view, part.bad_position)
        return {
            "kind": "damage",
            "position": part.position,
            "size_bytes": part.size_bytes,
            "crc": "bad",
            "remark": part.reason,
            "bad_position": part.bad_position,
            "dump": {"position": start, "hex": view[start:end].hex()},
        }
    row = {"kind": "batch", **_batch_row(part)}
    if records:
        found = records_of(view, part.header)
        row["record_values"] = [{"offset": each.offset, "key": each.key, "value": each.value} for each in found]
    return row


# --- damage


def _window(view: memoryview, position: int) -> tuple[int, int]:
    """Return the rows of a hex dump around a byte."""
    start = max(position // _ROW_BYTES - _ROWS_AROUND, 0) * _ROW_BYTES
    return start, min((position // _ROW_BYTES + _ROWS_AROUND + 1) * _ROW_BYTES, len(view))


def _print_damage(view: memoryview, damage: Damage, printer: Printer) -> None:
    end = damage.position + damage.size_bytes
    after = f"good batches continue at byte {end}" if end < len(view) else "no good batch follows"
    printer.line()
    printer.line(f"!! damage at byte {damage.position}, {damage.size_bytes:,} bytes: {damage.reason}")
    printer.line(f"   the first bad byte is {damage.bad_position} ({damage.bad_position:#x}); {after}")
    for line in hex_dump(view, damage.bad_position):
        printer.line(f"   {line}")
    printer.line()


def hex_dump(view: memoryview, bad: int) -> Iterator[str]:
    """Yield the bytes around the bad one, sixteen per line, with a marker below it; past the end, only the marker."""
    start, end = _window(view, bad)
    row_of_bad = bad // _ROW_BYTES * _ROW_BYTES
    for row in range(start, max(end, row_of_bad + 1), _ROW_BYTES):
        data = bytes(view[row : min(row + _ROW_BYTES, end)])
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)
        yield f"{row:08x}  {data.hex(' ').ljust(3 * _ROW_BYTES - 1)}  {text}"
        if row == row_of_bad:
            yield " " * (10 + 3 * (bad - row)) + "^^"


# --- the small files


def _inspect_index(file: Path, printer: Printer) -> bool:
    data = file.read_bytes()
    timed = file.suffix == TIME_INDEX
    entry = struct.Struct(">qI" if timed else ">II")
    base = int(file.stem) if file.stem.isdigit() else 0
    segment = file.with_suffix(LOG)
    log = _contents(segment) if segment.exists() else None
    problems = 0

    def rows() -> Iterator[Row]:
        nonlocal problems
        before: tuple[int, ...] = ()
        for number, fields in enumerate(entry.iter_unpack(data[: len(data) // entry.size * entry.size])):
            remark = "" if not before or fields[0] > before[0] else "not larger than the entry before it"
            offset = base + fields[1 if timed else 0]
            if not timed and not remark and log is not None:
                remark = _entry_remark(log, fields[1], offset)
            problems += bool(remark)
            before = fields
            if timed:
                yield {"entry": number, "timestamp": fields[0], "offset": offset, "remark": remark}
            else:
                yield {"entry": number, "offset": offset, "position": fields[1], "remark": remark}

    place = Column("timestamp", "newest so far", time_text) if timed else Column("position")
    middle = [place, Column("offset")] if timed else [Column("offset", "last offset"), place]
    printer.rows(
        rows(), [Column("entry"), *middle, Column("remark")], empty=f"{file}: no entries, because the segment is short"
    )
    if len(data) % entry.size:
        problems += 1
        note(f"{file}: {len(data) % entry.size} bytes at the end are an incomplete entry")
    if problems:
        note(f"{file}: an index is a cache; opening the log for writing rebuilds it")
    return not problems


def _entry_remark(log: memoryview, position: int, last_offset: int) -> str:
    """Return the error in an index entry, compared with the batch that it points to, or an empty string."""
    if position + HEADER_BYTES > len(log):
        return "points past the end of the segment"
    base: int = struct.unpack_from(">q", log, position)[0]
    delta: int = struct.unpack_from(">i", log, position + 23)[0]
    if log[position + 16] != 2 or base + delta != last_offset:
        return f"no batch that ends at offset {last_offset} starts there"
    return ""


def _inspect_small(file: Path, printer: Printer, show: Callable[[Path, Printer], None], advice: str) -> bool:
    try:
        show(file, printer)
    except CorruptFile as error:
        where = "" if str(file) in str(error) else f"{file}: "
        note(f"{where}{error}{advice}")
        return False
    return True


def _show_checkpoint(file: Path, printer: Printer) -> None:
    found = Checkpoint.decode(file.read_bytes())
    names = ("clean", "durable_offset", "segment", "position", "log_start", "leader_epoch")
    printer.item({name: getattr(found, name) for name in names})


def _show_epochs(file: Path, printer: Printer) -> None:
    found = Epochs.decode(file.read_bytes(), str(file))
    rows = [{"leader_epoch": epoch, "start_offset": start} for epoch, start in found.entries]
    printer.rows(rows, [Column("leader_epoch", "epoch"), Column("start_offset", "first offset")])


def _show_remote(file: Path, printer: Printer) -> None:
    found = RemoteSegments.decode(file.read_bytes())
    note(f"the log starts at offset {found.log_start}; offsets below {found.end} are only in the replica")
    offsets = Column("base_offset", "first offset"), Column("next_offset", "next offset")
    printer.rows(found.runs, columns(*offsets, "size_bytes", Column("max_timestamp", "newest", time_text)))


def _show_visible(file: Path, printer: Printer) -> None:
    directory = FileDirectory(file.parent, create=False)
    try:
        found = directory.published(file.name)
        numbers = None if found is None else found.load()
    finally:
        directory.close()
    if numbers is None:
        note(f"{file}: written before the last boot, or on another machine; readers accept every complete batch")
    else:
        printer.item({"visible_offset": numbers[0], "leader_epoch": numbers[1]})


def _show_document(file: Path, printer: Printer) -> None:
    """Show a small file of a store that has its own checksum."""
    found = checksummed.decode(file.read_bytes(), str(file))
    printer.item(found, [Column(name, name, time_text if name.endswith("_ms") else None) for name in found])


def _show_lock(file: Path, printer: Printer) -> None:
    """Show the lock's last owner and how it was released. Only the operating system knows whether it is held now."""
    printer.item({"lock": file.read_bytes().decode("utf-8", "replace").strip()})


def _show_producers(file: Path, printer: Printer) -> None:
    found = ProducersFile.decode(file.read_bytes())
    names = [field.name for field in dataclasses.fields(ProducerBatch)]
    shown = [Column(name, shown=time_text if name == "timestamp" else None) for name in names]
    printer.rows(found.batches, shown, empty=f"{file}: no idempotent producers")
    for each in found.open:
        note(f"producer {each.producer_id} has an open transaction since offset {each.first_offset}")


_REBUILT = "; opening the log for writing rebuilds it from the batches"
#: By name or suffix: how to show the file, and the advice if it is damaged.
_SMALL_FILES: dict[str, tuple[Callable[[Path, Printer], None], str]] = {
    CHECKPOINT: (_show_checkpoint, _REBUILT),
    PRODUCERS: (_show_producers, _REBUILT),
    LEADER_EPOCHS: (_show_epochs, _REBUILT),
    REMOTE: (_show_remote, "; the log begins where its replica does, and maintenance rebuilds the file from there"),
    VISIBLE: (_show_visible, ""),
    LOCK: (_show_lock, ""),
    _DOCUMENT: (_show_document, ""),
}
