"""Micro-batches as commits to a Delta table, through the `deltalake` package: no jar, and no Spark to read it.

Delta's log records the last batch of every application in the same commit that adds the batch's files (`txn`), so a
replayed batch is recognised, and a reader sees a batch completely or not at all. A micro-batch passes through the
driver's memory; `max_records` limits it. Delta's `optimize` merges small files; the old ones remain for readers of
older versions until the table is vacuumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..tables.formats import check_package

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class DeltaTarget:
    """A Delta table as the target of `export`. One query writes to it at a time."""

    def __init__(self, root: Path, name: str, by: Sequence[str], file_bytes: int) -> None:
        check_package("delta")
        import deltalake

        self._deltalake = deltalake
        self._root, self._name, self._by = str(root), f"sawlog-{name}", list(by)
        self._file_bytes = file_bytes
        self.merged_files = self.new_files = 0

    def take(self, rows: DataFrame, batch: int) -> None:
        """Commit a micro-batch, unless it is already committed."""
        delta = self._deltalake
        if self._exists():
            last = delta.DeltaTable(self._root).transaction_version(self._name)
            if last is not None and last >= batch:
                return
        noted = delta.CommitProperties(app_transactions=[delta.Transaction(self._name, batch)])
        delta.write_deltalake(
            self._root, rows.toArrow(), mode="append", partition_by=self._by or None, commit_properties=noted
        )

    def _exists(self) -> bool:
        return bool(self._deltalake.DeltaTable.is_deltatable(self._root))

    def compact(self) -> None:
        """Merge small files."""
        if not self._exists():
            return
        done = self._deltalake.DeltaTable(self._root).optimize.compact(target_size=self._file_bytes)
        self.merged_files += done["numFilesRemoved"]
        self.new_files += done["numFilesAdded"]
