"""A topic as a dataset, with the schema it declares or one given by the caller; also as Polars and pandas frames."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ..clock import in_utc
from ..errors import DataLoss, MissingPackage
from ..isolation import Isolation
from ..schemas import Schema, parse
from ..store.base import Topic
from .dataset import TopicDataset
from .history import History
from .past import HistoryReader
from .snapshot import TopicSnapshot

if TYPE_CHECKING:
    import pandas
    import polars


#: The setting that declares a topic's schema.
SETTING = "sawlog.schema"
#: Maximum number of times the table and the log are looked up, if retention moves the log past the table's end.
_RETRIES = 10
#: True: the schema that the topic declares; a schema or its text: this one; None or False: values are bytes.
Wanted = Schema | str | bool | None


def schema_of(topic: Topic, wanted: Wanted = True) -> Schema | None:
    """Return the schema to read a topic with; None if its values are bytes."""
    if wanted is True:
        text = topic.settings.get(SETTING)
        return parse(str(text)) if text else None
    if wanted is None or wanted is False:
        return None
    return parse(wanted) if isinstance(wanted, str) else wanted


def dataset_of(
    topic: Topic,
    *,
    schema: Wanted = True,
    isolation: Isolation = "committed",
    start: Mapping[int, int] | None = None,
    end: Mapping[int, int] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    raised: list[BaseException] | None = None,
) -> TopicDataset:
    """Return the dataset of a topic as it is now, restricted to records from `since` on and before `until`. Errors
    during reading are also appended to `raised`."""
    values = schema_of(topic, schema)
    history, snapshot = _taken(topic, isolation, start or {}, end or {})
    past = None if history is None else HistoryReader(history, schema=values, starts=start, ends=end, topic=topic.name)
    return TopicDataset(snapshot, values, always=_between(since, until), past=past, raised=raised)


def _taken(
    topic: Topic, isolation: Isolation, start: Mapping[int, int], end: Mapping[int, int]
) -> tuple[History | None, TopicSnapshot]:
    """Look up the table, then the log from the table's end. If the log now begins after that, try again: the table job
    has moved on, and retention after it."""
    for _ in range(_RETRIES):
        history = topic.history()
        starts = dict(start)
        for number, offset in {} if history is None else history.ends.items():
            starts[number] = max(offset, starts.get(number, 0))
        snapshot = TopicSnapshot.of(topic, isolation=isolation, start=starts, end=end)
        if history is None or (lost := _gap(topic, history, starts, end)) is None:
            return history, snapshot
    raise DataLoss(
        f"{lost} are neither in the table nor in the log any more: retention was faster than the table's job"
    )


def _gap(topic: Topic, history: History, starts: Mapping[int, int], ends: Mapping[int, int]) -> str | None:
    """Describe the requested records of a partition that are in neither its table nor its log."""
    for number in history.ends:
        lowest = topic.partition(number).lowest_offset
        limit = min(lowest, ends.get(number, lowest))
        if starts[number] < limit:
            return f"records {starts[number]} to {limit - 1} of partition {number} of {topic.name!r}"
    return None


def _between(since: datetime | None, until: datetime | None) -> pc.Expression | None:
    """Return the filter for records from one time up to, not including, another. A time without a zone is local."""
    made: pc.Expression | None = None
    if since is not None:
        made = pc.field("timestamp") >= pa.scalar(in_utc(since), pa.timestamp("us", tz="UTC"))
    if until is not None:
        before = pc.field("timestamp") < pa.scalar(in_utc(until), pa.timestamp("us", tz="UTC"))
        made = before if made is None else made & before
    return made


def lazy_frame(dataset: TopicDataset) -> polars.LazyFrame:
    """Return a lazy frame over a topic. Polars pushes down the columns and the filter of a query as for any Arrow
    dataset, and reads batch by batch."""
    try:
        import polars
    except ImportError as error:
        raise MissingPackage("Topic.polars needs polars: run pip install '.[polars]' in a clone of sawlog") from error
    return polars.scan_pyarrow_dataset(dataset)


def data_frame(table: pa.Table) -> pandas.DataFrame:
    """Convert a table to pandas."""
    try:
        import pandas  # noqa: F401 - Arrow's message does not say how to install it
    except ImportError as error:
        raise MissingPackage("Topic.to_pandas needs pandas: run pip install pandas") from error
    return table.to_pandas()
