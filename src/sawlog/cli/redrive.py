"""`sawlog redrive`: return dead letters to the topics that they came from."""

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
            "--to",
            metavar="TOPIC",
            autocompletion=complete_topic,
            help="Send the letters to this topic instead of their own.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Return at most N letters, oldest first.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the letters that would be returned, without changing anything.")
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Return dead letters to the topics that they came from.

    TOPIC is the dead-letter topic, such as orders-dead. Fix the cause first, then run this command. It returns each
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
    with open_store(data, "r" if dry_run else "w") as store, ProgressBar("redriving", None, "letters") as bar:
        rows = put_back(store, topic, group=group, to=to, limit=limit, dry_run=dry_run, progress=bar.advance)
    found = [
        {"group": row.group, "topic": row.topic, "partition": row.partition, "letters": row.letters} for row in rows
    ]
    columns = [Column("group"), Column("topic"), Column("partition", "from partition"), Column("letters")]
    Printer(output).rows(found, columns, empty=f"{topic}: no dead letters to return")
    if output is OutputFormat.TABLE and found:
        count = sum(row.letters for row in rows)
        note(f"dry run: {count:,} would be returned" if dry_run else f"{topic}: {count:,} returned")
