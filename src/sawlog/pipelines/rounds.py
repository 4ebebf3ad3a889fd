"""Rounds: the commits by which a table follows the log. Each happens completely or not at all.

`Frontier` tracks how far the table contains the log. It begins with the marks that the table records. Each round moves
it to the current end of every partition, or less if that is too much at once; added partitions begin at their first
record. `Rounds` turns the records in between into files and one commit of the table:

```
lake/orders/_sawlog/round        the round in progress, as a document; absent between rounds
lake/orders/data/<id>/           the files of a round, or of a merge

writing   Spark's tasks write files                    after a crash here: the files are removed
ready     files are complete and durable, as listed    after a crash here: committed now, unless already committed
          the quarantine is committed, if records go there; then the table
```

The table's own commit records the offsets up to which it contains the log, so no other state is needed: the next round
begins there. A round that was ready is committed by the next run as it was, even if that run has another schema:
otherwise a record could be in the quarantine by the old schema and in the table by the new one.
"""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import DataLoss
from ..spark.streaming import split_quota
from ..sql.history import check_same_log
from ..storage import FileDirectory, checksummed
from ..store.directory.topic import DirectoryTopic
from ..tables import columns
from ..tables.columns import QUARANTINE
from ..tables.files import data_files, described, sync_below
from ..tables.formats import (
    DataFile,
    Mark,
    Table,
    TableCommit,
    TableIdentity,
    file_from_json,
    file_to_json,
    marks_from_json,
    marks_to_json,
)

_logger = logging.getLogger("sawlog.pipelines")


class Frontier:
    """The marks of a table, and the log ahead of them."""

    def __init__(
        self, topic: DirectoryTopic, marks: Mapping[int, Mark], max_records: int, *, fail_on_data_loss: bool
    ) -> None:
        self._topic = topic
        #: The table's marks, or later ones if there were no records since.
        self.marks = dict(marks)
        self._max_records = max_records
        self._fails = fail_on_data_loss

    def ends(self) -> dict[int, int]:
        """Return the current end of every partition."""
        return {number: self._topic.partition(number).position()[0] for number in range(self._partitions())}

    def is_behind(self, ends: Mapping[int, int]) -> bool:
        """Return whether records before these ends are not in the table."""
        return any(number not in self.marks or end > self.marks[number].end for number, end in ends.items())

    def advance_to(self, marks: dict[int, Mark]) -> None:
        """Record that the table contains everything up to these marks."""
        self.marks = marks

    def _partitions(self) -> int:
        self._topic._partitions.refresh()
        return self._topic.partitions

    def next(self) -> dict[int, Mark]:
        """Return the marks after the next round; the same marks if there is nothing new."""
        made = {number: self._mark(number) for number in range(self._partitions())}
        ahead = {("", number): mark.end - self.begin(number, mark) for number, mark in made.items()}
        ahead = {partition: lag for partition, lag in ahead.items() if lag > 0}
        if sum(ahead.values()) > self._max_records:
            few = split_quota(ahead, self._max_records)
            for _, number in ahead:
                end = self.begin(number, made[number]) + few["", number]
                made[number] = made[number]._replace(end=end)
        return made

    def _mark(self, number: int) -> Mark:
        log = self._topic.partition(number)
        end, epoch = log.position()
        mark, lowest = self.marks.get(number), log.lowest_offset
        if mark is None:
            return Mark(lowest, max(end, lowest), epoch)
        check_same_log(self._topic, number, mark)
        if lowest > mark.end:
            self._report_loss(number, mark.end, lowest)
        return Mark(mark.start, end, epoch) if end > mark.end else mark

    def _report_loss(self, number: int, first: int, lowest: int) -> None:
        removed = f"records {first} to {lowest - 1} of partition {number} of {self._topic.name!r} were removed"
        if self._fails:
            raise DataLoss(
                f"{removed} (retention or trim) before they were in the table. Run the job more often, or keep the log "
                "longer; fail_on_data_loss=False (--allow-loss) continues without them"
            )
        _logger.warning("%s before they were in the table; continuing without them", removed)

    def begin(self, number: int, mark: Mark) -> int:
        """Return the start of the round that ends at this mark."""
        before = self.marks.get(number)
        if before is None:
            return mark.start
        if self._fails:
            return before.end
        return min(max(before.end, self._topic.partition(number).lowest_offset), mark.end)

    def is_overtaken(self, marks: Mapping[int, Mark]) -> bool:
        """Return whether retention has removed records that a first round was to read: then it begins later."""
        return any(
            number not in self.marks and self._topic.partition(number).lowest_offset > mark.start
            for number, mark in marks.items()
        )


_ROUND = "round"
_DATA = "data"


