"""Declarations of options: `option`, `flag` and `argument`, and the options that several commands share.

A command is a function: its parameters are its options, its docstring is its help. An option of its own is the
parameter's default (`key: str | None = option("--key -k FIELD", "The field with the key.")`), a shared one its type
(`data: MaybeData = None`), which is declared with the default `...`, because each command gives its own.

Completion never fails: if the store is missing or damaged, it offers no candidates.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, overload

import typer

from ..config import Isolation
from .output import OutputFormat
from .stores import open_store, parse_directory

if TYPE_CHECKING:
    from .stores import AnyStore

T = TypeVar("T")
Given = TypeVar("Given")

# --- completion


def complete_topic(ctx: Any, incomplete: str) -> list[str]:
    """Return the topics of the store or broker that the command line or the environment names."""
    return _offered(ctx, incomplete, lambda store: store.topics())


def complete_group(ctx: Any, incomplete: str) -> list[str]:
    """Return the groups of that store."""
    return _offered(ctx, incomplete, lambda store: store.groups.list())


def complete_setting(incomplete: str) -> list[str]:
    """Return `NAME=` for each topic setting; after `=`, the values that the setting accepts."""
    from ..store.settings import SETTINGS, values_of

    name, given, _ = incomplete.partition("=")
    if not given:
        return [f"{each}=" for each in SETTINGS if each.startswith(name)]
    offered = [f"{name}={value}" for value in values_of(name)] if name in SETTINGS else []
    return [each for each in offered if each.startswith(incomplete)]


def complete_setting_name(incomplete: str) -> list[str]:
    """Return the names of the topic settings."""
    from ..store.settings import SETTINGS

    return [each for each in SETTINGS if each.startswith(incomplete)]


def _offered(ctx: Any, incomplete: str, names: Callable[[AnyStore], Iterable[str]]) -> list[str]:
    data, broker = ctx.params.get("data"), ctx.params.get("broker")
    if data is None and broker is None:
        data, broker = os.environ.get("SAWLOG_DATA"), os.environ.get("SAWLOG_BROKER")
    try:
        with open_store(data, broker) as store:
            return [name for name in names(store) if name.startswith(incomplete)]
    except Exception:  # an incomplete command line is no place to report errors
        return []


# --- declaring options


def option(spec: str, text: str, default: Any = None, **more: Any) -> Any:
    """Declare an option. `spec` has its names and the metavar of its value. A default of `...` makes it required."""
    *names, metavar = spec.split()
    return typer.Option(default, *names, metavar=metavar, help=text, **more)


def flag(spec: str, text: str, default: Any = False) -> Any:
    """Declare a flag; `--apply/--plan` has a name for each value."""
    return typer.Option(default, *spec.split(), help=text)


def argument(metavar: str, text: str, default: Any = None, **more: Any) -> Any:
    """Declare an argument. A default of `...` makes it required."""
    return typer.Argument(default, metavar=metavar, help=text, **more)


_DATA_HELP = "The data directory of the store, or its URL on object storage: s3://bucket/store."
_STORE = option("--data -d DIR|URL", _DATA_HELP, ..., envvar="SAWLOG_DATA")
_DIRECTORY = option(
    "--data -d DIR", "The data directory of the store.", ..., envvar="SAWLOG_DATA", parser=parse_directory
)
Data = Annotated[str, _STORE]
MaybeData = Annotated[str | None, _STORE]
#: For commands that work on the files of a directory.
DirectoryData = Annotated[Path, _DIRECTORY]
MaybeDirectoryData = Annotated[Path | None, _DIRECTORY]
BrokerAt = Annotated[
    str | None,
    option(
        "--broker -b HOST:PORT|FILE",
        "The store's broker, instead of its directory. FILE.toml holds its address and the credentials.",
        ...,
        envvar="SAWLOG_BROKER",
    ),
]
LogDir = Annotated[Path | None, option("--log DIR", "The directory of one partition, instead of a store.", ...)]
Output = Annotated[
    OutputFormat,
    option(
        "--output table|json|ndjson|csv",
        "The output format; table is for people, the others are for programs.",
        ...,
        case_sensitive=False,
    ),
]
Topic = Annotated[str, argument("TOPIC", "The topic.", ..., autocompletion=complete_topic)]
MaybeTopic = Annotated[
    str | None, argument("[TOPIC]", "The topic.  [default: all topics]", ..., autocompletion=complete_topic)
]
Group = Annotated[str, argument("GROUP", "The consumer group.", ..., autocompletion=complete_group)]
Partitions = Annotated[
    list[int] | None, option("--partition -p N", "Only this partition; can be repeated.", ..., min=0)
]
Yes = Annotated[bool, flag("--yes -y", "Do not ask for confirmation.", ...)]
IsolationLevel = Annotated[
    Isolation,
    option(
        "--isolation committed|uncommitted", "committed leaves out records of open and aborted Kafka transactions.", ...
    ),
]

# --- parsing their values


@overload
def parsed(hint: str, given: None, reader: Callable[[Any], T]) -> None: ...
@overload
def parsed(hint: str, given: Given, reader: Callable[[Given], T]) -> T: ...
def parsed(hint: str, given: Any, reader: Callable[[Any], Any]) -> Any:
    """Parse an option's value with `reader`; None if the option was not given. A `ValueError` becomes a usage error
    that names the option by `hint`."""
    try:
        return None if given is None else reader(given)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from error


def named_values(given: Iterable[str] | None, hint: str, form: str = "NAME=VALUE") -> Iterator[tuple[str, str]]:
    """Split the values of a repeatable option at their first equals sign."""
    for pair in given or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"{pair!r} is not {form}", param_hint=hint)
        yield name, value
