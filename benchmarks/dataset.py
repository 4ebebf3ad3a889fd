"""The records that every candidate stores: the same thousand, repeated.

Values look like small JSON documents, so that they compress; keys are 8 bytes. Repeating a thousand records keeps the
input in the processor's caches, for every candidate alike.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from functools import cache

BATCH_RECORDS = 1000
KEY_BYTES = 8

_WORDS = ("order", "shipped", "paid", "refund", "basket", "search", "click", "user", "account", "session", "mobile")

#: (key, value)
Pair = tuple[bytes, bytes]


@cache
def _thousand(value_bytes: int) -> list[Pair]:
    rng = random.Random(value_bytes)
    return [(struct.pack(">Q", rng.getrandbits(64)), _value(rng, value_bytes)) for _ in range(BATCH_RECORDS)]


def _value(rng: random.Random, size_bytes: int) -> bytes:
    """JSON that was cut to length: field names repeat, contents less so."""
    text = f'{{"id":{rng.randrange(10**9)},"event":"{rng.choice(_WORDS)}","user":"{rng.getrandbits(48):x}"'
    while len(text) < size_bytes:
        text += f',"{rng.choice(_WORDS)}":"{rng.choice(_WORDS)} {rng.randrange(10**6)}"'
    return text[:size_bytes].encode()


@dataclass(frozen=True, slots=True)
class Dataset:
    """`count` records with values of `value_bytes`, in batches of a thousand."""

    value_bytes: int
    count: int

    def __post_init__(self) -> None:
        assert self.count % BATCH_RECORDS == 0, "whole batches only"

    @property
    def batch(self) -> list[Pair]:
        """One batch; the others are the same."""
        return _thousand(self.value_bytes)

    @property
    def batches(self) -> int:
        """Number of batches."""
        return self.count // BATCH_RECORDS

    @property
    def payload_bytes(self) -> int:
        """Keys and values of all records."""
        return self.count * (KEY_BYTES + self.value_bytes)

    @property
    def content(self) -> tuple[int, int]:
        """(records, bytes of keys and values) that a store must return."""
        return self.count, self.payload_bytes

    @property
    def size(self) -> str:
        """The size of the values, for display."""
        return "1 KiB" if self.value_bytes == 1024 else f"{self.value_bytes:,} B"


def offset_key(offset: int) -> bytes:
    """An offset as a key that sorts like the number."""
    return struct.pack(">Q", offset)
