"""The command classes: their help format, and the choice between a store's directory and its broker.

The help text does not depend on the installed version of typer, because docs/cli.md is generated from it and a test
compares the two. It consists of usage, description, arguments, options and commands, all taken from the command.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

#: Help for the options that typer adds.
_TYPER_OPTIONS = {
    "install_completion": "Install completion for this shell: commands, options, topics and groups.",
    "show_completion": "Print the completion script instead of installing it.",
}


class Command(TyperCommand):
    """A command with our help format. If it accepts both a directory and a broker, the command line takes precedence
    over the environment."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        write_help(self, ctx, formatter)

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
    """A group of commands, in the order in which they were added, with our help format."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        write_help(self, ctx, formatter)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def summaries(self, ctx: Any) -> Iterator[tuple[str, str]]:
        """Yield each command with its one-line summary."""
        for name in self.list_commands(ctx):
            found = self.get_command(ctx, name)
            assert found is not None
            first = " ".join((found.help or "").partition("\n\n")[0].split()).partition(". ")[0]
            yield name, found.short_help or f"{first.rstrip('.')}."


def write_help(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the help of a command or group."""
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
    is_group = isinstance(command, CommandGroup)
    pieces = ["[OPTIONS]", *(each.metavar for each in arguments), *(["COMMAND [ARGS]..."] if is_group else [])]
    formatter.write_usage(ctx.command_path, " ".join(pieces))
    if command.help:
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(command.help)
    if arguments:
        with formatter.section("Arguments"):
            formatter.write_dl([(each.metavar, each.help) for each in arguments])
    with formatter.section("Options"):
        formatter.write_dl([*map(_option, options), ("-h, --help", "Show this message and exit.")])
    if is_group:
        with formatter.section("Commands"):
            formatter.write_dl(list(command.summaries(ctx)))
    if command.epilog:
        formatter.write_paragraph()
        formatter.write_text(command.epilog)


def _option(option: Any) -> tuple[str, str]:
    """Return an option's names and help text."""
    names = ", ".join(sorted(option.opts, key=lambda name: name.startswith("--")))
    if option.secondary_opts:
        names += f" / {', '.join(option.secondary_opts)}"
    spelled = names if option.is_flag or option.metavar is None else f"{names} {option.metavar}"
    text, more = _TYPER_OPTIONS.get(option.name, option.help), list(_facts(option))
    return spelled, f"{text}  [{'; '.join(more)}]" if more else text


def _facts(option: Any) -> Iterator[str]:
    if option.envvar:
        yield f"env: {option.envvar}"
    if option.required:
        yield "required"
    elif option.default is not None and not option.is_flag and not callable(option.default):
        default = option.default.value if isinstance(option.default, Enum) else option.default
        if default not in ("", ()) and default != []:
            yield f"default: {default}"
