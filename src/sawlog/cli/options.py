"""Options that several commands share, and shell completion of topic, group and setting names.

Completion never fails: if the store is missing or damaged, it offers no candidates.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from .output import OutputFormat
from .places import open_place, parse_directory

if TYPE_CHECKING:
    from .places import AnyStore


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
        with open_place(data, broker) as store:
            return [name for name in names(store) if name.startswith(incomplete)]
    except Exception:  # an incomplete command line is no place to report errors
        return []


T = TypeVar("T")
Given = TypeVar("Given")

_PLACE = typer.Option(
    "--data",
    "-d",
    envvar="SAWLOG_DATA",
    show_envvar=True,
    metavar="DIR|URL",
    help="The data directory of the store, or its URL on object storage: s3://bucket/store.",
)
_DIRECTORY = typer.Option(
    "--data",
    "-d",
    envvar="SAWLOG_DATA",
    show_envvar=True,
    metavar="DIR",
    parser=parse_directory,
    help="The data directory of the store.",
)
Data = Annotated[str, _PLACE]
MaybeData = Annotated[str | None, _PLACE]
#: For commands that work on the files of a directory.
DirectoryData = Annotated[Path, _DIRECTORY]
MaybeDirectoryData = Annotated[Path | None, _DIRECTORY]
BrokerAt = Annotated[
    str | None,
    typer.Option(
        "--broker",
        "-b",
        envvar="SAWLOG_BROKER",
        show_envvar=True,
        metavar="HOST:PORT|FILE",
        help="The store's broker, instead of its directory. FILE.toml holds its address and the credentials.",
    ),
]
LogDir = Annotated[
    Path | None,
    typer.Option("--log", metavar="DIR", help="The directory of one partition, instead of a store."),
]
Output = Annotated[
    OutputFormat,
    typer.Option(
        "--output",
        metavar="table|json|ndjson|csv",
        help="The output format; table is for people, the others are for programs.",
        case_sensitive=False,
    ),
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topic)]
MaybeTopic = Annotated[
    str | None,
    typer.Argument(metavar="[TOPIC]", help="The topic.  [default: all topics]", autocompletion=complete_topic),
]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.", autocompletion=complete_group)]
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", metavar="N", min=0, help="Only this partition; can be repeated."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def read_as(reader: Callable[[Given], T], given: Given, option: str) -> T:
    """Parse an option's value with `reader`; a `ValueError` becomes a usage error that names the option."""
    try:
        return reader(given)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def named_values(given: Iterable[str] | None, option: str, form: str = "NAME=VALUE") -> Iterator[tuple[str, str]]:
    """Split the values of a repeatable option at their first equals sign."""
    for pair in given or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"{pair!r} is not {form}", param_hint=option)
        yield name, value


def parsed(option: str, text: str | None, reader: Callable[[str], T]) -> T | None:
    """Parse an option's value like `read_as`; None if the option was not given."""
    return None if text is None else read_as(reader, text, option)
