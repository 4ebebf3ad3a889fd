"""The `sawlog` program: its commands, its help and its version.

A command is imported when it is used: `sawlog serve` does not import what `sawlog pipeline` needs, and typer builds the
options of one command instead of all of them.

`sawlog --help` fits on one screen; `sawlog help` (help.py) prints the rest. The help does not depend on the installed
version of typer, because docs/cli.md is generated from it and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from .. import __version__
from .._kernel_info import kernel_info

#: Summary, module and attribute of each command, in the order of the help.
COMMANDS = {
    "demo": ("See it work: a million records, kill -9, recovery, a query.", "demo", "demo"),
    "topic": ("Create, list, change and delete topics.", "topic", "topics"),
    "produce": ("Write records, from stdin or files.", "produce", "produce"),
    "read": ("Print records: all, the last N, a range, or since a time.", "read", "read"),
    "sql": ("Query topics with SQL.", "sql", "sql"),
    "stats": ("Show partition sizes and record rates, with charts.", "stats", "stats"),
    "groups": ("Show consumer groups and move their offsets.", "groups", "groups"),
    "redrive": ("Return dead letters of a queue to the topics they came from.", "groups", "redrive"),
    "serve": ("Serve the store to Kafka clients.", "serve", "serve"),
    "user": ("Add, list and delete a broker's users.", "security", "users"),
    "acl": ("Manage a broker's access control rules.", "security", "acls"),
    "import": ("Copy another system's logs into topics.", "interop", "import_"),
    "export": ("Write a topic in another system's format.", "interop", "export"),
    "pipeline": ("Run Spark jobs: copy files in and out, verify, repartition, count.", "pipeline", "pipelines"),
    "verify": ("Read and check all data.", "maintenance", "verify"),
    "inspect": ("Show the contents of a log file, batch by batch.", "inspect", "inspect"),
    "repair": ("Show or make the repairs that a damaged store needs.", "maintenance", "repair"),
    "maintenance": ("Delete expired records, compact and merge segments now.", "maintenance", "maintenance"),
    "replicate": ("Replicate a store to object storage, continuously.", "objects", "replicate"),
    "restore": ("Restore a store from object storage, to the latest or an earlier state.", "objects", "restore"),
    "promote": ("Turn a replica into an independent store.", "objects", "promote"),
    "store": ("Test whether object storage is safe for a store.", "objects", "stores"),
    "doctor": ("Check whether this machine and disk suit a store.", "doctor", "doctor"),
    "bench": ("Benchmark this machine and disk.", "doctor", "bench"),
    "help": ("List all commands, the exit codes and examples of all tasks.", "help", "show_help"),
}
#: Commands that `sawlog --help` shows with their summaries, in the order in which people need them, and the others.
_FIRST = ("demo", "topic", "produce", "read", "sql", "stats", "groups", "serve")
_MORE = {
    "broker's users": ("user", "acl"),
    "other systems": ("import", "export", "pipeline"),
    "object storage": ("replicate", "restore", "promote", "store"),
    "maintenance": ("doctor", "verify", "repair", "inspect", "maintenance", "redrive", "bench"),
}

#: Names that other programs have for a command, and the command here.
_OTHER_NAMES = {
    **dict.fromkeys(("consume", "cat", "get", "fetch", "subscribe", "head", "print"), "read TOPIC"),
    "tail": "read TOPIC --tail 10 --follow",
    **dict.fromkeys(("send", "publish", "write", "append", "put", "push"), "produce TOPIC"),
    **dict.fromkeys(("ls", "list", "topics"), "topic list"),
    **dict.fromkeys(("create", "new", "init", "mk"), "topic create TOPIC"),
    **dict.fromkeys(("describe", "show"), "topic describe TOPIC"),
    **dict.fromkeys(("delete", "rm", "remove", "drop"), "topic delete TOPIC"),
    **dict.fromkeys(("alter", "config", "set"), "topic alter TOPIC"),
    **dict.fromkeys(("trim", "truncate"), "topic trim TOPIC"),
    **dict.fromkeys(("query", "select", "duckdb"), "sql"),
    **dict.fromkeys(("info", "status", "du", "count", "top"), "stats"),
    **dict.fromkeys(("group", "consumers", "offsets", "lag"), "groups list"),
    **dict.fromkeys(("broker", "server", "start", "kafka"), "serve"),
    **dict.fromkeys(("check", "fsck", "test"), "verify"),
    **dict.fromkeys(("dump", "hexdump"), "inspect FILE"),
    **dict.fromkeys(("compact", "gc", "clean", "vacuum"), "maintenance"),
    **dict.fromkeys(("backup", "copy", "sync", "mirror"), "replicate"),
    **dict.fromkeys(("dlq", "retry"), "redrive TOPIC"),
    **dict.fromkeys(("users",), "user list"),
    **dict.fromkeys(("acls",), "acl list"),
    **dict.fromkeys(("spark",), "pipeline"),
    "version": "--version",
}
_OTHER_NAMES_IN_GROUPS = {
    **dict.fromkeys(("ls", "show", "all"), "list"),
    **dict.fromkeys(("rm", "remove", "drop"), "delete"),
    **dict.fromkeys(("new", "mk"), "create"),
    **dict.fromkeys(("show", "info", "get", "lag"), "describe"),
    **dict.fromkeys(("set", "config", "update", "edit"), "alter"),
    **dict.fromkeys(("reset", "move", "rewind"), "seek"),
}

#: Help for the options that typer adds.
_TYPER_OPTIONS = {
    "install_completion": "Install completion for this shell: commands, options, topics and groups.",
    "show_completion": "Print the completion script instead of installing it.",
}


class Command(TyperCommand):
    """A command. If it accepts both a directory and a broker, the command line takes precedence over the
    environment."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _write_help(self, ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        names = {each.name for each in self.params}
        if "data" in names and "broker" not in names and any(map(_names_broker, args)):
            raise typer.BadParameter(
                f"`{ctx.command_path}` works on the files of a store, not through a broker: run it where the files "
                "are, with -d DIR",
                ctx=ctx,
            )
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        named = [name for name in ("data", "broker") if ctx.params.get(name) is not None]
        if len(named) == 2 and ctx.params.get("log") is None:
            sources = {name: ctx.get_parameter_source(name).name for name in named}
            if len(set(sources.values())) == 1:
                raise typer.BadParameter(
                    "give the store with -d DIR or its broker with -b HOST:PORT, not both"
                    if sources["data"] == "COMMANDLINE"
                    else "SAWLOG_DATA and SAWLOG_BROKER are both set: choose with -d DIR or -b HOST:PORT",
                    ctx=ctx,
                )
            ctx.params["data" if sources["broker"] == "COMMANDLINE" else "broker"] = None
        return super().invoke(ctx)


