"""The commands by name, in the order of the help. Each is imported when it is asked for.

`sawlog serve` does not import what `sawlog pipeline` needs, and typer builds the options of one command, not of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer

from .helping import Command

#: What each is for, in the order of the help.
SUMMARIES = {
    "topic": "Create, list, change and delete topics.",
    "produce": "Write records, from stdin or files.",
    "read": "Print records: all, the last N, a range, or since a time.",
    "sql": "Query topics with SQL.",
    "serve": "Let Kafka clients connect to the store.",
    "acl": "Say who may do what at a broker.",
    "groups": "Show consumer groups and move their offsets.",
    "user": "Add, list and delete users of the broker.",
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
    "store": "Test whether object storage is safe for a store.",
    "replicate": "Ship a store to object storage, and keep that up to date.",
    "restore": "Bring a store back from object storage, now or as it was.",
    "promote": "Make a replica a store of its own.",
    "bench": "Benchmark this machine and this disk.",
    "cheat": "Print a page of examples.",
}

#: Module and attribute of those that are not a function of their own name in a module of that name.
_ELSEWHERE = {
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
    """The commands as typer's objects. Looking one up imports it; listing their names imports none."""

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
    """Import a command, and let typer build it."""
    module, attribute = _ELSEWHERE.get(name, (name, name))
    found = getattr(import_module(f".{module}", __package__), attribute)
    holder = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name, short_help=SUMMARIES[name])
    else:
        holder.command(name, cls=Command, short_help=SUMMARIES[name])(found)
    return typer.main.get_group(holder).commands[name]