def reached(step: str) -> None:
    """Called after each step of a round; tests end the process here."""


@dataclass(frozen=True, slots=True)
class RoundFiles:
    """The name and the directories of files written before a commit."""

    id: str
    files: Path
    bad_files: Path


@dataclass(frozen=True, slots=True)
class RoundResult:
    """Counts of a round."""

    rows: int = 0
    quarantined: int = 0


class Rounds:
    """The commits of a table and its quarantine. One process at a time: the caller holds the lock."""

    def __init__(self, notes: FileDirectory, table: Table, quarantine: Table, identity: TableIdentity) -> None:
        self._notes = notes
        self._table, self._quarantine = table, quarantine
        self._identity = identity

    # --- rounds

    def begin(self) -> RoundFiles:
        """Start a round and return its directories."""
        work = self._work(uuid.uuid4().hex)
        checksummed.store(self._notes, _ROUND, {"id": work.id, "state": "writing"})
        reached("begun")
        return work

    def finish(self, work: RoundFiles, schema: pa.Schema, marks: Mapping[int, Mark]) -> RoundResult:
        """Commit the files: the table now contains the log up to these marks."""
        reached("written")
        added = self._durable(work.files, self._identity.by)
        bad = self._durable(work.bad_files)
        if not added and not bad:  # offsets without records: the next commit covers them
            self.drop(work)
            return RoundResult()
        fields = {
            "id": work.id,
            "state": "ready",
            "marks": marks_to_json(marks),
            "columns": columns.shown_schema(schema),
            "files": [file_to_json(each, str(self._table.location)) for each in added],
            "bad_files": [file_to_json(each, str(self._quarantine.location)) for each in bad],
        }
        checksummed.store(self._notes, _ROUND, fields)
        reached("ready")
        self._commit(fields)
        return RoundResult(sum(each.rows or 0 for each in added), sum(each.rows or 0 for each in bad))

    def _commit(self, fields: Mapping[str, Any]) -> None:
        marks = marks_from_json(fields["marks"])
        bad = [file_from_json(each, str(self._quarantine.location)) for each in fields["bad_files"]]
        if bad:
            whole = TableIdentity(self._identity.topic, self._identity.topic_id)
            self._once(self._quarantine, whole, TableCommit(QUARANTINE, marks, bad))
        reached("quarantined")
        added = [file_from_json(each, str(self._table.location)) for each in fields["files"]]
        self._once(self._table, self._identity, TableCommit(columns.parsed(fields["columns"]), marks, added))
        reached("committed")
        self._forget()

    @staticmethod
    def _once(table: Table, identity: TableIdentity, change: TableCommit) -> None:
        """Commit `change`, unless the table already has its marks: then a crashed run has committed it."""
        found = table.snapshot()
        if found is None or dict(found.marks) != dict(change.marks):
            table.commit(identity, change)

    # --- replacing files by others with the same rows

    def swap(self, work: RoundFiles, removed: Sequence[DataFile], schema: pa.Schema, marks: Mapping[int, Mark]) -> int:
        """Commit files that replace others; return their number."""
        reached("merged")
        added = self._durable(work.files, self._identity.by)
        self._table.commit(self._identity, TableCommit(schema, marks, added, removed, moved=True))
        reached("swapped")
        self._forget()
        return len(added)

    # --- after a crash

    def recover(self) -> None:
        """Complete or roll back the round of a crashed run."""
        if not self._notes.exists(_ROUND):
            return
        fields = checksummed.load(self._notes, _ROUND)
        if fields["state"] == "ready":
            self._commit(fields)
            return
        work = self._work(fields["id"])
        found = self._table.snapshot()
        used = () if found is None else found.files
        if any(Path(path).is_relative_to(work.files) for path in used):
            self._forget()  # the merge was committed
        else:
            self.drop(work)

    def drop(self, work: RoundFiles) -> None:
        """Remove the files of a round."""
        shutil.rmtree(work.files, ignore_errors=True)
        shutil.rmtree(work.bad_files, ignore_errors=True)
        self._forget()

    def _forget(self) -> None:
        self._notes.remove(_ROUND)
        self._notes.sync()
        reached("forgotten")

    def _work(self, name: str) -> RoundFiles:
        return RoundFiles(name, self._table.location / _DATA / name, self._quarantine.location / _DATA / name)

    @staticmethod
    def _durable(root: Path, by: Sequence[str] = ()) -> list[DataFile]:
        """Return the files below a directory that have rows, after making them durable."""
        if not root.is_dir():
            return []
        found = [described(path, root, by) for path in data_files(root)]
        for each in found:
            if not each.rows:  # Spark writes one file with the schema if there is no row
                Path(each.path).unlink()
        sync_below(root)
        return [each for each in found if each.rows]