def _names_broker(argument: str) -> bool:
    return argument in ("-b", "--broker") or argument.startswith("--broker=")


class CommandGroup(TyperGroup):
    """A group of commands, in the order in which they were added."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _write_help(self, ctx, formatter)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def other_name(self, name: str) -> str | None:
        """Return the command of this group that another program calls `name`."""
        found = _OTHER_NAMES_IN_GROUPS.get(name)
        return found if found in self.commands else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and (ours := self.other_name(args[0])) is not None:
            if len(args) > 1 and not args[1].startswith("-"):
                ours = ours.replace("TOPIC", args[1])
            raise typer.BadParameter(f"no command {args[0]!r}; did you mean `{ctx.command_path} {ours}`?", ctx=ctx)
        return super().resolve_command(ctx, args)

    def first_examples(self) -> Iterator[str]:
        """Yield the first example of each command."""
        for found in self.commands.values():
            _, _, examples = (found.help or "").partition(_EXAMPLES)
            yield from examples.lstrip("\n").splitlines()[:1]

    def summaries(self) -> Iterator[tuple[str, str]]:
        """Yield each command with its one-line summary."""
        for name, found in self.commands.items():
            first = " ".join((found.help or "").partition("\n\n")[0].split()).partition(". ")[0]
            yield name, found.short_help or f"{first.rstrip('.')}."


def command_group(text: str) -> typer.Typer:
    """Create a group of commands with this help text."""
    return typer.Typer(help=text, cls=CommandGroup, rich_markup_mode=None)


#: The beginning of the examples in a docstring. They are not wrapped.
_EXAMPLES = "\b\nExamples:"


def _write_help(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the help of a command or group."""
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
    is_group = isinstance(command, CommandGroup)
    pieces = ["[OPTIONS]", *(each.metavar for each in arguments), *(["COMMAND [ARGS]..."] if is_group else [])]
    formatter.write_usage(ctx.command_path, " ".join(pieces))
    text, marker, examples = (command.help or "").partition(_EXAMPLES)
    if is_group:
        marker, examples = _EXAMPLES, "\n".join(["", *command.first_examples()])
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(text.rstrip())
    if arguments:
        with formatter.section("Arguments"):
            formatter.write_dl([(each.metavar, each.help) for each in arguments])
    with formatter.section("Options"):
        formatter.write_dl([*map(_option, options), ("-h, --help", "Show this message and exit.")])
    if is_group:
        with formatter.section("Commands"):
            formatter.write_dl(list(command.summaries()))
    for end in (marker + examples, command.epilog):
        if end:
            formatter.write_paragraph()
            formatter.write_text(end)


