"""`sawlog groups` and `sawlog redrive`: show consumer groups, move their offsets, and return dead letters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer

from ..display import count_text, counted
from ..store.queues.redrive import redrive as put_back
from . import CORRUPT
from .options import (
    BrokerAt,
    DirectoryData,
    Group,
    MaybeData,
    Output,
    Partitions,
    Yes,
    argument,
    complete_group,
    complete_topic,
    flag,
    option,
    parsed,
)
from .output import Column, Printer, ProgressBar, columns, confirm, note
from .parsing import Bound, offset_of, outside, outside_text, parse_bound
from .program import Command, command_group
from .stores import chosen, open_directory, open_groups_log, open_store

if TYPE_CHECKING:
    from ..store.groups import GroupRow
    from .stores import AnyStore

groups = command_group("Show consumer groups and their lag, and move their offsets.")

_LAG = Column("lag", shown=count_text)
_OWNER = Column("owner", rank=1)
_ROW_COLUMNS = columns("topic partition committed", Column("lowest", rank=2), "end", _LAG, "open", _OWNER)


@groups.command("list", cls=Command)
def list_groups(data: MaybeData = None, broker: BrokerAt = None, output: Output = "table") -> None:
    """List the consumer groups with their members, partitions and lag.

    A group's lag is the number of records after its committed offsets: what it has not consumed yet. OPEN is the number
    of messages of a queue that are not finished.

    Only the broker knows the members of a group that it serves. With -d, the list shows the broker's address instead.

    \b
    Examples:
      sawlog groups list -d data
      sawlog groups list -b 127.0.0.1:9092
    """
    rows = []
    with open_store(data, broker) as store:
        for name in store.groups.list():
            found = store.groups.describe(name)
            rows.append(
                {
                    "group": name,
                    "members": len(found.members) if found.served_at is None else None,
                    "partitions": len(found.rows),
                    "lag": sum(row.lag or 0 for row in found.rows),
                    "open": _open_count(found.rows),
                    "broker": found.served_at,
                }
            )
    printer, served = Printer(output), [row for row in rows if row["broker"] is not None]
    broker_too = "broker" if served or not printer.for_people else ""
    queues = any(row["open"] is not None for row in rows)
    open_too = "open" if queues or not printer.for_people else ""
    shown = columns("group members partitions", _LAG, open_too, broker_too)
    printer.rows(rows, shown, empty="no groups yet; a consumer's first commit creates one")
    if served:
        printer.remark(f"to see the members, ask the broker: sawlog groups list -b {served[0]['broker']}")
    _report_lost_commits(data)


@groups.command(cls=Command)
def describe(group: Group, data: MaybeData = None, broker: BrokerAt = None, output: Output = "table") -> None:
    """Show a group's position and lag in each partition, and the member that reads it.

    OPEN is the number of messages of a queue that are not finished: new, delayed, or with a worker. The lag of a queue
    is larger if messages after the first open one are finished.

    --output csv prints one line per partition, json one object.

    \b
    Examples:
      sawlog groups describe billing -d data
      sawlog groups describe billing -d data --output json | jq '.rows[].lag'
    """
    printer = Printer(output)
    with open_store(data, broker) as store:
        found = store.groups.describe(group)
    members = list(found.members) if found.served_at is None else None
    whole = {"group": group, "members": members, "broker": found.served_at, "rows": found.rows}
    open_count = _open_count(found.rows)
    is_queue = open_count is not None
    shown = [column for column in _ROW_COLUMNS if is_queue or not printer.for_people or column.name != "open"]
    printer.object_or_rows(whole, found.rows, shown, empty=f"{group} has no committed offsets yet")
    about = f"served by the broker {found.served_at}" if members is None else counted(len(members), "member")
    if open_count is not None:
        left = f"{counted(open_count, 'message')} open"
    else:
        left = f"{counted(sum(row.lag or 0 for row in found.rows), 'record')} not yet consumed"
    printer.remark(f"{group}: {about}, {left}")
    _report_lost_commits(data)


@groups.command(cls=Command)
def seek(
    group: Group,
    data: MaybeData = None,
    broker: BrokerAt = None,
    to: str | None = option(
        "--to OFFSET", "The new position: start (or earliest), end (latest), 500, -100, +10, @2026-11-01 or @-1h."
    ),
    by: int | None = option(
        "--by N", "Move by N records from the committed offset; -100 makes the group read the last 100 again."
    ),
    topic: list[str] | None = option(
        "--topic -t TOPIC", "Only this topic; can be repeated.", autocompletion=complete_topic
    ),
    partition: Partitions = None,
    dry_run: bool = flag("--dry-run", "Show the new offsets without changing anything."),
    output: Output = "table",
) -> None:
    """Move a group to an offset, to a time, or by a number of records. Stop its members first.

    Without --topic, the group moves in every topic that it has read. --topic also accepts topics that the group has
    not read yet.

    \b
    Examples:
      sawlog groups seek billing -d data --to start
      sawlog groups seek billing -d data --to @2026-11-01T08:00 --topic orders --dry-run
      sawlog groups seek billing -d data --by -100
    """
    if (to is None) == (by is None):
        raise typer.BadParameter("give either --to OFFSET or --by N", param_hint="--to")
    bound = parsed("--to", to, parse_bound)
    with open_store(data, broker, "r" if dry_run else "w") as store:
        rows = _moves(store, group, bound, by or 0, topic, partition)
        for row in rows:  # in every output format: the requested offset was adjusted
            if row["remark"]:
                note(f"{row['topic']}/{row['partition']}: {row['remark']}")
        if not rows:
            raise typer.BadParameter(f"{group} has not read any topic yet; give one with --topic", param_hint="--topic")
        if not dry_run:
            exists = group in store.groups.list()
            move = store.groups.seek if exists else store.groups.commit  # `commit` creates a new group
            move(group, {(row["topic"], row["partition"]): row["to"] for row in rows})
    printer = Printer(output)
    remark = "" if printer.for_people else "remark"  # people see it on stderr
    printer.rows(rows, columns("topic partition", Column("committed", "from"), "to lag", remark))
    if dry_run:
        printer.remark("dry run: nothing was changed")


@groups.command(cls=Command)
def delete(
    group: Group,
    data: MaybeData = None,
    broker: BrokerAt = None,
    yes: Yes = False,
    output: Output = "table",
) -> None:
    """Delete a group and its offsets. A later consumer with that name starts as a new group. Asks for confirmation
    unless --yes is given.

    \b
    Examples:
      sawlog groups delete billing -d data --yes
      sawlog groups delete billing -b 127.0.0.1:9092 --yes
    """
    with open_store(data, broker) as store:
        found = store.groups.describe(group)
    confirm(f"delete the group {group} with its offsets in {counted(len(found.rows), 'partition')}", yes)
    with open_store(data, broker, "w") as store:
        store.groups.delete(group)
    fields = {"group": group, "partitions": len(found.rows), "deleted": True}
    Printer(output).outcome(f"{group}: deleted", fields)


def _open_count(rows: Iterable[GroupRow]) -> int | None:
    """Return how many messages of a queue are not finished; None if the group is not that of a queue."""
    counts = [row.open for row in rows if row.open is not None]
    return sum(counts) if counts else None


def _report_lost_commits(data: str | None) -> None:
    """Exit with 4 if commits were lost: groups may be missing from the list, or show an earlier position."""
    with open_groups_log(data) as log:
        problems = [] if log is None else log.verify().problems
    for each in problems:
        note(f"!! {each}; commits may be lost")
    if problems:
        raise typer.Exit(CORRUPT)


def _moves(
    store: AnyStore, group: str, bound: Bound | None, by: int, topics: list[str] | None, partitions: list[int] | None
) -> list[dict[str, Any]]:
    """Return the new offset of each partition."""
    is_new = topics and group not in store.groups.list()  # `describe` raises if there is no such group
    found = () if is_new else store.groups.describe(group).rows
    committed = {(row.topic, row.partition): row.committed for row in found}
    names = topics or sorted({topic for topic, _ in committed})
    moves = []
    for name in names:
        for number in chosen(store.topic(name), partitions):
            log, before = store.topic(name).partition(number), committed.get((name, number))
            if bound is not None:
                target, remark = offset_of(bound, log), outside(bound, log)
            else:
                if before is None:
                    continue  # no committed offset to move from
                target = min(max(before + by, log.lowest_offset), log.visible_offset)
                remark = outside_text(before + by, log.lowest_offset, log.visible_offset)
            lag = log.visible_offset - target
            row = {"topic": name, "partition": number, "committed": before, "to": target, "lag": lag}
            moves.append({**row, "remark": remark})
    return moves


def redrive(
    data: DirectoryData,
    topic: str = argument("TOPIC", "The dead-letter topic.", ..., autocompletion=complete_topic),
    group: str | None = option("--group -g GROUP", "Only dead letters of this group.", autocompletion=complete_group),
    to: str | None = option(
        "--to TOPIC", "Send the letters to this topic instead of their own.", autocompletion=complete_topic
    ),
    limit: int | None = option("--limit N", "Return at most N letters, oldest first.", min=1),
    dry_run: bool = flag("--dry-run", "Show the letters that would be returned, without changing anything."),
    output: Output = "table",
) -> None:
    """Return dead letters to the topics that they came from.

    A dead letter is a message that the consumers of a queue failed to process too often; TOPIC is the topic that
    collects them, such as orders-dead. Fix the cause first, then run this command. It returns each
    letter once, even if it is interrupted and run again. Only the queue of the letter's own group delivers the message
    again, counting deliveries from 1. The letters stay in the dead-letter topic until retention or `sawlog topic trim`
    removes them; `sawlog read orders-dead --output json` shows why each one died (header sawlog.dead.reason).

    \b
    Examples:
      sawlog redrive orders-dead -d data --dry-run
      sawlog redrive orders-dead -d data
      sawlog redrive orders-dead -d data --group workers --limit 10
      sawlog redrive orders-dead -d data --to orders-retry
    """
    with open_directory(data, "r" if dry_run else "w") as store, ProgressBar("redriving", None, "letters") as bar:
        rows = put_back(store, topic, group=group, to=to, limit=limit, dry_run=dry_run, progress=bar.advance)
    printer = Printer(output)
    shown = columns("group topic", Column("partition", "from partition"), "letters")
    printer.rows(rows, shown, empty=f"{topic}: no dead letters to return")
    if rows:
        count = sum(row.letters for row in rows)
        printer.remark(f"dry run: {count:,} would be returned" if dry_run else f"{topic}: {count:,} returned")
