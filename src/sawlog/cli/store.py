"""`sawlog store`: test whether object storage gives the guarantees that a store depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ..store.objects.bucket.bucket import Bucket
from ..store.objects.bucket.selftest import BRIEF, BRIEF_SCALE, TRIALS, Finding, Scale, refuse, run
from .helping import Command, CommandGroup
from .options import Output
from .output import Column, OutputFormat, note
from .output import Output as Printer
from .terminal import ProgressBar
from .units import format_duration

stores = typer.Typer(help="Test whether object storage is safe for a store.", cls=CommandGroup, rich_markup_mode=None)

_COLUMNS = [
    Column("state"),
    Column("check"),
    Column("requests"),
    Column("elapsed_ms", "time", format_duration),
    Column("evidence", cut=False),
]


@stores.callback()
def _store() -> None:
    """Test whether object storage is safe for a store."""


@stores.command("test", cls=Command)
def try_bucket(
    url: Annotated[str, typer.Argument(metavar="URL", help="The bucket: s3://, gs://, az://, file:// or memory://.")],
    brief: Annotated[bool, typer.Option("--brief", help="Send only about thirty requests.")] = False,
    threads: Annotated[
        int, typer.Option("--threads", min=2, max=256, metavar="N", help="The number of racing threads.")
    ] = 8,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="NAME=VALUE",
            help="A storage option such as endpoint=http://127.0.0.1:8333 or timeout=10s; can be repeated. Pass "
            "credentials in environment variables such as AWS_ACCESS_KEY_ID.",
        ),
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Test whether object storage gives the guarantees that a store depends on.

    Threads race to create the same objects, each over its own connections, requests are abandoned halfway, and new
    objects are read and listed immediately. The test sends about 2,300 requests, works in a folder of its own,
    sawlog-selftest/, and deletes everything it creates. Exits with 1 if requests fail or a guarantee is broken: on a
    server that ignores preconditions, for instance, a store would lose data.

    \b
    Examples:
      sawlog store test s3://bucket/store
      sawlog store test file:///tmp/bucket --output json
      sawlog store test s3://bucket --brief --option endpoint=http://127.0.0.1:8333
    """
    bucket = Bucket(url, parse_options(options))
    names: Sequence[str] = BRIEF if brief else list(TRIALS)
    scale = BRIEF_SCALE if brief else Scale(threads=threads)
    with ProgressBar("testing", len(names), "checks") as progress:
        found = run(bucket, scale, names=names, on_found=lambda _: progress.advance(1))
    printer = Printer(output)
    printer.rows(map(_row, found), _COLUMNS)
    refuse(bucket, found)
    if printer.for_people:
        note(f"{bucket.url} passed all checks")


def _row(found: Finding) -> dict[str, Any]:
    return {
        "state": found.state,
        "check": found.check,
        "requests": found.requests,
        "elapsed_ms": round(found.elapsed_s * 1000, 1),
        "evidence": found.evidence,
    }


def parse_options(options: Sequence[str] | None) -> dict[str, str]:
    """Parse NAME=VALUE pairs. The error does not quote an invalid one, which may be a secret."""
    pairs = [each.partition("=") for each in options or ()]
    if not all(name and sign for name, sign, _ in pairs):
        raise typer.BadParameter("an option is NAME=VALUE", param_hint="--option")
    return {name: value for name, _, value in pairs}