def _option(option: Any) -> tuple[str, str]:
    """Return an option's names and help text."""
    names = ", ".join(sorted(option.opts, key=lambda name: name.startswith("--")))
    if option.secondary_opts:
        names += f" / {', '.join(option.secondary_opts)}"
    spelled = names if option.is_flag or option.metavar is None else f"{names} {option.metavar}"
    facts = [f"env: {option.envvar}"] if option.envvar else []
    default = option.default.value if isinstance(option.default, Enum) else option.default
    if option.required:
        facts.append("required")
    elif default not in (None, "", (), []) and not option.is_flag and not callable(default):
        facts.append(f"default: {default}")
    text = _TYPER_OPTIONS.get(option.name, option.help)
    return spelled, f"{text}  [{'; '.join(facts)}]" if facts else text


class _Commands(Mapping[str, Any]):
    """The commands as typer objects. A lookup imports the command; listing the names imports nothing."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, *COMMANDS[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _load(name: str, summary: str, module: str, attribute: str) -> Any:
    """Import a command and build its typer object."""
    found = getattr(import_module(f".{module}", __package__), attribute)
    holder = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name, short_help=summary)
    else:
        holder.command(name, cls=Command, short_help=summary)(found)
    return typer.main.get_group(holder).commands[name]


_SCREEN = """\
Usage: sawlog COMMAND [OPTIONS] [ARGS]...

  A segmented commit log without a server. Name the directory of its store with
  -d DIR or SAWLOG_DATA, or a broker with -b HOST:PORT or SAWLOG_BROKER.

Commands:
{first}

More commands:
{more}

`sawlog COMMAND --help` has examples. `sawlog help` prints all commands, the
exit codes and more examples. Options: --version, --install-completion, --help
"""


class _Program(CommandGroup):
    """The top-level command group, which imports a command when it is used."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands()  # type: ignore[assignment] # a read-only mapping: no command is added later

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write one screen: at most 24 lines of 80 characters."""
        first = "\n".join(f"  {name:<9} {COMMANDS[name][0]}" for name in _FIRST)
        more = "\n".join(f"  {title:<15} {', '.join(names)}" for title, names in _MORE.items())
        formatter.write(_SCREEN.format(first=first, more=more))

    def other_name(self, name: str) -> str | None:
        return _OTHER_NAMES.get(name)

    def summaries(self) -> Iterator[tuple[str, str]]:
        yield from ((name, summary) for name, (summary, _, _) in COMMANDS.items())


app = typer.Typer(
    name="sawlog",
    cls=_Program,
    rich_markup_mode=None,  # plain help is fast and the same everywhere, and brackets in examples are not markup
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _show_version(wanted: bool) -> None:
    if wanted:
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
    """A segmented commit log without a server."""


@cache
def command() -> Any:
    """Return the program as a typer command, for `run`, completion and the reference."""
    return typer.main.get_command(app)
