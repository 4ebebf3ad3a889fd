"""`sawlog sql`: run a query over topics and files, or start a prompt.

The prompt has history and completion through the standard library's readline. A query ends with a semicolon and may
span several lines. After an error the prompt continues. Ctrl-C discards the input or cancels the running query; Ctrl-D
exits.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import Isolation
from ..display import counted
from ..errors import SawlogError
from . import message_of
from .options import Data, IsolationLevel, Output, argument, named_values, option
from .output import Column, OutputFormat, Printer, Row, note
from .stores import open_any

if TYPE_CHECKING:
    import pyarrow as pa

    from ..store.base import Store


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
Files next to topics:               select * from 'prices.parquet' limit 5;
To exit:                            quit, or Ctrl-D"""
_MOST_LINES = 1000


class Prompt:
    """An interactive prompt that runs queries."""

    def __init__(self, store: Store, run: Callable[[str], object]) -> None:
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
            note(message_of(error))
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
            pass  # no history yet
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
            pass  # best effort: the home directory may be read-only

    def complete(self, text: str, number: int) -> str | None:
        """Return the continuation with that number: readline's completer interface."""
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
        from ..sql.dataset import schema_of

        try:
            schema = schema_of(self._store.topic(name))
        except SawlogError:
            return []
        return [] if schema is None else schema.names


def _history_file() -> Path:
    """Return the path of the history file."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "sawlog" / "sql_history"


def sql(
    data: Data,
    query: str | None = argument("[QUERY]", "The query.  [default: from stdin, or typed at a prompt]"),
    schema: list[str] | None = option(
        "--schema TOPIC=SCHEMA",
        "Decode a topic's values with this schema, or with the one in @FILE; an empty schema keeps them as "
        "bytes. Can be repeated.  [default: the topic's own schema]",
    ),
    isolation: IsolationLevel = "committed",
    output: Output = "table",
) -> None:
    """Query topics with SQL. Each is a table with the columns partition, offset, timestamp, key, value and headers.

    key and value are bytes: they compare with plain text, and decode(value) shows them as text. If the topic declares a
    schema, value is a struct with fields such as value.name. Without a schema, decode(value)->>'$.name' extracts a
    field from JSON. Filters on offset, partition and timestamp skip the records that they exclude; count(*) and the min
    and max of offset and timestamp read no records at all.

    Queries can also name files: 'prices.parquet', 'customers.csv'. A query sees the records that exist when it begins,
    and changes nothing. Topic names with dots or dashes need double quotes. The SQL dialect is DuckDB's, which must be
    installed (pip install '.[sql]').

    Without QUERY, the query is read from stdin. At a terminal, a prompt with history starts, and Tab completes names.

    \b
    Examples:
      sawlog sql -d data "select count(*), max(timestamp) from orders"
      sawlog sql -d data "select decode(key) as customer, count(*) from orders group by key order by 2 desc limit 10"
      sawlog sql -d data "select * from orders where timestamp between '2026-11-01' and '2026-11-02' limit 10"
      sawlog sql -d data "select decode(value)->>'$.status' as status, count(*) from orders group by all" --output csv
      sawlog sql -d data --schema orders='id BIGINT, amount DOUBLE' "select sum(value.amount) from orders"
      sawlog sql -d data "select o.offset, c.name from orders o join 'customers.csv' c on decode(o.key) = c.id"
      sawlog sql -d data
    """
    schemas = _schemas(schema)
    with open_any(data) as store:
        if query is None and sys.stdin.isatty():
            Prompt(store, lambda text: _run(store, text, schemas, isolation, output)).loop()
            return
        _run(store, sys.stdin.read() if query is None else query, schemas, isolation, output)


def _schemas(given: list[str] | None) -> dict[str, str | None]:
    return {
        topic: (Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text) or None
        for topic, text in named_values(given, "--schema", "TOPIC=SCHEMA")
    }


def _run(store: Store, query: str, schemas: dict[str, str | None], isolation: Isolation, output: OutputFormat) -> None:
    with store.sql_reader(query, schemas=schemas, isolation=isolation) as batches:
        names = _distinct(batches.schema.names)
        Printer(output).rows(_rows(batches, names), [Column(name, name, cut=len(names) > 1) for name in names])


def _distinct(names: list[str]) -> list[str]:
    """Return unique column names: a result may repeat a name, but a row cannot."""
    made: list[str] = []
    for name in names:
        number, candidate = 1, name
        while candidate in made:
            number += 1
            candidate = f"{name}_{number}"
        made.append(candidate)
    return made


def _rows(batches: pa.RecordBatchReader, names: list[str]) -> Iterator[Row]:
    for batch in batches:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield dict(zip(names, map(_plain, row), strict=True))


def _plain(value: Any) -> Any:
    """Return a value in the form that the other commands print: times in ISO format, whole numbers as numbers."""
    if isinstance(value, (datetime, date)):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else str(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
