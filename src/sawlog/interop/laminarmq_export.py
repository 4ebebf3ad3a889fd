"""Writes stores and indexes as laminarmq does: see laminarmq.py for the bytes."""

from __future__ import annotations

import numpy as np

from ..batch import kernel
from ..storage import Directory
from .laminarmq_evidence import ENTRY
from .numbering import Numbers
from .writing import Rows, SegmentWriter, woven

#: The header of records that could not keep their index.
OFFSET = "laminarmq.offset"


class LaminarmqWriter(SegmentWriter):
    names = (".store", ".index")
    kept_headers = (OFFSET,)

    def __init__(self, directory: Directory, width: int) -> None:
        super().__init__(directory)
        self._head = np.dtype([("size", "<u4"), ("tag", "u1"), ("index", f"<u{width}")])

    def sizes(self, rows: Rows) -> Numbers:
        return rows.lengths + self._head.itemsize

    def index_head(self) -> bytes:
        """The base marker, before the first entry."""
        return self.base.to_bytes(8, "little") + bytes(8)

    def encode(self, rows: Rows, sizes: Numbers, position: int) -> tuple[memoryview, bytes]:
        heads = np.empty(len(rows), self._head)
        heads["size"], heads["tag"], heads["index"] = self._head.itemsize - 4, 1, rows.offsets
        data = woven(heads, rows)
        starts, checksums = np.cumsum(sizes) - sizes, np.empty(len(rows), np.int64)
        kernel.crc32_of(data, memoryview(starts), memoryview(sizes.copy()), memoryview(checksums))
        entries = np.empty(len(rows), ENTRY)
        entries["checksum"], entries["length"], entries["position"] = checksums, sizes, position + starts
        return data, entries.tobytes()
