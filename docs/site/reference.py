"""The API reference as Markdown pages, made from the code: every public name with its signature, types and docstring.

A page is a set of names. Which page a name of `sawlog` is on follows from the module that defines it, so a new name
needs no entry here. Docstrings are Markdown, like the documents.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from members import Member, described, members

import sawlog

#: Classes that programs receive from another call and never construct: `Store.open`, `store.topic`, `topic.writer` ...
MADE_BY_OTHERS = {
    "AsyncConsumer",
    "AsyncLog",
    "AsyncStore",
    "AsyncTopic",
    "Consumer",
    "ForeignLog",
    "Groups",
    "Log",
    "Message",
    "Opening",
    "Queue",
    "RemoteGroups",
    "RemoteLog",
    "RemoteStore",
    "RemoteTopic",
    "Store",
    "Topic",
    "TopicWriter",
    "Transaction",
    "TypedConsumer",
    "TypedLog",
    "TypedTopic",
    "Writer",
}
_RESULTS = ("Report", "Description", "Info", "Row")  # what calls return
#: The names that a reader looks for, ahead of their page; the rest follows in the order of `__all__`.
FIRST = (
    "open",
    "Store",
    "Topic",
    "TopicWriter",
    "Transaction",
    "Log",
    "Record",
    "LogConfig",
    "Interval",
    "Writer",
    "MaintenanceConfig",
    "TypedTopic",
    "TypedLog",
    "TypedConsumer",
    "TypedRecord",
    "Queue",
    "Message",
)
PIPELINES = ("ingest", "export", "table", "verify", "repartition", "stats", "scaffold")
_PIPELINE_NAMES = ("Params", "Report", "Plan")


@dataclass(frozen=True)
class Part:
    """A module, and the names of it that are documented in one place."""

    module: str
    names: Sequence[str]
    intro: bool = True  # whether the module's docstring comes first


@dataclass(frozen=True)
class Page:
    """A page of the reference."""

    path: str
    title: str
    about: str
    parts: Sequence[Part]
    #: The module whose contents these pages share has its index entry on one of them only.
    declares: bool = True


def pages() -> list[Page]:
    """All pages, in the order of the navigation."""
    return [*_pages_of_sawlog(), *_pages_of_modules(), _pipelines()]


# --- which name is where ---------------------------------------------------------------------------------------------

#: Page of a public name of `sawlog`, by the beginning of its module's name; the first that fits.
_ROOMS = {
    "sawlog.aio": "aio",
    "sawlog.typed": "typed",
    "sawlog.store.queues": "queues",
    "sawlog.store.groups": "groups",
    "sawlog.store": "store",
    "": "log",
}


def _pages_of_sawlog() -> Iterator[Page]:
    by_room: dict[str, list[str]] = {room: [] for room in _ROOMS.values()}
    for name in sorted(
        set(sawlog.__all__) - {"errors"}, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST)
    ):
        home = getattr(getattr(sawlog, name), "__module__", None) or "sawlog"
        room = next(room for beginning, room in _ROOMS.items() if home.startswith(beginning))
        by_room[room].append(name)

    def page(room: str, title: str, about: str, *more: Part) -> Page:
        parts = [Part("sawlog", by_room[room], intro=False), *more]
        return Page(room, title, about, parts, declares=room == "store")

    yield page("store", "Stores and topics", "`sawlog.open` returns a `Store`; its topics are made of logs.")
    yield page("groups", "Consumer groups", "`store.consumer` returns a `Consumer`, `store.groups` looks at groups.")
    yield page("queues", "Queues", "`store.queue` returns a `Queue`: messages that are acknowledged one by one.")
    yield page("log", "Logs and records", "`Log.open` opens one log, the partition of a topic or one by itself.")
    yield page("typed", "Typed records", "`topic.typed` and `log.typed` return views whose records are objects.")
    yield page("aio", "asyncio", "`sawlog.open_async` and `sawlog.open_log_async`.", *_async_classes())
    errors = importlib.import_module("sawlog.errors")
    names = [
        name
        for name, each in inspect.getmembers(errors, inspect.isclass)
        if each.__module__ == "sawlog.errors" and not name.startswith("_")
    ]
    yield Page("errors", "Errors", inspect.getdoc(errors) or "", [Part("sawlog.errors", names, intro=False)])


def _async_classes() -> Iterator[Part]:
    for module, names in (("store", ["Store", "Consumer"]), ("topic", ["Topic", "Log"])):
        yield Part(f"sawlog.aio.{module}", [f"Async{name}" for name in names])
    yield Part("sawlog.aio.waiting", ["Opening"])


def _pages_of_modules() -> Iterator[Page]:
    for path, title in (
        ("spark", "Spark"),
        ("testing", "Testing"),
        ("interop", "Other systems' logs"),
        ("broker.remote", "A client for brokers"),
        ("storage", "Storages"),
    ):
        module = f"sawlog.{path}"
        yield Page(path.replace(".", "-"), title, "", [Part(module, importlib.import_module(module).__all__)])


def _pipelines() -> Page:
    parts = [Part("sawlog.pipelines", [])]
    for name in PIPELINES:
        module = importlib.import_module(f"sawlog.pipelines.{name}")
        parts.append(Part(module.__name__, [*_classes_of_a_job(module), *(["run"] if hasattr(module, "run") else [])]))
    return Page("pipelines", "Pipelines", "", parts)


def _classes_of_a_job(module: ModuleType) -> list[str]:
    return [
        name
        for name, found in vars(module).items()
        if isinstance(found, type) and found.__module__ == module.__name__ and name.endswith(_PIPELINE_NAMES)
    ]


# --- a page as Markdown ----------------------------------------------------------------------------------------------


def markdown(page: Page) -> str:
    """The whole page."""
    lines = [f"# API: {page.title}", "", page.about, ""]
    for number, part in enumerate(page.parts):
        lines += _part(part, heading=number > 0, declares=page.declares or number > 0)
    return "\n".join(lines) + "\n"


def index(all_pages: Sequence[Page]) -> str:
    """Return the first page of the reference, a list of all names."""
    lines = ["# API reference", "", "Made from the code: signatures, types and docstrings of every public name.", ""]
    for page in all_pages:
        lines += [f"- [{page.title}]({page.path}.md): {', '.join(_mentioned(page))}"]
    lines += ["", "```{toctree}", ":hidden:", "", *(f"{page.title} <{page.path}>" for page in all_pages), "```", ""]
    return "\n".join(lines)


def _mentioned(page: Page) -> Iterator[str]:
    for part in page.parts:
        prefix = "" if part.module == "sawlog" or part.module.startswith("sawlog.aio.") else f"{part.module}."
        yield from (f"`{prefix or 'sawlog.'}{name}`" if name.islower() else f"`{name}`" for name in part.names)


def _part(part: Part, *, heading: bool, declares: bool) -> Iterator[str]:
    module = importlib.import_module(part.module)
    if heading:
        yield from (f"## {part.module}", "")
    yield from (f"```{{py:{'module' if declares else 'currentmodule'}}} {part.module}", "```", "")
    if part.intro:
        yield from (inspect.getdoc(module) or "", "")
    for name in part.names:
        yield from _object(name, getattr(module, name))


def _object(name: str, found: Any) -> Iterator[str]:
    shown = described(name, found, constructor=not (name in MADE_BY_OTHERS or name.endswith(_RESULTS)))
    inside: list[str] = []
    if isinstance(found, type):
        inside = _bases(found)
        for member in members(found):
            inside += _directive(member, [], 4)
    yield from _directive(shown, inside, 5)


def _bases(found: type) -> list[str]:
    """Return the base classes of an error, which tell what `except` catches it."""
    if not issubclass(found, BaseException):
        return []
    return ["Bases: " + ", ".join(f"`{base.__name__}`" for base in found.__bases__), ""]


def _directive(member: Member, inside: Sequence[str], fence: int) -> Iterator[str]:
    """A name for Sphinx. Longer fences go around shorter ones."""
    yield f"{':' * fence}{{py:{member.kind}}} {member.name}{member.signature}"
    for key, value in member.options.items():
        yield f":{key}: {json.dumps(value) if value else ''}".rstrip()
    yield from ("", member.text, "", *inside, ":" * fence, "")
