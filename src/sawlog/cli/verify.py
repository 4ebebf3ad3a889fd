"""`sawlog verify`: read and check all data; list damage and exit with 4 if there is any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from ..log.log import Log
from ..log.verify import Problem
from .codes import CORRUPT
from .options import LogDir, MaybeData, MaybeTopic, Output, Partitions
from .output import Column, OutputFormat, note
from .output import Output as Printer
from .places import Address, MissingPartition, NamedLog, note_remote, open_for_reading, open_groups_log
from .terminal import ProgressBar
from .units import format_count, format_size

if TYPE_CHECKING:
    from ..store.objects.partition import ObjectPartition

_COLUMNS = [
    Column("topic"),
    Column("partition"),
    Column("segments", shown=format_count),
    Column("batches", shown=format_count),
    Column("records", shown=format_count),
    Column("size_bytes", "size", format_size),
    Column("problems", shown=lambda problems: str(len(problems)) if problems else "none"),
]


def verify(
    topic: MaybeTopic = None,
    data: MaybeData = None,
    log: LogDir = None,
    partition: Partitions = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Read and check every batch, record and index entry, and for a whole store also the groups' offsets.

    The command changes nothing and takes no lock, so it can run next to a writer. On object storage, it reads every
    extent that the commits refer to, and checks that the extents are contiguous and every batch is intact; for a whole
    store, it also checks that no commit is missing. Segments that are only in the replica are not read: verify the
    replica itself. Exits with 4 if there is damage.

    \b
    Examples:
      sawlog verify -d data
      sawlog verify orders -d data -p 3
      sawlog verify --log data/topics/orders/partition-3 --output json
    """
    printer = Printer(output)
    if isinstance(data, Address) and not (log or topic or partition):
        _check_whole(data, printer)
    problems: list[Problem] = []
    missing: list[MissingPartition] = []
    whole = None if log or topic or partition else data
    with open_for_reading(data, log, topic, partition, missing) as topics, open_groups_log(whole) as offsets:
        places = [*topics, *offsets]
        total = sum(place.log.size_bytes for place in places)
        with ProgressBar("verifying", total, "bytes") as progress:
            rows = list(_checked(places, problems, progress))
        note_remote(places)
    rows += [_lost(each) for each in missing]
    printer.rows(rows, _COLUMNS, empty="nothing to verify: no topics")
    if problems or missing:
        for each in missing:
            note(f"!! {each}")
        for problem in problems:
            note(f"!! {problem}{_then(problem)}")
        if not isinstance(data, Address):
            note("`sawlog inspect FILE` shows the damaged bytes, `sawlog repair --plan` what can be repaired")
        raise typer.Exit(CORRUPT)


def _lost(missing: MissingPartition) -> dict[str, Any]:
    """Return the row of a partition whose files are missing."""
    path = f"topics/{missing.topic}/partition-{missing.partition}"
    problem = Problem(path, 0, str(missing), None)
    row = {"topic": missing.topic, "partition": missing.partition}
    zeros = dict.fromkeys(("segments", "batches", "records", "size_bytes"), 0)
    return {**row, **zeros, "problems": [problem]}


def _check_whole(data: Address, printer: Printer) -> None:
    """Exit if a store on object storage has lost commits or its `sawlog.json`: it may not open, or lack its end."""
    from ..store.objects.bucket.bucket import Bucket  # slow to import
    from ..store.objects.maintenance.repair import diagnose

    found = diagnose(Bucket(str(data)))
    if not found.is_repairable:
        return
    wrong = [str(each) for each in found.findings]
    row = {"topic": "(store)", "partition": None, **dict.fromkeys(("segments", "batches", "records", "size_bytes"), 0)}
    printer.rows([{**row, "problems": wrong}], _COLUMNS)
    for each in wrong:
        note(f"!! {each}")
    note(f"`sawlog repair -d {data}` shows how to return to the last consistent state")
    raise typer.Exit(CORRUPT)


def _checked(
    places: Sequence[NamedLog[Log] | NamedLog[ObjectPartition]], problems: list[Problem], progress: ProgressBar
) -> Iterator[dict[str, Any]]:
    for place in places:
        report = place.log.verify()
        problems += report.problems
        progress.advance(report.size_bytes)
        yield {
            "topic": place.topic,
            "partition": place.partition,
            "segments": report.segments,
            "batches": report.batches,
            "records": report.records,
            "size_bytes": report.size_bytes,
            "problems": report.problems,
        }


def _then(problem: Problem) -> str:
    return "" if problem.next_offset is None else f"; reading continues at offset {problem.next_offset}"
