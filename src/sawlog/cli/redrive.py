"""`sawlog redrive`: puts dead letters of a queue back into the topic that they came from."""

from __future__ import annotations

from typing import Annotated

import typer

from ..store.queues.redrive import redrive as put_back
from .completion import complete_group, complete_topic
from .options import DirectoryData, Output, Topic
from .output import Column, OutputFormat, note
from .output import Output as Printer
from .places import open_store
from .terminal import ProgressBar


def redrive(
    topic: Topic,
    data: DirectoryData,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", metavar="GROUP", autocompletion=complete_group, help="Only dead letters of this group."
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="TOPIC", autocompletion=complete_topic, help="Put them into this topic, not into their own."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Stop after N letters, oldest first.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would go back without changing anything.")
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Put dead letters of a queue back into the topics that they came from.

    TOPIC is the topic of dead letters, such as orders-dead. Each letter goes back once, also if this command is
    interrupted and repeated: run it after the cause is fixed. A message that goes back is delivered by the queue of its
    own group only, with its deliveries counted from 1. The letters stay in their topic until retention or `sawlog topic
    trim` removes them; `sawlog read orders-dead --output json` shows why each died (the header sawlog.dead.reason).

    \b
    Examples:
      sawlog redrive orders-dead -d data --dry-run
      sawlog redrive orders-dead -d data
      sawlog redrive orders-dead -d data --group workers --limit 10
      sawlog redrive orders-dead -d data --to orders-retry
    """
    with open_store(data, "r" if dry_run else "w") as store, ProgressBar("redriving", None, "letters") as bar:
        rows = put_back(store, topic, group=group, to=to, limit=limit, dry_run=dry_run, progress=bar.advance)
    found = [
        {"group": row.group, "topic": row.topic, "partition": row.partition, "letters": row.letters} for row in rows
    ]
    columns = [Column("group"), Column("topic"), Column("partition", "from partition"), Column("letters")]
    Printer(output).rows(found, columns, empty=f"{topic}: no dead letters to put back")
    if output is OutputFormat.TABLE and found:
        count = sum(row.letters for row in rows)
        note(f"dry run: {count:,} would go back" if dry_run else f"{topic}: {count:,} put back")
