"""`sawlog verify`: reads and checks all data; it lists damage and exits with 4 if there is any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..log.log import Log
from ..log.read.verify import Problem
from ..topics.names import GROUPS
from .address import Address
from .codes import CORRUPT
from .fitting import Column
from .options import LogDir, MaybeData, MaybeTopic, Output, Partitions
from .output import Output as Printer
from .output import OutputFormat, note
from .places import NamedLog, note_remote, reading_parts
from .progress import ProgressBar
from .units import shown_count, shown_size

if TYPE_CHECKING:
    from ..objects.partition import ObjectPartition

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
    What is only in the replica is not read here: verify the replica. Exits with 4 if there is damage.

    \b
    Examples:
      sawlog verify -d data
      sawlog verify orders -d data -p 3
      sawlog verify --log data/topics/orders/partition-3 --output json
    """
    printer = Printer(output)
    problems: list[Problem] = []
    with reading_parts(data, log, topic, partition) as topics, _offsets(data, log or topic or partition) as offsets:
        places = [*topics, *offsets]
        total = sum(place.log.size_bytes for place in places)
        with ProgressBar("verifying", total, "bytes") as progress:
            rows = list(_checked(places, problems, progress))
        note_remote(places)
    printer.rows(rows, _COLUMNS, empty="nothing to verify: no topics")
    if problems:
        for problem in problems:
            note(f"!! {problem}{_then(problem)}")
        if not isinstance(data, Address):
            note("`sawlog inspect FILE` shows the damaged bytes, `sawlog repair --plan` what can be repaired")
        raise typer.Exit(CORRUPT)


@contextmanager
def _offsets(data: Path | None, narrowed: object) -> Iterator[list[NamedLog[Log]]]:
    """Return the log of the groups' committed offsets, if a whole store is verified and there is one."""
    path = data / GROUPS if data is not None and not narrowed and not isinstance(data, Address) else None
    if path is None or not any(path.glob("*.log")):
        yield []
        return
    with Log.open(path, mode="r") as log:
        yield [NamedLog("(groups)", 0, log)]


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
