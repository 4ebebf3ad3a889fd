"""Alternatives to sawlog for a Python program: SQLite, LMDB, RocksDB, and a plain file.

Each is used in the way its manual calls fast, and its input is converted before the clock starts. LMDB and RocksDB have
no offsets, so the 8-byte key of a record *is* its offset: they store less than sawlog (no separate key, no timestamp,
and LMDB no checksum), which is in their favour.

`durable=False`: written, not synced. `durable=True`: on the disk before an append returns.
"""

from __future__ import annotations

import mmap
import os
import sqlite3
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import lmdb
import pyarrow as pa
import rocksdict
from dataset import BATCH_RECORDS, Dataset, Pair, offset_key


class Store(Protocol):
    """A store under measurement."""

    name: str

    def __init__(self, path: Path, *, durable: bool = False) -> None: ...

    def prepared(self, data: Dataset) -> list[Any]:
        """The batches in the preferred form of this store. Not timed."""

    def append_many(self, batches: list[Any]) -> None:
        """Batch after batch, each in one call or transaction."""

    def append_each(self, batches: list[Any]) -> None:
        """Record after record, made visible batch by batch."""

    def append_acknowledged(self, records: list[Any]) -> None:
        """Record after record, each acknowledged on its own."""

    def records(self) -> Iterator[Any]:
        """Iterate over all records in order, in the store's own form."""

    def get(self, offset: int) -> Any:
        """One of them."""

    def content(self) -> tuple[int, int]:
        """(records, bytes of keys and values), by reading everything. Not timed."""

    def close(self) -> None:
        """Close it."""


def _sizes(pairs: Iterator[Pair]) -> tuple[int, int]:
    count = size = 0
    for key, value in pairs:
        count += 1
        size += len(key) + len(value)
    return count, size


def _keyed(data: Dataset) -> list[list[Pair]]:
    """The batches with offsets for keys."""
    return [
        [(offset_key(number * BATCH_RECORDS + i), value) for i, (_, value) in enumerate(data.batch)]
        for number in range(data.batches)
    ]


