"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from .completion import complete_group, complete_topic
from .output import OutputFormat
from .places import parse_directory, parse_location

T = TypeVar("T")
Given = TypeVar("Given")

_PLACE = typer.Option(
    "--data",
    "-d",
    envvar="SAWLOG_DATA",
    show_envvar=True,
    metavar="DIR|URL",
    parser=parse_location,
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
Data = Annotated[Path, _PLACE]
MaybeData = Annotated[Path | None, _PLACE]
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


def parsed(option: str, text: str | None, reader: Callable[[str], T]) -> T | None:
    """Parse an option's value like `read_as`; None if the option was not given."""
    return None if text is None else read_as(reader, text, option)
