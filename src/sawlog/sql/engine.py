"""DuckDB, in memory: one database per process, and a connection of its own for each query.

A database takes some ten milliseconds to start, a connection to it nearly nothing. What a query registers are temporary
views of its connection, so queries do not see each other.

Runs SQL over topics with DuckDB, in memory and in this process.

Each query has a connection of its own, in which the topics that it names are views of a `TopicDataset`: their ends are
fixed here, before the query runs. Beside topics, it may read files (`from 'prices.parquet'`, `read_csv(…)`). It only
reads: a statement that is no query is refused, and so is everything that would change the configuration.

`offset` is a word of SQL and would have to be quoted; a query that does not parse is tried again with that done.
"""

from __future__ import annotations

import atexit
import re
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import MissingPackage, QueryFailed, SawlogError, TableNotFound
from ..isolation import Isolation
from ..schemas.types import Schema
from ..storage.forking import forkable, this_process
from ..store.base import Store
from . import declared, grouping, shortcuts, statistics
from .dataset import COLUMNS, TopicDataset, table_schema
from .grouping import KeyDataset
from .history import HistoryFile
from .past import Past, quoted

if TYPE_CHECKING:
    import duckdb


#: By process: a forked child cannot use its parent's, whose threads it does not have.
_databases: dict[int, duckdb.DuckDBPyConnection] = {}
_lock = forkable(threading.Lock())


def load_duckdb() -> Any:
    """The package; `MissingPackage` says how to install it."""
    try:
        import duckdb
    except ImportError as error:
        raise MissingPackage("SQL needs duckdb: run pip install '.[sql]' in a clone of sawlog") from error
    return duckdb


def connect() -> duckdb.DuckDBPyConnection:
    """A new connection to the database of this process."""
    with _lock:
        database = _databases.get(this_process())
        if database is None:
            if not _databases:
                atexit.register(_close)  # DuckDB complains about what is still there when Python ends
            database = _databases[this_process()] = _started(load_duckdb())
        return database.cursor()


def _started(module: Any) -> duckdb.DuckDBPyConnection:
    """An empty database. It installs nothing and does not look for tables among Python's variables. What does not fit
    into memory goes to the directory for temporary files instead of the current one. No query can change that."""
    made: duckdb.DuckDBPyConnection = module.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
            "temp_directory": f"{tempfile.gettempdir()}/sawlog-sql",
        },
    )
    made.execute("set global TimeZone = 'UTC'")
    made.execute("set global lock_configuration = true")
    return made


def _close() -> None:
    database = _databases.pop(this_process(), None)
    if database is not None:
        database.close()


#: Rows in a batch of a result.
RESULT_ROWS = 65_536
_EXPLAIN = re.compile(r"\s*explain\s*(analyze\b)?\s*(\([^)]*\))?", re.IGNORECASE)
_SHOW = re.compile(r"\s*(show|from\s+information_schema|from\s+duckdb_)", re.IGNORECASE)
#: The view of a topic's log, where another part of it is in a table. No topic can have such a name.
_LOG = "{} (log)"
_STATISTICS = "(statistics)"
_QUOTES = '; a topic whose name has dots or dashes needs quotes: from "orders.v1"'
#: What DuckDB says of a name in `from` that it does not know.
_MISSING = re.compile(r"Table with name (\S+) does not exist")
_KEYS, _LOG_KEYS = "(keys)", "(keys of the log)"
#: What a query has that may need no column of records.
_SHORT = re.compile(r"\b(count|min|max)\s*\(|\bdistinct\b|\bgroup\s+by\b", re.IGNORECASE)

Parameters = Sequence[object] | Mapping[str, object]
#: Topic to schema; None or False: its values stay bytes.
Schemas = Mapping[str, declared.Wanted]


def query(
    store: Store,
    text: str,
    parameters: Parameters | None = None,
    *,
    isolation: Isolation = "committed",
    schemas: Schemas | None = None,
) -> pa.Table:
    """The result of a query as a table."""
    with reader(store, text, parameters, isolation=isolation, schemas=schemas) as batches:
        return batches.read_all()


def reader(
    store: Store,
    text: str,
    parameters: Parameters | None = None,
    *,
    isolation: Isolation = "committed",
    schemas: Schemas | None = None,
    batch_rows: int = RESULT_ROWS,
) -> pa.RecordBatchReader:
    """The result as a stream of batches, which computes as it is read. Close it, or read it to its end."""
    session = _Session(store, isolation, schemas or {})
    try:
        session.run(text, parameters)
        return session.stream(batch_rows)
    except BaseException:
        session.close()
        raise


class _Held:
    """A connection, and the result of its query."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection: duckdb.DuckDBPyConnection | None = connection
        self.result: Any = None

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection, unless it is closed."""
        if self._connection is None:
            raise QueryFailed("the query has ended")
        return self._connection

    def close(self) -> None:
        """Close it, and let go of everything of DuckDB's. Safe to call twice."""
        connection, self._connection, self.result = self._connection, None, None
        if connection is not None:
            connection.close()


