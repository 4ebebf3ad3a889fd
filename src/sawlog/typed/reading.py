"""Iterators over typed records: `typed_scan` in chunks, for what is stored; `TypedFeed` one by one, for what a consumer
or a follower waits for.

After a `DecodeFailed`, both continue with the next record: an error ends a `for`, not the iterator.

Threads: one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Generic, TypeVar

from ..batch.kernel import Record
from ..errors import DecodeFailed
from .bad import BadRecords
from .codec import Codec
from .record import TypedRecord

V = TypeVar("V")
K = TypeVar("K")
M = TypeVar("M")

#: So many records are parsed at once.
_CHUNK = 256


def typed_scan(codec: Codec[V, K, M], records: Iterator[Record], bad: BadRecords) -> Iterator[TypedRecord[V, K, M]]:
    """The typed records of a scan."""
    return chain.from_iterable(_chunks(codec, records, bad))


def _chunks(
    codec: Codec[V, K, M], records: Iterator[Record], bad: BadRecords
) -> Iterator[Iterator[TypedRecord[V, K, M]]]:
    """Iterators over a few records each. Never raises: a chain whose source has raised has ended, but one of whose
    iterators raises can continue."""
    while True:
        chunk: list[Record] = []
        failure: Exception | None = None
        try:
            chunk.extend(islice(records, _CHUNK))
        except Exception as error:  # raised after the records before it
            failure = error
        try:
            ready: Iterator[TypedRecord[V, K, M]] = codec.decode_many(chunk)
        except Exception:  # one of them does not parse: find out which
            ready = TypedFeed(codec, iter(chunk), bad)
        yield ready
        if failure is not None:
            yield _raising(failure)
        if len(chunk) < _CHUNK:
            return


def _raising(failure: Exception) -> Iterator[TypedRecord[V, K, M]]:
    yield from ()
    raise failure


class TypedFeed(Generic[V, K, M]):
    """Typed records one by one: none is taken before it is asked for."""

    def __init__(self, codec: Codec[V, K, M], records: Iterator[Record], bad: BadRecords) -> None:
        self._codec = codec
        self._records = records
        self._bad = bad

    def __iter__(self) -> Iterator[TypedRecord[V, K, M]]:
        return self

    def __next__(self) -> TypedRecord[V, K, M]:
        for record in self._records:
            try:
                return self._codec.decode(record)
            except DecodeFailed as error:
                self._bad.take(error)
        raise StopIteration
