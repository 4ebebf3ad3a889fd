"""Run SQL over topics with DuckDB, in memory and in this process.

There is one database per process and one connection per query: a database takes some ten milliseconds to start, a
connection to it nearly nothing. The topics that a query names are temporary views of its connection, each over a
`TopicDataset` whose ends are fixed before the query runs; queries do not see each other's views. A query may also read
files (`from 'prices.parquet'`, `read_csv(…)`). It cannot write: statements other than queries are rejected, and so is
everything that would change the configuration.

`offset` is an SQL keyword and would have to be quoted; a query that does not parse is tried again with the quotes
added.
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

from ..config import Isolation
from ..errors import MissingPackage, QueryFailed, SawlogError, TableNotFound
from ..schemas.types import Schema
from ..storage.forking import forkable, this_process
from ..store.base import Store
from ..store.names import no_topic
from . import statistics
from .dataset import COLUMNS, TopicDataset, Wanted, dataset_of, schema_of, table_schema
from .history import HistoryFile, HistoryReader, quoted
from .json_calls import json_of_bytes

if TYPE_CHECKING:
    import duckdb


#: Databases by process id: a forked child lacks the threads of its parent's database.
_databases: dict[int, duckdb.DuckDBPyConnection] = {}
_lock = forkable(threading.Lock())


def load_duckdb() -> Any:
    """Import duckdb. Raises `MissingPackage` with the install command."""
    try:
        import duckdb
    except ImportError as error:
        raise MissingPackage("SQL needs duckdb: run pip install '.[sql]' in a clone of sawlog") from error
    return duckdb


def connect() -> duckdb.DuckDBPyConnection:
    with _lock:
        database = _databases.get(this_process())
        if database is None:
            if not _databases:
                atexit.register(_close)  # DuckDB complains about databases still open when Python exits
            database = _databases[this_process()] = _started(load_duckdb())
        return database.cursor()


def _started(module: Any) -> duckdb.DuckDBPyConnection:
    """Start an empty database. It installs no extensions and does not look for tables among Python's variables. It
    spills to the directory for temporary files instead of the current one. Queries cannot change these settings."""
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


#: Rows per batch of a result.
RESULT_ROWS = 65_536
_EXPLAIN = re.compile(r"\s*explain\s*(analyze\b)?\s*(\([^)]*\))?", re.IGNORECASE)
_SHOW = re.compile(r"\s*(show|from\s+information_schema|from\s+duckdb_)", re.IGNORECASE)
#: Name of the view of the log, for a topic partly in a table. Not a valid topic name.
_LOG = "{} (log)"
_STATISTICS = "(statistics)"
_QUOTES = '; a topic whose name has dots or dashes needs quotes: from "orders.v1"'
_DECLARE = "with the topic's setting sawlog.schema, or for this query with schemas= (on the command line --schema)"
_NO_SCHEMA = f"; the values of a topic without a schema are bytes: declare one {_DECLARE}"
#: Matches queries that may use JSON functions.
_JSON = re.compile(r"->|json", re.IGNORECASE)
#: DuckDB's messages for a field of a value that is bytes, and for a column that does not exist.
_NO_FIELD = re.compile(r'Cannot extract field .* from expression "value"|array_extract\(BLOB')
_NO_COLUMN = re.compile(r'Referenced column "([^"]+)" not found')
#: DuckDB's message for an unknown name in `from`.
_MISSING = re.compile(r"Table with name (\S+) does not exist")
#: Matches queries that statistics might answer.
_SHORT = re.compile(r"\b(count|min|max)\s*\(", re.IGNORECASE)

Parameters = Sequence[object] | Mapping[str, object]
#: Schemas by topic; None or False: values stay bytes.
Schemas = Mapping[str, Wanted]


def query(store: Store, text: str, parameters: Parameters | None = None, **options: Any) -> pa.Table:
    """Run a query and return its result as a table; options as for `reader`."""
    with reader(store, text, parameters, **options) as batches:
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
    """Run a query and return its result as a stream of batches, computed as it is read. Close it, or read it to its
    end."""
    session = _Session(store, isolation, schemas or {})
    try:
        session.run(text, parameters)
        return session.stream(batch_rows)
    except BaseException:
        session.close()
        raise


class _OpenQuery:
    """A connection and the result of its query."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection: duckdb.DuckDBPyConnection | None = connection
        self.result: Any = None

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection. Raises `QueryFailed` if it is closed."""
        if self._connection is None:
            raise QueryFailed("the query has ended")
        return self._connection

    def close(self) -> None:
        """Close the connection and drop all references to DuckDB objects. Safe to call twice."""
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
        self._held = _OpenQuery(connect())
        # Also at process exit: DuckDB complains about connections still open then.
        self._end = weakref.finalize(self, self._held.close)
        #: Errors raised while DuckDB was reading a topic: DuckDB turns them into text.
        self._raised: list[BaseException] = []
        self._tables: list[pa.Table | TopicDataset] = []
        #: Tables whose files DuckDB reads directly.
        self._pasts: list[HistoryReader] = []

    def close(self) -> None:
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
        if _JSON.search(text):
            _refuse_json_of_bytes(text, datasets)
        if _SHOW.match(text):
            for name in self._store.topics():
                if name not in datasets:
                    self._register(name, table_schema(self._schema(name)).empty_table())
        short = None
        if len(datasets) == 1 and not parameters:
            [(name, dataset)] = datasets.items()
            short = self._rewritten(text, name, dataset)
        if short is None:
            for name, dataset in datasets.items():
                self._add(name, dataset)
        text = text if short is None else short
        given: Any = parameters if parameters is None or isinstance(parameters, Mapping) else list(parameters)
        self._held.result = self._guard(lambda: self._connection.sql(text, params=given))

    def stream(self, batch_rows: int) -> pa.RecordBatchReader:
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
        """Call `call` and translate DuckDB's errors: to the sawlog error that caused one, else to `QueryFailed`."""
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
        """Return the message for a name that is not a topic, given DuckDB's message."""
        missing = no_topic(name, "this store", sorted(self._store.topics()))
        return f"{missing}{_QUOTES if '.' in text or '-' in name else ''}"

    # --- the query

    def _checked(self, text: str) -> str:
        """Return the query text. Raises `QueryFailed` unless it is a single read-only query."""
        text, statements = self._parsed(text.strip().rstrip(";"))
        if len(statements) != 1:
            raise QueryFailed("there is no query" if not statements else "one query at a time")
        kinds = self._duckdb.StatementType
        kind = statements[0].type
        if kind == kinds.EXPLAIN:  # EXPLAIN ANALYZE runs the statement: allow only a query there, too
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
        """Return the topics whose names occur as words in the text: possibly too many, never too few."""
        return [
            name
            for name in self._store.topics()
            if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE | re.ASCII)
        ]

    # --- its tables

    def _schema(self, name: str) -> Schema | None:
        return schema_of(self._store.topic(name), self._schemas.get(name, True))

    def _taken(self, name: str) -> TopicDataset:
        topic = self._store.topic(name)
        return dataset_of(topic, schema=self._schemas.get(name, True), isolation=self._isolation, raised=self._raised)

    def _add(self, name: str, dataset: TopicDataset) -> None:
        """Register a topic as a table. DuckDB reads the Parquet files of its history directly where it can."""
        past = dataset.past
        direct = [] if past is None else past.direct()
        if past is None or not direct:
            self._register(name, dataset)
            return
        self._pasts.append(past)
        self._register(_LOG.format(name), dataset.with_past(past.without(direct)))
        self._guard(lambda: self._connection.execute(_union(name, past, direct)))

    def _register(self, name: str, table: pa.Table | TopicDataset) -> None:
        self._tables.append(table)
        self._connection.register(name, table)

    def _rewritten(self, text: str, name: str, dataset: TopicDataset) -> str | None:
        """Rewrite the query over the statistics of its topic, if these answer it; else return None. The files of a
        table are then not even opened."""
        if not _SHORT.search(text) or not statistics.is_known(dataset.past):
            return None
        self._register(name, dataset.schema.empty_table())
        try:
            names = self._connection.sql(text).columns
            found = statistics.rewrite_to_statistics(text, name, _STATISTICS, names, _ask)
        except (self._duckdb.Error, ValueError):
            return None  # running the query reports the error
        if found is None:
            return None
        self._register(_STATISTICS, statistics.table(dataset.snapshot, dataset.past, with_oldest=found[1]))
        return found[0]