class Sqlite:
    """sqlite3 of the standard library: write-ahead log, `synchronous` NORMAL, or FULL where it has to be durable."""

    name = "sqlite"
    _INSERT = "INSERT INTO log (key, value) VALUES (?, ?)"

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        self._db = sqlite3.connect(path.with_suffix(".sqlite"), isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self._db.execute("CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY, key BLOB, value BLOB)")

    def prepared(self, data: Dataset) -> list[Any]:
        return [data.batch] * data.batches

    def append_many(self, batches: list[Any]) -> None:
        for batch in batches:
            self._db.execute("BEGIN")
            self._db.executemany(self._INSERT, batch)
            self._db.execute("COMMIT")

    def append_each(self, batches: list[Any]) -> None:
        execute, insert = self._db.execute, self._INSERT
        for batch in batches:
            execute("BEGIN")
            for record in batch:
                execute(insert, record)
            execute("COMMIT")

    def append_acknowledged(self, records: list[Any]) -> None:
        for record in records:
            self._db.execute(self._INSERT, record)

    def records(self) -> Iterator[Any]:
        return self._db.execute("SELECT id, key, value FROM log ORDER BY id")

    def get(self, offset: int) -> Any:
        return self._db.execute("SELECT key, value FROM log WHERE id = ?", (offset + 1,)).fetchone()

    def content(self) -> tuple[int, int]:
        return _sizes((key, value) for _, key, value in self.records())

    def close(self) -> None:
        self._db.close()


class Lmdb:
    """LMDB: a writable map and no syncs, or its own default, which syncs at every commit."""

    name = "LMDB"

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        self._db = lmdb.open(str(path), map_size=2 << 30, sync=durable, writemap=not durable, subdir=True)

    def prepared(self, data: Dataset) -> list[Any]:
        return _keyed(data)

    def append_many(self, batches: list[Any]) -> None:
        for batch in batches:
            with self._db.begin(write=True) as txn, txn.cursor() as cursor:
                cursor.putmulti(batch, append=True)

    def append_each(self, batches: list[Any]) -> None:
        for batch in batches:
            with self._db.begin(write=True) as txn:
                put = txn.put
                for key, value in batch:
                    put(key, value, append=True)

    def append_acknowledged(self, records: list[Any]) -> None:
        for key, value in records:
            with self._db.begin(write=True) as txn:
                txn.put(key, value, append=True)

    def records(self) -> Iterator[Any]:
        return iter(self._db.begin().cursor())

    def arrow(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Scan to Arrow batches of key and value."""
        with self._db.begin() as txn, txn.cursor() as cursor:
            source = iter(cursor)
            while chunk := list(islice(source, batch_rows)):
                keys, values = zip(*chunk, strict=True)
                arrays = [pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
                yield pa.RecordBatch.from_arrays(arrays, names=["key", "value"])

    def get(self, offset: int) -> Any:
        with self._db.begin() as txn:
            return txn.get(offset_key(offset))

    def content(self) -> tuple[int, int]:
        return _sizes(self.records())

    def close(self) -> None:
        self._db.close()


class Rocks:
    """RocksDB through rocksdict, in raw mode: with its write-ahead log, synced only where it has to be durable."""

    name = "RocksDB"

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        self._db = rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=True))
        if durable:
            options = rocksdict.WriteOptions()
            options.sync = True
            self._db.set_write_options(options)

    def prepared(self, data: Dataset) -> list[Any]:
        return _keyed(data)

    def append_many(self, batches: list[Any]) -> None:
        for batch in batches:
            together = rocksdict.WriteBatch(raw_mode=True)
            put = together.put
            for key, value in batch:
                put(key, value)
            self._db.write(together)

    def append_each(self, batches: list[Any]) -> None:
        put = self._db.put
        for batch in batches:
            for key, value in batch:
                put(key, value)

    def append_acknowledged(self, records: list[Any]) -> None:
        for key, value in records:
            self._db.put(key, value)

    def records(self) -> Iterator[Any]:
        return iter(self._db.items())

    def get(self, offset: int) -> Any:
        return self._db.get(offset_key(offset))

    def content(self) -> tuple[int, int]:
        return _sizes(self.records())

    def close(self) -> None:
        self._db.close()


class PlainFile:
    """The simplest possible format: two lengths, key, value. No checksum, no index, no recovery."""

    name = "plain file"
    _LENGTHS = struct.Struct("<II")

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        self._durable = durable
        self._file = path.with_suffix(".bin").open("a+b", buffering=1 << 17)

    def prepared(self, data: Dataset) -> list[Any]:
        return [data.batch] * data.batches

    def append_many(self, batches: list[Any]) -> None:
        pack = self._LENGTHS.pack
        fd = self._file.fileno()
        for batch in batches:
            parts: list[bytes] = []
            for key, value in batch:
                parts += (pack(len(key), len(value)), key, value)
            os.write(fd, b"".join(parts))

    def append_each(self, batches: list[Any]) -> None:
        pack, write = self._LENGTHS.pack, self._file.write
        for batch in batches:
            for key, value in batch:
                write(pack(len(key), len(value)) + key + value)
            self._file.flush()

    def append_acknowledged(self, records: list[Any]) -> None:
        pack, fd = self._LENGTHS.pack, self._file.fileno()
        for key, value in records:
            os.write(fd, pack(len(key), len(value)) + key + value)
            if self._durable:
                os.fdatasync(fd)

    def records(self) -> Iterator[Any]:
        unpack = self._LENGTHS.unpack_from
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            at, end = 0, len(data)
            while at < end:
                key_bytes, value_bytes = unpack(data, at)
                middle = at + 8 + key_bytes
                at_next = middle + value_bytes
                yield data[at + 8 : middle], data[middle:at_next]
                at = at_next

    def get(self, offset: int) -> Any:
        raise NotImplementedError("a plain file has no index")

    def content(self) -> tuple[int, int]:
        return _sizes(self.records())

    def close(self) -> None:
        self._file.close()
