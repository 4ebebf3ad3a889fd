"""The program itself: its help and its version. commands.py lists the commands, and each has its own file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any

import typer

from .codes import EXIT_CODES
from .commands import SUMMARIES, Commands
from .helping import CommandGroup

_CODES = "\n".join(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items())


class _Program(CommandGroup):
    """The program: its commands are imported when they are used."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Commands()  # type: ignore[assignment] # nothing is added to them

    def summaries(self, ctx: Any) -> Iterator[tuple[str, str]]:
        yield from SUMMARIES.items()


app = typer.Typer(
    name="sawlog",
    cls=_Program,
    rich_markup_mode=None,  # plain help: fast, the same everywhere, and brackets in examples are not markup
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=f"\b\nExit codes:\n{_CODES}",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from .. import __version__
        from .._kernel_info import kernel_info

        print(f"sawlog {__version__}, {'compiled' if kernel_info().compiled else 'interpreted'} kernel")
        raise typer.Exit


@app.callback()
def sawlog(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show version and kernel, and exit.",
        ),
    ] = False,
) -> None:
    """A segmented commit log, without a server: topics, records and groups in a data directory.

    Every command takes the store from -d DIR or from SAWLOG_DATA. topic, produce, read, groups, user, acl and stats
    also take a broker, which `sawlog serve` starts, from -b HOST:PORT or from SAWLOG_BROKER. Commands that only
    read take no lock and can run while a writer is running. Data goes to stdout, everything else to stderr. Use
    --output json, ndjson or csv in scripts.

    \b
    Examples:
      export SAWLOG_DATA=data
      sawlog topic create orders --partitions 4
      echo '{"id": 7}' | sawlog produce orders --key id --input ndjson
      sawlog read orders -o -100
      sawlog cheat                      # print more examples
    """


@cache
def command() -> Any:
    """Return the program as typer's command object, for `run`, completion and the reference."""
    return typer.main.get_command(app)
