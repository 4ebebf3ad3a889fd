"""Markers: the control batches that end a producer's transaction, in the bytes that Kafka's coordinators write.

```
attributes    transactional and control
producer      id and epoch of the transaction; the sequence is -1
one record    key [version i16 = 0][type i16: 0 abort, 1 commit], value [version i16 = 0][coordinator epoch i32]
```
"""

from __future__ import annotations

import struct

from ..batch import kernel
from ..batch.checksum import crc32c
from ..batch.header import CONTROL_BIT, HEADER_BYTES, TRANSACTIONAL_BIT
from ..clock import now_ms
from ..errors import InvalidRecord
from .appender import Appender
from .ingest import rows_of

_ABORT, _COMMIT = 0, 1
#: The record after its length: attributes, deltas of time and offset, key length 4, key, value length 6, value, no
#: headers. All varints are zig-zag and of one byte.
_RECORD = struct.Struct(">bbbbbhhbhib")


def marker(producer_id: int, epoch: int, coordinator_epoch: int, timestamp: int, *, commit: bool) -> bytearray:
    """Return the control batch, without offsets and leader epoch."""
    for name, value, most in (
        ("producer id", producer_id, 2**63 - 1),
        ("producer epoch", epoch, 2**15 - 1),
        ("coordinator epoch", coordinator_epoch, 2**31 - 1),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise InvalidRecord(f"a marker's {name} must be an integer from 0 to {most}, not {value!r}")
    body = _RECORD.pack(
        2 * (_RECORD.size - 1), 0, 0, 0, 2 * 4, 0, _COMMIT if commit else _ABORT, 2 * 6, 0, coordinator_epoch, 0
    )
    made = bytearray(HEADER_BYTES + len(body))
    made[HEADER_BYTES:] = body
    view = memoryview(made)
    attributes = TRANSACTIONAL_BIT | CONTROL_BIT
    kernel.write_header(view, 0, 0, len(made), 0, attributes, 0, timestamp, timestamp, producer_id, epoch, -1, 1)
    kernel.patch_crc(view, 0, crc32c(view[21:]))
    return made


def append_marker(appender: Appender, producer_id: int, epoch: int, coordinator_epoch: int, *, commit: bool) -> int:
    """Place a marker and return its offset. Does not wait for the disk."""
    data = memoryview(marker(producer_id, epoch, coordinator_epoch, now_ms(), commit=commit))
    rows = rows_of(data)
    with appender.lock:
        appender.producers.check_epoch(producer_id, epoch)
        return appender.place_rows(data, rows).start
