"""`sawlog groups`: consumer groups, how far behind they are, and moving them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..topics.store import Store
from .asking import confirm
from .completion import complete_topic
from .helping import Command, CommandGroup
from .offsets import Bound, offset_of, outside, outside_text, parse_bound
from .options import Data, Group, Output, Partitions, parsed
from .output import Column, Format, note
from .output import Output as Printer
from .places import chosen, open_store
from .units import shown_count

groups = typer.Typer(
    help="Show consumer groups, how far behind they are, and move them.", cls=CommandGroup, rich_markup_mode=None
)

_ROW_COLUMNS = [
    Column("topic"),
    Column("partition"),
    Column("committed"),
    Column("lowest"),
    Column("end"),
    Column("lag", shown=shown_count),
    Column("owner"),
]


@groups.command("list", cls=Command)
def list_groups(data: Data, output: Output = Format.TABLE) -> None:
    """List the consumer groups: members, partitions, lag.

    \b
    Examples:
      sawlog groups list -d data
    """
    rows = []
    with open_store(data) as store:
        for name in store.groups.list():
            found = store.groups.describe(name)
            rows.append(
                {
                    "group": name,
                    "members": len(found.members),
                    "partitions": len(found.rows),
                    "lag": sum(row.lag or 0 for row in found.rows),
                }
            )
    columns = [Column("group"), Column("members"), Column("partitions"), Column("lag", shown=shown_count)]
    Printer(output).rows(rows, columns, empty="no groups yet; the first commit of a consumer makes one")


@groups.command(cls=Command)
def describe(group: Group, data: Data, output: Output = Format.TABLE) -> None:
    """Show how far a group is in each partition, and who reads it.

    As csv it is one line a partition; as json it is one object.

    \b
    Examples:
      sawlog groups describe billing -d data
      sawlog groups describe billing -d data --output json | jq '.rows[].lag'
    """
    printer = Printer(output)
    with open_store(data) as store:
        found = store.groups.describe(group)
    rows = [{column.name: getattr(row, column.name) for column in _ROW_COLUMNS} for row in found.rows]
    if output in (Format.JSON, Format.NDJSON):
        printer.item({"group": group, "members": list(found.members), "rows": rows})
        return
    printer.rows(rows, _ROW_COLUMNS, empty=f"{group} has no position yet")
    if printer.for_people:
        lag = sum(row["lag"] or 0 for row in rows)
        note(f"{group}: {len(found.members)} members, {lag:,} records behind")


@groups.command(cls=Command)
def seek(
    group: Group,
    data: Data,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="OFFSET", help="Where to: start, end, 500, -100, +10, @2026-11-01, @-1h."),
    ] = None,
    by: Annotated[
        int | None, typer.Option("--by", metavar="N", help="Relative to what is committed: -100 reads a hundred again.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC", autocompletion=complete_topic, help="Only this one; may be given again."
        ),
    ] = None,
    partition: Partitions = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say where it would go.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Move a group: to an offset, to a time, or by a number of records. Its members must not be running.

    Without --topic all topics that the group has read are moved. A topic that it has not read yet can be named.

    \b
    Examples:
      sawlog groups seek billing -d data --to start
      sawlog groups seek billing -d data --to @2026-11-01T08:00 --topic orders --dry-run
      sawlog groups seek billing -d data --by -100
    """
    if (to is None) == (by is None):
        raise typer.BadParameter("say where: --to OFFSET, or --by N", param_hint="--to")
    bound = parsed("--to", to, parse_bound)
    with open_store(data, "r" if dry_run else "w") as store:
        rows = _moves(store, group, bound, by or 0, topic, partition)
        for row in rows:
            _tell_outside(row)
        if not rows:
            raise typer.BadParameter(f"{group} has read no topic yet; name one with --topic", param_hint="--topic")
        if not dry_run:
            move = store.groups.seek if group in store.groups.list() else store.groups.commit  # a new one is made
            move(group, {(row["topic"], row["partition"]): row["to"] for row in rows})
    columns = [Column("topic"), Column("partition"), Column("committed", "from"), Column("to"), Column("lag")]
    if output is not Format.TABLE:
        columns.append(Column("remark"))  # people have read it on stderr
    Printer(output).rows(rows, columns)
    if dry_run and output is Format.TABLE:
        note("nothing was moved: --dry-run")


@groups.command(cls=Command)
def delete(
    group: Group,
    data: Data,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Forget a group: the next consumer of that name starts as a new one. Asks first, unless --yes is given.

    \b
    Examples:
      sawlog groups delete billing -d data --yes
    """
    with open_store(data) as store:
        found = store.groups.describe(group)
    confirm(f"delete the group {group} with its positions in {len(found.rows)} partitions", yes)
    with open_store(data, "w") as store:
        store.groups.delete(group)
    if output is Format.TABLE:
        note(f"{group} is deleted")
    else:
        Printer(output).item({"group": group, "partitions": len(found.rows), "deleted": True})


def _moves(
    store: Store, group: str, bound: Bound | None, by: int, topics: list[str] | None, partitions: list[int] | None
) -> list[dict[str, Any]]:
    """Where each partition of the group goes."""
    committed = {(row.topic, row.partition): row.committed for row in _rows_of(store, group, bool(topics))}
    names = topics or sorted({topic for topic, _ in committed})
    moves = []
    for name in names:
        for number in chosen(store.topic(name), partitions):
            log, before = store.topic(name).partition(number), committed.get((name, number))
            if bound is not None:
                target, remark = offset_of(bound, log), outside(bound, log)
            else:
                if before is None:
                    continue  # by a number of records from nowhere: there is nothing to move
                target = min(max(before + by, log.lowest_offset), log.visible_offset)
                remark = outside_text(before + by, log.lowest_offset, log.visible_offset)
            lag = log.visible_offset - target
            row = {"topic": name, "partition": number, "committed": before, "to": target, "lag": lag}
            moves.append({**row, "remark": remark})
    return moves


def _tell_outside(row: dict[str, Any]) -> None:
    """Say on stderr, whatever the form of the output, that a partition goes elsewhere than it was sent."""
    if row["remark"]:
        note(f"{row['topic']}/{row['partition']}: {row['remark']}")


def _rows_of(store: Store, group: str, may_be_new: bool) -> list[Any]:
    """What is known of a group; nothing of a new one, if it may be one."""
    if may_be_new and group not in store.groups.list():
        return []
    return list(store.groups.describe(group).rows)