class _Session:
    """One query and its connection."""

    def __init__(self, store: Store, isolation: Isolation, schemas: Schemas) -> None:
        self._store = store
        self._isolation: Isolation = isolation
        self._schemas = schemas
        self._duckdb = load_duckdb()
        self._held = _Held(connect())
        # Also when the process ends: DuckDB complains about what is still there then.
        self._end = weakref.finalize(self, self._held.close)
        #: Errors of ours that were raised while DuckDB was reading a topic: it turns them into text.
        self._raised: list[BaseException] = []
        self._tables: list[pa.Table | TopicDataset | KeyDataset] = []
        #: Tables whose files DuckDB reads itself.
        self._pasts: list[Past] = []

    def close(self) -> None:
        """End the query."""
        self._held.close()
        self._tables.clear()

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        return self._held.connection

    def run(self, text: str, parameters: Parameters | None) -> None:
        """Check the query, fix the ends of its topics, and start it."""
        text = self._checked(text)
        mentioned = self._mentioned(text)
        datasets = {name: self._taken(name) for name in mentioned}
        if _SHOW.match(text):
            for name in self._store.topics():
                if name not in datasets:
                    self._register(name, table_schema(self._schema(name)).empty_table())
        short = None
        if len(datasets) == 1 and not parameters:
            [(name, dataset)] = datasets.items()
            short = self._shortened(text, name, dataset)
        if short is None:
            for name, dataset in datasets.items():
                self._add(name, dataset)
        text = text if short is None else short
        given: Any = parameters if parameters is None or isinstance(parameters, Mapping) else list(parameters)
        self._held.result = self._guard(lambda: self._connection.sql(text, params=given))

    def stream(self, batch_rows: int) -> pa.RecordBatchReader:
        """The result."""
        batches = self._guard(lambda: self._held.result.to_arrow_reader(batch_rows))
        return pa.RecordBatchReader.from_batches(batches.schema, self._read(batches))

    def _read(self, batches: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        try:
            while True:
                try:
                    yield self._guard(batches.read_next_batch)
                except StopIteration:
                    return
        finally:
            self.close()

    def _guard(self, call: Callable[[], Any]) -> Any:
        """The result of a call; what DuckDB raises becomes our own error, or the one of ours that caused it."""
        try:
            return call()
        except (self._duckdb.Error, pa.ArrowException, RuntimeError, OSError) as error:
            if self._raised:
                raise self._raised[0] from None
            if isinstance(error, SawlogError):
                raise
            for lost in filter(None, (past.missing() for past in self._pasts)):
                raise lost from error
            if (missing := _MISSING.search(str(error))) is not None:
                raise TableNotFound(self._unknown(missing[1].strip('"'), str(error))) from error
            raise QueryFailed(_message(error)) from error

    def _unknown(self, name: str, text: str) -> str:
        """What to say of a name that is no topic, where DuckDB says this."""
        known = sorted(self._store.topics())
        there = f"its topics are {', '.join(known[:10])}{', …' if len(known) > 10 else ''}" if known else "it has none"
        return f"no topic {name!r} in this store; {there}{_QUOTES if '.' in text or '-' in name else ''}"

    # --- what is asked

    def _checked(self, text: str) -> str:
        """The query, if it is one and reads only."""
        text, statements = self._parsed(text.strip().rstrip(";"))
        if len(statements) != 1:
            raise QueryFailed("there is no query" if not statements else "one query at a time")
        kinds = self._duckdb.StatementType
        kind = statements[0].type
        if kind == kinds.EXPLAIN:  # also of a query only: EXPLAIN ANALYZE runs it
            kind = self._parsed(text[_EXPLAIN.match(text).end() :])[1][0].type  # type: ignore[union-attr]
        if kind != kinds.SELECT:
            raise QueryFailed(f"only queries can be run here, which read: select, from, with …; not {kind.name}")
        return text

    def _parsed(self, text: str) -> tuple[str, list[Any]]:
        try:
            return text, self._duckdb.extract_statements(text)
        except self._duckdb.Error as error:
            quoted = with_offset_quoted(text, self._duckdb)
            if quoted == text:
                raise QueryFailed(_message(error)) from error
            try:
                return quoted, self._duckdb.extract_statements(quoted)
            except self._duckdb.Error:
                raise QueryFailed(_message(error)) from error

    def _mentioned(self, text: str) -> list[str]:
        """The topics whose names are words of the text: perhaps one too many, never one too few."""
        return [
            name
            for name in self._store.topics()
            if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE | re.ASCII)
        ]

    # --- what is there

    def _schema(self, name: str) -> Schema | None:
        return declared.schema_of(self._store.topic(name), self._schemas.get(name, True))

    def _taken(self, name: str) -> TopicDataset:
        """The topic as it is now."""
        topic = self._store.topic(name)
        return declared.dataset_of(
            topic, schema=self._schemas.get(name, True), isolation=self._isolation, raised=self._raised
        )

    def _add(self, name: str, dataset: TopicDataset) -> None:
        """Make it a table of the database; what is in Parquet files, DuckDB reads itself, where it can."""
        past = dataset.past
        direct = [] if past is None else past.direct()
        if past is None or not direct:
            self._register(name, dataset)
            return
        self._pasts.append(past)
        self._register(_LOG.format(name), dataset.with_past(past.without(direct)))
        self._guard(lambda: self._connection.execute(_union(name, past, direct)))

    def _register(self, name: str, table: pa.Table | TopicDataset | KeyDataset) -> None:
        self._tables.append(table)
        self._connection.register(name, table)

    def _shortened(self, text: str, name: str, dataset: TopicDataset) -> str | None:
        """The query over the statistics of its topic or of its keys, if it needs no more than these; else None. For
        statistics, a table's files are not even opened."""
        if not _SHORT.search(text):
            return None
        self._register(name, dataset.schema.empty_table())
        try:
            names = self._connection.sql(text).columns
            if statistics.is_known(dataset.past):
                found = shortcuts.shortened(text, name, _STATISTICS, names, _ask)
                if found is not None:
                    table = statistics.table(dataset.snapshot, dataset.past, with_oldest=found[1])
                    self._register(_STATISTICS, table)
                    return found[0]
            found = grouping.grouped(text, name, _KEYS, names, _ask)
        except (self._duckdb.Error, ValueError):
            return None  # it says what is wrong when it runs
        if found is not None and self._add_keys(dataset, with_partition=found[1]):
            return found[0]
        return None

    def _add_keys(self, dataset: TopicDataset, *, with_partition: bool) -> bool:
        """Add the keys of a topic; False if they cannot be had that way."""
        past = dataset.past
        keys = KeyDataset(dataset.snapshot, self._raised)
        if past is None or not past.history.files:
            self._register(_KEYS, keys)
            return True
        if not past.has_plain_keys:
            return False
        self._pasts.append(past)
        self._register(_LOG_KEYS, keys)
        self._guard(lambda: self._connection.execute(_keys_union(past.history.files, with_partition)))
        return True


