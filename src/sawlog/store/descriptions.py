"""Descriptions of stores and topics, as data and as HTML tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..batch.kernel import Record
from ..display import counted, html_block, html_line, html_table, records_html, size_text, time_text
from .settings import Value

#: Maximum number of rows in a table.
_MOST_ROWS = 50
_SETTING_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """Information about one partition."""

    partition: int
    lowest_offset: int
    next_offset: int
    records: int
    size_bytes: int
    segments: int
    path: str
    #: Records below this offset are only in the replica; their size there.
    local_offset: int = 0
    remote_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """Information about a topic. `records` counts offsets, including offsets without a record after compaction."""

    name: str
    id: str
    partitions: int
    settings: dict[str, Value]
    created_ms: int
    records: int
    size_bytes: int
    rows: tuple[PartitionDescription, ...]


def settings_text(settings: dict[str, Value]) -> str:
    """Format the given settings in one line."""
    short = {name: str(value).replace("\n", " ") for name, value in settings.items()}
    cut = _SETTING_CHARACTERS
    return ", ".join(f"{name}={text if len(text) <= cut else text[:cut] + '…'}" for name, text in short.items())


def topic_html(found: TopicDescription, newest: Iterable[Record]) -> str:
    """Render a topic: its settings, partitions and newest records."""
    rows = [
        (each.partition, each.lowest_offset, each.next_offset, size_text(each.size_bytes), each.segments)
        for each in found.rows[:_MOST_ROWS]
    ]
    amount = f"{counted(found.partitions, 'partition')}, {counted(found.records, 'record')}"
    return html_block(
        f"Topic {found.name}: {amount}, {size_text(found.size_bytes)}",
        html_line(f"created {time_text(found.created_ms)}"),
        html_line(settings_text(found.settings)),
        html_table(("partition", "lowest offset", "next offset", "size", "segments"), rows),
        html_line(_more(found.partitions, "partition")),
        records_html(newest),
    )


def store_html(path: str, names: Sequence[str], topics: Iterable[TopicDescription], groups: Sequence[str]) -> str:
    """Render a store: its topics and groups. `topics` is consumed only as far as it is shown."""
    rows = [
        (each.name, each.partitions, each.records, size_text(each.size_bytes), settings_text(each.settings))
        for _, each in zip(range(_MOST_ROWS), topics, strict=False)
    ]
    return html_block(
        f"Store {path}: {counted(len(names), 'topic')}, {counted(len(groups), 'group')}",
        html_table(("topic", "partitions", "records", "size", "settings"), rows) if rows else "",
        html_line(_more(len(names), "topic")),
        html_line(f"groups: {', '.join(groups[:_MOST_ROWS])}" if groups else ""),
    )


def _more(number: int, what: str) -> str:
    return f"… and {counted(number - _MOST_ROWS, what)} more" if number > _MOST_ROWS else ""
