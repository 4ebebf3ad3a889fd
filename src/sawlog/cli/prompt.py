"""The prompt of `sawlog sql`: lines with history and completion, by the standard library's readline.

A query ends with a semicolon, and may take several lines. An error is shown and the prompt goes on; Ctrl-C drops what
is typed, or stops the query that runs; Ctrl-D ends.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ..display import counted
from ..errors import SawlogError
from ..topics.base import Topic
from .codes import hint_for, message_of
from .output import note

_WORDS = re.findall(
    r"\S+",
    "select from where group by order limit having join using on as and or not in between is null like distinct union "
    "all with case when then else end count(*) min( max( sum( avg( decode( now() interval describe show tables "
    "summarize explain",
)
_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
_HELP = """\
A query ends with a semicolon:      select count(*) from orders;
The topics:                         show tables;
The columns of one:                 describe orders;
An overview of all columns:         summarize orders;
Files beside topics:                select * from 'prices.parquet' limit 5;
To leave:                           quit, or Ctrl-D"""
_MOST_LINES = 1000


class Queried(Protocol):
    """A store, as far as the prompt needs it."""

    @property
    def path(self) -> str:
        """Where it is."""

    def topics(self) -> list[str]:
        """The names of all topics."""

    def topic(self, name: str) -> Topic:
        """One of them."""


class Prompt:
    """Asks for queries and runs them."""

    def __init__(self, store: Queried, run: Callable[[str], object]) -> None:
        self._store = store
        self._run = run
        self._offered: list[str] = []

    def loop(self) -> None:
        """Run queries until the end of the input."""
        history = self._prepare()
        note(f"{self._store.path}: {counted(len(self._store.topics()), 'topic')}; a query ends with ;  help shows more")
        try:
            while (query := self._query()) is not None:
                self._answer(query)
        finally:
            self._save(history)

    def _answer(self, query: str) -> None:
        try:
            self._run(query)
        except (SawlogError, OSError, MemoryError) as error:
            note(message_of(error) + hint_for(error))
        except KeyboardInterrupt:
            note("stopped")

    def _query(self) -> str | None:
        """Return the next query; None at the end."""
        lines: list[str] = []
        while True:
            try:
                line = input("      ...> " if lines else "sawlog sql> ").strip()
            except EOFError:
                note("")
                return None
            except KeyboardInterrupt:
                note("")
                lines.clear()
                continue
            if not lines and line.rstrip(";").lower() in ("quit", "exit", "\\q", ".quit", ".exit"):
                return None
            if not lines and line.rstrip(";").lower() in ("help", "\\?", ".help", "?"):
                note(_HELP)
                continue
            if line:
                lines.append(line)
            if line.endswith(";"):
                return "\n".join(lines)

    # --- readline

    def _prepare(self) -> Path | None:
        """Set up completion and history; without readline there is neither."""
        try:
            import readline
        except ImportError:
            return None
        readline.set_completer(self.complete)
        readline.set_completer_delims(" \t\n,()=<>;+*/")
        readline.parse_and_bind("tab: complete")
        path = _history_file()
        try:
            readline.read_history_file(path)
        except OSError:
            pass  # the first time
        readline.set_history_length(_MOST_LINES)
        return path

    @staticmethod
    def _save(path: Path | None) -> None:
        if path is None:
            return
        import readline

        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)
            path.chmod(0o600)
        except OSError:
            pass  # a home that cannot be written to is no reason to fail

    def complete(self, text: str, number: int) -> str | None:
        """Return the possible continuation of that number, as readline asks for them."""
        if number == 0:
            self._offered = self._continuations(text)
        return self._offered[number] if number < len(self._offered) else None

    def _continuations(self, text: str) -> list[str]:
        try:
            topics = self._store.topics()
        except SawlogError:
            topics = []
        names = [name if name.isidentifier() else f'"{name}"' for name in topics]
        fields = [f"value.{field}" for name in topics for field in self._fields(name)]
        wanted = text.lower()
        return [
            each for each in dict.fromkeys([*names, *_COLUMNS, *fields, *_WORDS]) if each.lower().startswith(wanted)
        ]

    def _fields(self, name: str) -> list[str]:
        from ..sql.declared import schema_of

        try:
            schema = schema_of(self._store.topic(name))
        except SawlogError:
            return []
        return [] if schema is None else schema.names


def _history_file() -> Path:
    """Where the lines of earlier sessions are kept."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "sawlog" / "sql_history"
