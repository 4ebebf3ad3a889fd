"""Requests that a broker has to survive: drawn from the tables with values that mean something to it, and damaged."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from sawlog.broker import wire
from sawlog.broker.wire import Api, Body
from sawlog.broker.wire.schema import RECORDS, STRING, UUID, Kind

from ..peers import batch
from ..wire.bodies import Drawing

TOPIC, GROUP, TRANSACTION = "orders", "billing", "mover"
#: Names that exist, that could, and that must not become paths.
NAMES = [
    TOPIC,
    TOPIC,
    GROUP,
    TRANSACTION,
    "range",
    "consumer",
    "",
    ".",
    "..",
    "../../outside",
    "a/b",
    "\0",
    "x" * 300,
    "✓",
]
#: So that most requests are answered soon, and none creates a hundred thousand directories.
SMALL = {
    "max_wait_ms": [0, 1, -1],
    "timeout_ms": [0, 1, -1, 1000],
    "num_partitions": [-1, 0, 1, 3, 2**31 - 1],
    "count": [-1, 0, 2, 2**31 - 1],
    "acks": [-1, 0, 1, 2],
    "index": [0, 0, 1, -1, 2**31 - 1],
    "partition": [0, 0, 1, -1, 2**31 - 1],
    "partition_index": [0, 0, 1, -1, 2**31 - 1],
    "partition_indexes": [0, 0, 1, -1, 2**31 - 1],
    "fetch_offset": [0, 0, 1, -1, 2**63 - 1],
    "session_id": [0, 0, 1],
    "session_epoch": [0, 0, -1, 1],
    "producer_id": [-1, 0, 1, 1000, 2**63 - 1],
    "producer_epoch": [-1, 0, 1, 2**15 - 1],
    "member_epoch": [-1, 0, 0, 1],
    "generation_id": [-1, 0, 1],
    "session_timeout_ms": [0, 1000, 6000, 2**31 - 1],
    "rebalance_timeout_ms": [-1, 0, 100, 2**31 - 1],
    "resource_type": [2, 2, 4, 8, 0, 127],
    "config_operation": [0, 1, 2, 3, 4, -1],
    "key_type": [0, 1, 2],
}


class Plausible(Drawing):
    """Draws requests whose names and numbers often exist."""

    def __init__(self, random: Random, version: int, topic_id: bytes) -> None:
        super().__init__(random, version)
        self._topic_id = topic_id
        self._batches = [
            batch(b"one", (b"key", b"two")),
            batch(*[b"x" * 100] * 20, compression="gzip"),
            batch(b"z" * 1000, compression="zstd"),
        ]

    def _scalar(self, kind: Kind, name: str) -> Any:
        random = self._random
        if name in SMALL and kind.code and random.random() < 0.9:
            return random.choice(SMALL[name])
        if kind is STRING and random.random() < 0.8:
            return random.choice(NAMES)
        if kind is UUID and random.random() < 0.5:
            return self._topic_id
        if kind is RECORDS and random.random() < 0.8:
            return (
                damaged(random.choice(self._batches), random) if random.random() < 0.5 else random.choice(self._batches)
            )
        return super()._scalar(kind, name)


def request(api: Api, version: int, body: Body, number: int = 1) -> bytes:
    """A whole request, without its length."""
    return b"".join(wire.encode_request(api.key, version, number, "fuzzer", body))[4:]


def damaged(frame: bytes, random: Random, first: int = 0) -> bytes:
    """Something of it is changed, from `first` on: bytes, counts, its end."""
    changed = bytearray(frame)
    for _ in range(random.choice([1, 1, 2, 5])):
        at = random.randrange(first, len(changed)) if len(changed) > first else first
        match random.randrange(6):
            case 0:
                changed[at : at + 1] = random.randbytes(1)
            case 1:
                changed[at : at + 4] = random.choice(
                    [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\x10\0\0"]
                )
            case 2:
                del changed[at : at + random.randrange(1, 9)]
            case 3:
                changed[at:at] = random.randbytes(random.randrange(1, 9))
            case 4:
                del changed[at:]
            case _:
                changed[at : at + 1] = bytes([changed[at] ^ 1 << random.randrange(8)]) if at < len(changed) else b"\xff"
    return bytes(changed)


def framed(frame: bytes) -> bytes:
    """With its length."""
    return struct.pack(">i", len(frame)) + frame
