"""Kafka's format as other people wrote it: aiokafka (its C and its Python classes) and kafka-python.

Each `Client` encodes records into a batch and decodes a batch into records, in the same terms for all of
them: tuples (offset, timestamp, timestamp type, key, value, headers). None of their code is ours.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import aiokafka.record._crecords as aiokafka_c
import aiokafka.record.default_records as aiokafka_python

with warnings.catch_warnings():  # it reads its resources by an API that Python 3.11 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record.default_records as kafka_python

#: (offset, timestamp, timestamp type, key, value, headers)
Seen = tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def seen(record: Any) -> Seen:
    """Convert a record of any implementation to a tuple."""
    return (
        record.offset,
        record.timestamp,
        record.timestamp_type,
        record.key,
        record.value,
        tuple(tuple(header) for header in record.headers),
    )


@dataclass(frozen=True, slots=True)
class Client:
    """One implementation of the format."""

    name: str
    builder: Any
    reader: Any

    def encode(
        self,
        records: Iterable[tuple[Any, ...]],
        codec: int = 0,
        *,
        producer: tuple[int, int, int] = (-1, -1, -1),
        transactional: bool = False,
    ) -> bytes:
        """Encode a batch of (value, key, headers, timestamp), the tuples that our encoder accepts."""
        builder = self.builder(2, codec, int(transactional), *producer, 1 << 30)
        for offset, (value, key, headers, timestamp) in enumerate(records):
            assert builder.append(offset, timestamp, key, value, list(headers)) is not None
        return bytes(builder.build())

    def decode(self, data: bytes) -> list[Seen]:
        """Verify the CRC of one batch and return its records."""
        batch = self.reader(data)
        assert batch.validate_crc()
        return [seen(record) for record in batch]


CLIENTS = [
    Client("aiokafka-c", aiokafka_c.DefaultRecordBatchBuilder, aiokafka_c.DefaultRecordBatch),
    Client("aiokafka-python", aiokafka_python._DefaultRecordBatchBuilderPy, aiokafka_python._DefaultRecordBatchPy),
    Client("kafka-python", kafka_python.DefaultRecordBatchBuilder, kafka_python.DefaultRecordBatch),
]
