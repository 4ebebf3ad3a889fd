"""The `sawlog` program: its help and its version. commands.py lists the commands; each has a module of its own."""

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
    """The top-level command group, which imports a command when it is used."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Commands()  # type: ignore[assignment] # a read-only mapping: no command is added later

    def summaries(self, ctx: Any) -> Iterator[tuple[str, str]]:
        yield from SUMMARIES.items()


app = typer.Typer(
    name="sawlog",
    cls=_Program,
    rich_markup_mode=None,  # plain help is fast and the same everywhere, and brackets in examples are not markup
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
            help="Show the version and the kernel in use, and exit.",
        ),
    ] = False,
) -> None:
    """A segmented commit log without a server: topics, records and consumer groups in a data directory.

    Name the store with -d DIR or the environment variable SAWLOG_DATA. The commands topic, produce, read, groups,
    user, acl and stats also work through a broker (`sawlog serve`): name it with -b HOST:PORT or SAWLOG_BROKER.
    Commands that only read take no lock and can run next to a writer. Data goes to stdout, everything else to stderr.
    In scripts, use --output json, ndjson or csv.

    \b
    Examples:
      export SAWLOG_DATA=data
      sawlog topic create orders --partitions 4
      echo '{"id": 7}' | sawlog produce orders --key id --input ndjson
      sawlog read orders -o -100
      sawlog cheat                      # more examples
    """


@cache
def command() -> Any:
    """Return the program as a typer command, for `run`, completion and the reference."""
    return typer.main.get_command(app)
