"""`AppendTarget`: the append methods that `Log` and `Forwarder` share."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from ...batch.inputs import HeadersInput, RecordInput
from ...log.writer import Writer

if TYPE_CHECKING:
    import pyarrow as pa


class AppendTarget(Protocol):
    """Target for appends to one partition: its `Log`, or a `Forwarder` to the process that holds it."""

    def append(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: HeadersInput,
        timestamp: int | datetime | None,
        expect_offset: int | None = None,
        /,
    ) -> int:
        """Append one record and return its offset. With `expect_offset`, append it there or raise `OffsetMismatch`."""

    def append_many(self, records: Iterable[RecordInput], expect_offset: int | None = None, /) -> range:
        """Append records as one batch and return their offsets."""

    def append_arrow(self, table: pa.Table | pa.RecordBatch, expect_offset: int | None = None, /) -> range:
        """Append the rows of an Arrow table and return their offsets."""

    def append_batches(
        self, raw: bytes | bytearray | memoryview, /, *, trusted: bool = False, expect_offset: int | None = None
    ) -> range:
        """Append encoded batches and return their offsets."""

    def writer(self, batch_bytes: int, linger_ms: float | None, /) -> Writer:
        """Return a buffered writer."""
