"""Assembles the commands into one program. Each command has its own file."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import typer

from .bench import bench
from .cheat import cheat
from .codes import EXIT_CODES
from .doctor import doctor
from .groups import groups
from .helping import Command, CommandGroup
from .inspect import inspect
from .interop import export, import_
from .pipeline import pipelines
from .produce import produce
from .read import read
from .redrive import redrive
from .repair import repair
from .serve import serve
from .sql import sql
from .stats import stats
from .topic import topics
from .upkeep import upkeep
from .verify import verify

#: The commands with their short descriptions, in the order of the help.
_COMMANDS = {
    "topic": "Create, list, change and delete topics.",
    "produce": "Write records, from stdin or files.",
    "read": "Print records: all, the last N, a range, or since a time.",
    "sql": "Query topics with SQL.",
    "serve": "Let Kafka clients connect to the store.",
    "groups": "Show consumer groups and move their offsets.",
    "redrive": "Put dead letters of a queue back.",
    "stats": "Show sizes and rates, with a plot.",
    "verify": "Read and check all data.",
    "inspect": "Show the content of a log file, batch by batch.",
    "import": "Copy another system's logs into topics.",
    "export": "Write a topic in another system's format.",
    "repair": "Show or apply what recovery can repair.",
    "pipeline": "Run jobs on Spark: ingest, export, verify, rewrite, count.",
    "upkeep": "Run retention, compaction and merging now.",
    "doctor": "Check this machine and this disk.",
    "bench": "Benchmark this machine and this disk.",
    "cheat": "Print a page of examples.",
}

_CODES = "\n".join(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items())


class _Program(CommandGroup):
    """The program: its commands in the order of `_COMMANDS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)


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
        from .. import __version__, kernel_info

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

    Every command takes the store from -d DIR or from SAWLOG_DATA. topic, produce, read, groups and stats also take a
    broker, which `sawlog serve` starts, from -b HOST:PORT or from SAWLOG_BROKER. Commands that only read take no lock
    and can run while a writer is running. Data goes to stdout, everything else to stderr. Use --output json, ndjson or
    csv in scripts.

    \b
    Examples:
      export SAWLOG_DATA=data
      sawlog topic create orders --partitions 4
      echo '{"id": 7}' | sawlog produce orders --key id --input ndjson
      sawlog read orders -o -100
      sawlog cheat                      # print more examples
    """


app.add_typer(topics, name="topic", short_help=_COMMANDS["topic"])
app.add_typer(groups, name="groups", short_help=_COMMANDS["groups"])
app.add_typer(pipelines, name="pipeline", short_help=_COMMANDS["pipeline"])
for _each in (
    produce,
    read,
    redrive,
    sql,
    serve,
    stats,
    verify,
    inspect,
    import_,
    export,
    repair,
    upkeep,
    doctor,
    bench,
    cheat,
):
    _name = _each.__name__.rstrip("_")
    app.command(_name, cls=Command, short_help=_COMMANDS[_name])(_each)


@cache
def command() -> Any:
    """Return the program as typer's command object, for `run`, completion and the reference."""
    return typer.main.get_command(app)
