"""DuckDB, in memory: one database per process, and a connection of its own for each query.

A database takes some ten milliseconds to start, a connection to it nearly nothing. What a query registers are temporary
views of its connection, so queries do not see each other.
"""

from __future__ import annotations

import atexit
import tempfile
import threading
from typing import TYPE_CHECKING, Any

from ..errors import MissingPackage
from ..storage.forking import forkable, this_process

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
