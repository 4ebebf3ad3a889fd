"""The commands by name, in the order of the help. A command is imported when it is first looked up.

`sawlog serve` therefore does not import what `sawlog pipeline` needs, and typer builds the options of one command
instead of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer

from .helping import Command

#: One-line summaries, in the order of the help.
SUMMARIES = {
    "topic": "Create, list, change and delete topics.",
    "produce": "Write records, from stdin or files.",
    "read": "Print records: all, the last N, a range, or since a time.",
    "sql": "Query topics with SQL.",
    "serve": "Serve the store to Kafka clients.",
    "acl": "Manage a broker's access control rules.",
    "groups": "Show consumer groups and move their offsets.",
    "user": "Add, list and delete a broker's users.",
    "redrive": "Return dead letters to their queue.",
    "stats": "Show sizes and rates, with charts.",
    "verify": "Read and check all data.",
    "inspect": "Show the contents of a log file, batch by batch.",
    "import": "Copy another system's logs into topics.",
    "export": "Write a topic in another system's format.",
    "repair": "Plan or apply repairs.",
    "pipeline": "Run jobs on Spark: ingest, export, verify, rewrite, count.",
    "maintenance": "Run retention, compaction and merging now.",
    "doctor": "Check whether this machine and disk suit a store.",
    "store": "Test whether object storage is safe for a store.",
    "replicate": "Replicate a store to object storage, continuously.",
    "restore": "Restore a store from object storage, to the latest or an earlier state.",
    "promote": "Turn a replica into an independent store.",
    "bench": "Benchmark this machine and disk.",
    "cheat": "Print a page of examples.",
}

#: Module and attribute of each command that is not a function NAME in a module NAME.
_LOCATIONS = {
    "topic": ("topic", "topics"),
    "acl": ("acl", "acls"),
    "user": ("user", "users"),
    "import": ("interop", "import_"),
    "export": ("interop", "export"),
    "pipeline": ("pipeline", "pipelines"),
    "store": ("store", "stores"),
    "replicate": ("replicas", "replicate"),
    "restore": ("replicas", "restore"),
    "promote": ("replicas", "promote"),
}


class Commands(Mapping[str, Any]):
    """The commands as typer objects. A lookup imports the command; listing the names imports nothing."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in SUMMARIES:
            raise KeyError(name)
        if name not in self._loaded:
            self._loaded[name] = _load(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(SUMMARIES)

    def __len__(self) -> int:
        return len(SUMMARIES)


def _load(name: str) -> Any:
    """Import a command and build its typer object."""
    module, attribute = _LOCATIONS.get(name, (name, name))
    found = getattr(import_module(f".{module}", __package__), attribute)
    holder = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name, short_help=SUMMARIES[name])
    else:
        holder.command(name, cls=Command, short_help=SUMMARIES[name])(found)
    return typer.main.get_group(holder).commands[name]
