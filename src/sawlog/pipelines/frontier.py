"""The frontier: up to where a table contains the log, and how far the next round goes.

It begins with the marks that the table records. Each round moves it to the current end of every partition, or less if
that is too much at once; partitions that were added begin at their first record.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ..errors import DataLoss
from ..spark.streaming import shared_out
from ..sql.materialised import check_same_log
from ..tables.state import Mark
from ..topics.topic import Topic

_logger = logging.getLogger("sawlog.pipelines")


class Frontier:
    """The marks of a table, and the log ahead of them."""

    def __init__(self, topic: Topic, marks: Mapping[int, Mark], max_records: int, *, fail_on_data_loss: bool) -> None:
        self._topic = topic
        #: The table's marks, or later ones if there were no records since.
        self.marks = dict(marks)
        self._max_records = max_records
        self._fails = fail_on_data_loss

    def ends(self) -> dict[int, int]:
        """The current end of every partition."""
        return {number: self._topic.partition(number).position()[0] for number in range(self._partitions())}

    def is_behind(self, ends: Mapping[int, int]) -> bool:
        """Whether there is something before these ends that is not in the table."""
        return any(number not in self.marks or end > self.marks[number].end for number, end in ends.items())

    def reach(self, marks: dict[int, Mark]) -> None:
        """The table has everything up to these marks."""
        self.marks = marks

    def _partitions(self) -> int:
        self._topic.holdings.refresh()
        return self._topic.partitions

    def next(self) -> dict[int, Mark]:
        """The marks after the next round; the same if there is nothing new."""
        made = {number: self._mark(number) for number in range(self._partitions())}
        ahead = {("", number): mark.end - self.begin(number, mark) for number, mark in made.items()}
        ahead = {share: lag for share, lag in ahead.items() if lag > 0}
        if sum(ahead.values()) > self._max_records:
            few = shared_out(ahead, self._max_records)
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
            self._lose(number, mark.end, lowest)
        return Mark(mark.start, end, epoch) if end > mark.end else mark

    def _lose(self, number: int, first: int, lowest: int) -> None:
        said = f"records {first} to {lowest - 1} of partition {number} of {self._topic.name!r} were removed"
        if self._fails:
            raise DataLoss(
                f"{said} (retention or trim) before they were in the table. Run the job more often, or keep the log "
                "longer; fail_on_data_loss=False (--allow-loss) continues without them"
            )
        _logger.warning("%s before they were in the table; continuing without them", said)

    def begin(self, number: int, mark: Mark) -> int:
        """Where the round to this mark begins."""
        before = self.marks.get(number)
        if before is None:
            return mark.start
        if self._fails:
            return before.end
        return min(max(before.end, self._topic.partition(number).lowest_offset), mark.end)

    def is_overtaken(self, marks: Mapping[int, Mark]) -> bool:
        """Whether retention has removed what a first round was to read: then it begins later."""
        return any(
            number not in self.marks and self._topic.partition(number).lowest_offset > mark.start
            for number, mark in marks.items()
        )