@lru_cache(maxsize=128)
def _ask(question: str, value: str) -> str:
    """What DuckDB says about the text of a query, which is always the same."""
    connection = connect()
    try:
        return str(connection.execute(question, [value]).fetchall()[0][0])
    finally:
        connection.close()


def with_offset_quoted(text: str, module: Any) -> str:
    """The text with quotes around `offset` where it can only be the column: wherever no number follows."""
    raw = text.encode()  # DuckDB's positions count bytes
    tokens = module.tokenize(text)
    made: list[bytes] = []
    done = 0
    for at, (start, kind) in enumerate(tokens):
        word = raw[start : start + 6]
        after = tokens[at + 1][1] if at + 1 < len(tokens) else None
        if kind == module.token_type.keyword and word.lower() == b"offset" and after != module.token_type.numeric_const:
            made += [raw[done:start], b'"%s"' % word]
            done = start + len(word)
    return b"".join([*made, raw[done:]]).decode()


def _parquet(files: Sequence[HistoryFile]) -> str:
    """DuckDB's own reader for these files."""
    paths = ", ".join("'" + each.path.replace("'", "''") + "'" for each in files)
    return f"read_parquet([{paths}], union_by_name = true, hive_partitioning = false)"


def _keys_union(files: Sequence[HistoryFile], with_partition: bool) -> str:
    """The view of a topic's keys, of which a part is in a table. The files are grouped by the partition only if it is
    asked for: by the key alone, DuckDB groups Parquet's dictionaries instead of rows."""
    groups = "partition, key" if with_partition else "key"
    return (
        f"create temporary view {quoted(_KEYS)} as "
        f"select {'' if with_partition else 'null as '}partition, key, count(*) as records, "
        'min("offset")::bigint as first_offset, max("offset")::bigint as last_offset, '
        "min(timestamp)::timestamptz as oldest, max(timestamp)::timestamptz as newest "
        f'from (select partition::integer as partition, key::blob as key, "offset", timestamp from {_parquet(files)}) '
        f"group by {groups} union all select * from {quoted(_LOG_KEYS)}"
    )


def _union(name: str, past: Past, direct: Sequence[HistoryFile]) -> str:
    """The view of a topic of which a part is in a table: DuckDB's own reader for these files, ours for the rest."""
    columns = ", ".join(quoted(column) for column in COLUMNS)
    return (
        f"create or replace temporary view {quoted(name)} as "
        f"select {', '.join(past.expressions())} "
        f"from {_parquet(direct)} "
        f"union all select {columns} from {quoted(_LOG.format(name))}"
    )


def _message(error: BaseException) -> str:
    """DuckDB's message without the pointer into the query, which needs more than one line."""
    text = str(error).split("\n\nLINE ")[0]
    hint = ""
    if "does not exist" in text and "." in text:
        hint = _QUOTES
    return " ".join(text.split()) + hint
