"""`sawlog verify`: reads and checks all data; it lists damage and exits with 4 if there is any."""

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
from .places import Address, MissingPartition, NamedLog, note_remote, reading_groups, reading_parts
from .terminal import ProgressBar
from .units import shown_count, shown_size

if TYPE_CHECKING:
    from ..store.objects.partition.partition import ObjectPartition

_COLUMNS = [
    Column("topic"),
    Column("partition"),
    Column("segments", shown=shown_count),
    Column("batches", shown=shown_count),
    Column("records", shown=shown_count),
    Column("size_bytes", "size", shown_size),
    Column("problems", shown=lambda problems: str(len(problems)) if problems else "none"),
]


def verify(
    topic: MaybeTopic = None,
    data: MaybeData = None,
    log: LogDir = None,
    partition: Partitions = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Read and check every batch, every record and every index entry; for a whole store also the groups' offsets.

    It changes nothing and takes no lock, so it can run while a writer is running. On object storage, every run of
    batches that the commits refer to is read: all of them are there and follow each other, and every batch is whole.
    For a whole store, the commits are compared with everything that records how many there were.
    What is only in the replica is not read here: verify the replica. Exits with 4 if there is damage.

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
    with reading_parts(data, log, topic, partition, missing) as topics, reading_groups(whole) as offsets:
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
    """The row of a partition whose files are missing."""
    path = f"topics/{missing.topic}/partition-{missing.partition}"
    problem = Problem(path, 0, str(missing), None)
    row = {"topic": missing.topic, "partition": missing.partition}
    zeros = dict.fromkeys(("segments", "batches", "records", "size_bytes"), 0)
    return {**row, **zeros, "problems": [problem]}


def _check_whole(data: Address, printer: Printer) -> None:
    """Exit if a store on object storage has lost commits or its `sawlog.json`: then it cannot be opened, or lacks its
    end."""
    from ..store.objects.bucket.bucket import Bucket  # these take time to import
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