def _refuse_json_of_bytes(text: str, datasets: Mapping[str, TopicDataset]) -> None:
    """Raise `QueryFailed` for a JSON function over bytes: DuckDB would return NULL for every record."""
    columns = {
        name: {field.name for field in dataset.schema if pa.types.is_binary(field.type)}
        for name, dataset in datasets.items()
    }
    found = json_of_bytes(text, columns, _ask)
    if found is not None:
        hint = f", or declare a schema {_DECLARE}" if found.lower().endswith("value") else ""
        raise QueryFailed(f"JSON functions find nothing in {found}, which is bytes: write decode({found}){hint}")


@lru_cache(maxsize=128)
def _ask(question: str, value: str) -> str:
    connection = connect()
    try:
        return str(connection.execute(question, [value]).fetchall()[0][0])
    finally:
        connection.close()


def with_offset_quoted(text: str, module: Any) -> str:
    """Quote `offset` wherever it can only be the column: where no number follows."""
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
    paths = ", ".join("'" + each.path.replace("'", "''") + "'" for each in files)
    return f"read_parquet([{paths}], union_by_name = true, hive_partitioning = false)"


def _union(name: str, past: HistoryReader, direct: Sequence[HistoryFile]) -> str:
    """Return the SQL for a topic partly in a table: DuckDB's own reader for these files, `TopicDataset` for the
    rest."""
    columns = ", ".join(quoted(column) for column in COLUMNS)
    return (
        f"create or replace temporary view {quoted(name)} as "
        f"select {', '.join(past.expressions())} "
        f"from {_parquet(direct)} "
        f"union all select {columns} from {quoted(_LOG.format(name))}"
    )


def _message(error: BaseException) -> str:
    """Return DuckDB's message on one line, without the pointer into the query."""
    text = str(error).split("\n\nLINE ")[0]
    hint = ""
    if "does not exist" in text and "." in text:
        hint = _QUOTES
    elif _NO_FIELD.search(text):
        hint = _NO_SCHEMA
    elif (column := _NO_COLUMN.search(text)) is not None and '"value"' in text:
        hint = f"; a field of the value is value.{column[1]}"
    return " ".join(text.split()) + hint
