"""`sawlog topic`: create, list, describe, alter, delete and trim topics, and list their settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..display import counted, size_text, time_text
from ..errors import InvalidConfig, TopicExists
from ..store.settings import SETTINGS
from .options import (
    BrokerAt,
    MaybeData,
    Output,
    Partitions,
    Topic,
    Yes,
    argument,
    complete_setting,
    complete_setting_name,
    flag,
    named_values,
    option,
    parsed,
)
from .output import Column, OutputFormat, Printer, columns, confirm, note
from .parsing import offset_of, outside, parse_bound
from .program import Command, command_group
from .stores import chosen, open_store

if TYPE_CHECKING:
    from .stores import AnyStore

topics = command_group("Create, list, change and delete topics.")

Settings = Annotated[
    list[str] | None,
    option(
        "--set -s NAME=VALUE",
        "A setting, such as retention.ms=7d, segment.bytes=64MiB or sawlog.schema=@FILE; can be repeated. `sawlog "
        "topic settings` lists them.",
        ...,
        autocompletion=complete_setting,
    ),
]
_TOPIC_COLUMNS = columns(
    Column("name", "topic"),
    "partitions records size_bytes",
    Column(
        "settings",
        rank=1,
        shown=lambda given: " ".join(f"{name}={_shortened(value)}" for name, value in (given or {}).items()),
    ),
)
#: Maximum length of a setting's value within a line.
_SHOWN = 60
_PARTITION_COLUMNS = columns(
    "partition",
    Column("lowest_offset", "lowest"),
    Column("next_offset", "next"),
    "records size_bytes",
    Column("segments", rank=1),
    Column("path", cut=False, rank=2),
)


@topics.command(cls=Command)
def create(
    name: str = argument("TOPIC", "The name; allowed characters: a-z A-Z 0-9 . _ -", ...),
    data: MaybeData = None,
    broker: BrokerAt = None,
    partitions: int = option("--partitions -P N", "The number of partitions.", 1, min=1),
    settings: Settings = None,
    if_not_exists: bool = flag("--if-not-exists", "Do nothing if the topic already exists."),
    output: Output = "table",
) -> None:
    """Create a topic, and the store if the directory is missing or empty.

    Records with the same key go to the same partition, which keeps them in order. Consumers of a group share the
    partitions, so their number limits how many can work at once; it can grow later.

    \b
    Examples:
      sawlog topic create orders -d data
      sawlog topic create orders -d data --partitions 4 --set retention.ms=7d --set compression.type=zstd
      sawlog topic create state -d data --set cleanup.policy=compact
    """
    given = parse_settings(settings)
    with open_store(data, broker, "w", create=True) as store:
        existed = name in store.topics()
        if existed and not if_not_exists:
            raise TopicExists(f"the topic {name!r} already exists; --if-not-exists accepts that")
        store.create_topic(name, partitions, exist_ok=if_not_exists, **given)
        _report(store, name, output, "already exists" if existed else "created")


@topics.command("list", cls=Command)
def list_topics(data: MaybeData = None, broker: BrokerAt = None, output: Output = "table") -> None:
    """List the topics with their partitions, records, size and settings.

    \b
    Examples:
      sawlog topic list -d data
      sawlog topic list -d data --output json | jq '.[].name'
      sawlog topic list -b 127.0.0.1:9092
    """
    with open_store(data, broker) as store:
        rows = [topic.describe() for topic in store]
    Printer(output).rows(rows, _TOPIC_COLUMNS, empty="no topics yet; `sawlog topic create NAME` creates one")


@topics.command(cls=Command)
def describe(name: Topic, data: MaybeData = None, broker: BrokerAt = None, output: Output = "table") -> None:
    """Show one topic: its settings, and the offsets and size of each partition.

    --output csv prints one line per partition, json one object.

    \b
    Examples:
      sawlog topic describe orders -d data
      sawlog topic describe orders -d data --output json | jq '.rows[].next_offset'
    """
    printer = Printer(output)
    with open_store(data, broker) as store:
        found = store.topic(name).describe()
    rows = [{column.name: getattr(row, column.name) for column in _PARTITION_COLUMNS} for row in found.rows]
    names = ("name", "id", "created_ms", "partitions", "records", "size_bytes")
    about = {each: getattr(found, each) for each in names}
    if printer.for_people:
        created = Column("created_ms", "created", time_text)
        printer.item({**about, **found.settings}, columns(Column("name", "topic"), created, "records size_bytes"))
        printer.line()
    printer.object_or_rows({**about, "settings": found.settings, "rows": rows}, rows, _PARTITION_COLUMNS)
    for row in found.rows:
        local = getattr(row, "local_offset", 0)
        if row.lowest_offset < local:
            which = f"offsets {row.lowest_offset} to {local - 1} ({size_text(getattr(row, 'remote_bytes', 0))})"
            printer.remark(f"partition {row.partition}: {which} are only in the replica")


@topics.command(cls=Command)
def alter(
    name: Topic,
    data: MaybeData = None,
    broker: BrokerAt = None,
    partitions: int | None = option("--partitions -P N", "The new number of partitions; can only grow.", min=1),
    settings: Settings = None,
    unset: list[str] | None = option(
        "--unset NAME", "Reset a setting to its default; can be repeated.", autocompletion=complete_setting_name
    ),
    output: Output = "table",
) -> None:
    """Change settings, or add partitions.

    A process that has the topic open keeps the settings with which it opened it. After partitions are added, a key may
    go to a different partition than before. A schema (Avro, JSON Schema or DDL; @FILE reads it from a file) can only
    change to one that can still read earlier values.

    \b
    Examples:
      sawlog topic alter orders -d data --set retention.bytes=10GiB
      sawlog topic alter orders -d data --unset retention.ms --partitions 8
      sawlog topic alter orders -d data --set sawlog.schema='id BIGINT NOT NULL, amount DOUBLE'
      sawlog topic alter orders -d data --set sawlog.schema=@orders.avsc
    """
    given = {**parse_settings(settings), **dict.fromkeys(map(_known, unset or ()))}
    if partitions is None and not given:
        raise typer.BadParameter("nothing to change: give --set, --unset or --partitions")
    with open_store(data, broker, "w") as store:
        store.alter_topic(name, partitions, **given)
        _report(store, name, output, "changed")


@topics.command(cls=Command)
def delete(
    name: Topic,
    data: MaybeData = None,
    broker: BrokerAt = None,
    yes: Yes = False,
    output: Output = "table",
) -> None:
    """Delete a topic with all its records. Asks for confirmation unless --yes is given.

    \b
    Examples:
      sawlog topic delete orders -d data
      sawlog topic delete orders -d data --yes
    """
    with open_store(data, broker) as store:
        found = store.topic(name).describe()
    what = f"{counted(found.records, 'record')} ({size_text(found.size_bytes)})"
    confirm(f"delete the topic {name} with {what} in {counted(found.partitions, 'partition')}", yes)
    with open_store(data, broker, "w") as store:
        store.delete_topic(name)
    fields = {"name": name, "id": found.id, "records": found.records, "deleted": True}
    Printer(output).outcome(f"{name}: deleted", fields)


@topics.command(cls=Command)
def trim(
    name: Topic,
    to: str = option("--to OFFSET", "The first offset to keep, such as 500, -100, end or @-7d.", ...),
    data: MaybeData = None,
    broker: BrokerAt = None,
    partition: Partitions = None,
    dry_run: bool = flag("--dry-run", "Show what would be dropped, without changing anything."),
    yes: Yes = False,
    output: Output = "table",
) -> None:
    """Drop the oldest records: up to an offset, up to a time, or all but the last N.

    Readers no longer see records below the offset. A segment file is deleted when all its records are below it.

    \b
    Examples:
      sawlog topic trim orders -d data --to @-7d --dry-run     # drop records older than a week
      sawlog topic trim orders -d data --to 5000 -p 0
      sawlog topic trim orders -d data --to -1000 --yes        # keep the last 1,000 of each partition
    """
    bound = parsed("--to", to, parse_bound)
    with open_store(data, broker) as store:
        rows: list[dict[str, Any]] = []
        for number in chosen(store.topic(name), partition):
            log = store.topic(name).partition(number)
            keep, lowest = offset_of(bound, log), log.lowest_offset
            if remark := outside(bound, log):
                note(f"{name}/{number}: {remark}")
            rows.append(
                {"topic": name, "partition": number, "lowest": lowest, "keep_from": keep, "dropped": keep - lowest}
            )
    going = {row["partition"]: row["keep_from"] for row in rows if row["dropped"]}
    if going and not dry_run:
        confirm(f"drop {counted(sum(row['dropped'] for row in rows), 'record')} of {name}", yes)
        with open_store(data, broker, "w") as store:
            store.topic(name).trim(going)
    Printer(output).rows(rows, columns("topic partition lowest keep_from dropped"))


@topics.command("settings", cls=Command)
def show_settings(output: Output = "table") -> None:
    """List the settings of a topic with a description of each.

    \b
    Examples:
      sawlog topic settings
      sawlog topic settings --output json | jq '.[].name'
    """
    printer = Printer(output)
    if printer.for_people:  # as a list, in which no description is truncated
        printer.item({each.name: each.about for each in SETTINGS.values()}, [Column(each, each) for each in SETTINGS])
    else:
        printer.rows(list(SETTINGS.values()), columns("name about"))


def _report(store: AnyStore, name: str, output: OutputFormat, what: str) -> None:
    topic = store.topic(name)
    given = "".join(f", {key}={_shortened(value)}" for key, value in topic.settings.items())
    fields = {"name": name, "id": topic.id, "partitions": topic.partitions, "settings": topic.settings}
    Printer(output).outcome(f"{name}: {what}, {counted(topic.partitions, 'partition')}{given}", fields)


def _known(name: str) -> str:
    """Return the keyword argument for a setting."""
    found = SETTINGS.get(name) or SETTINGS.get(name.replace("_", "."))
    if found is None:
        raise InvalidConfig(f"unknown setting {name!r}; `sawlog topic settings` lists them")
    return found.keyword


def parse_settings(given: list[str] | None) -> dict[str, Any]:
    """Parse `name=value` pairs to keyword arguments."""
    return {
        _known(name): _from_file(name, value) if value.startswith("@") else value
        for name, value in named_values(given, "--set", "NAME=VALUE, such as retention.ms=7d")
    }


def _from_file(name: str, value: str) -> str:
    """Read the value of a setting from the file that `@FILE` names."""
    try:
        return Path(value[1:]).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{value[1:]} is not text: {error}", param_hint=f"--set {name}") from error


def _shortened(value: object) -> str:
    """Return a setting's value on one line; truncate long ones, such as schemas."""
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
