"""Packages that may use the operating system, and packages that may use asyncio.

import-linter checks the direction of imports between our packages (`make layers`). These tests check the other half:
the modules of the standard library that each package may use.

    os, mmap, fcntl, open()   storage alone, and one unit of the kernel on its behalf: batch/kernel/fields.py writes to
                              a descriptor of the storage (ADR 19); what stands outside the engine may as well: cli,
                              console, testing, the pipelines, what finds Java and starts a session for Spark, what
                              reads the variables of object storage, and its cache, which may lose everything
    asyncio                   aio, broker and what runs one for tests, console, and the async facades of logs
    time                      the clock, the background and the kernel; what stands outside the engine may as well
    any other I/O             never batch, never broker/wire: they turn bytes into records and messages, and back
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .looping import for_each

SOURCE = Path(__file__).resolve().parent.parent / "src" / "sawlog"
FILES = sorted(SOURCE.rglob("*.py"))


@dataclass(frozen=True, slots=True)
class Rule:
    """`names` may be used below the paths in `allowed`, or, if those are empty, anywhere but in `denied`."""

    names: frozenset[str]
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()

    def forbids(self, name: str, path: str) -> bool:
        if name not in self.names:
            return False
        if self.allowed:
            return not path.startswith(self.allowed)
        return path.startswith(self.denied)


RULES = [
    Rule(
        frozenset({"os", "mmap", "fcntl", "open()"}),
        allowed=(
            "storage/",
            "batch/kernel/fields.py",
            "testing/",
            "cli/",
            "console/",
            "pipelines/",
            "tables/files.py",
            "store/objects/cache.py",
            "store/objects/bucket.py",
            "spark/session.py",
            "spark/session.py",
        ),
    ),
    Rule(
        frozenset({"asyncio"}),
        allowed=("aio/", "broker/", "console/", "log/async_appends.py", "objects/aio.py", "testing/broker.py"),
    ),
    Rule(
        frozenset({"time"}),
        allowed=(
            "clock.py",
            "background.py",
            "batch/kernel/",
            "storage/",
            "testing/",
            "cli/",
            "console/",
        ),
    ),
    Rule(
        frozenset({"asyncio", "io", "pathlib", "shutil", "socket", "subprocess", "tempfile"}),
        denied=("batch/", "broker/wire/"),
    ),
]


_PARTS = (ast.stmt, ast.ExceptHandler, ast.match_case)
#: A call of the builtin `open`; may match a little more.
_OPEN = re.compile(r"(?<![.\w])open\s*\(")
#: Everything that may be an import, with what follows on its line and on lines that it is continued on.
_IMPORT = re.compile(r"\b(?:import|from)\b(?:\\\n|[^\n])*")
_WORD = re.compile(r"\w+")


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement, also inside others. Expressions, most of a tree, have none."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += (each for each in ast.iter_child_nodes(node) if isinstance(each, _PARTS))


def names_used(source: str) -> Iterator[tuple[int, str]]:
    """Each top-level module that `source` imports and each call of the builtin `open`, with its line."""
    tree = ast.parse(source)
    for node in ast.walk(tree) if _OPEN.search(source) else statements(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            # os.PathLike is the type of a path, not a way to touch a file.
            if not (node.module == "os" and {alias.name for alias in node.names} == {"PathLike"}):
                yield node.lineno, node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            yield node.lineno, "open()"


def violations(source: str, path: str) -> list[str]:
    """Return the names that `source` uses although a file at `path` (below src/sawlog) must not."""
    named = {name for line in _IMPORT.findall(source) for name in _WORD.findall(line)}
    named |= {"open()"} if _OPEN.search(source) else set()
    if not any(rule.forbids(name, path) for rule in RULES for name in named):
        return []  # most files: parsing all of them takes two seconds
    return [
        f"{path}:{line}: {name}" for line, name in names_used(source) if any(rule.forbids(name, path) for rule in RULES)
    ]


def test_every_module_stays_in_its_layer() -> None:
    found = [violations(file.read_text(encoding="utf-8"), file.relative_to(SOURCE).as_posix()) for file in FILES]
    assert [each for rows in found for each in rows] == []


@for_each(
    ("source", "path"),
    [
        ("import os", "log/log.py"),
        ("import os.path", "store/directory/store.py"),
        ("import json, fcntl", "log/log.py"),
        ("import json, \\\n    fcntl", "log/log.py"),
        ("x = 1; import os", "log/log.py"),
        ("from os import fsync, PathLike", "log/log.py"),
        ("def f():\n    from mmap import mmap", "batch/read.py"),
        ("import os", "batch/kernel/placing.py"),
        ("import socket", "batch/kernel/fields.py"),
        ("file = open(name)", "log/log.py"),
        ("import asyncio", "log/log.py"),
        ("from asyncio import to_thread", "storage/file.py"),
        ("import time", "store/directory/catalog.py"),
        ("from time import monotonic", "spark/streaming.py"),
        ("import pathlib", "batch/build.py"),
        ("import socket", "batch/kernel/walk.py"),
        ("import socket", "broker/wire/__init__.py"),
        ("import asyncio", "broker/wire/__init__.py"),
    ],
)
def test_what_a_layer_may_not_use_is_noticed(source: str, path: str) -> None:
    assert len(violations(source, path)) == 1


@for_each(
    ("source", "path"),
    [
        ("import os, mmap, fcntl\nfile = open(name)", "storage/file.py"),
        ("from os import PathLike", "log/log.py"),
        ("from .os import thing\nfrom . import mmap", "log/log.py"),
        ("log = Log.open(path)", "store/directory/store.py"),
        ("import asyncio", "log/async_appends.py"),
        ("import asyncio, socket", "broker/broker.py"),
        ("import pathlib", "log/retention.py"),
        ("import time", "clock.py"),
    ],
)
def test_what_a_layer_may_use_is_let_through(source: str, path: str) -> None:
    assert violations(source, path) == []


def test_there_is_something_to_check() -> None:
    assert any(file.parent.name == "storage" for file in FILES)
    assert any(file.parent.name == "batch" for file in FILES)
