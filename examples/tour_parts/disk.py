"""A directory that counts fdatasyncs.

The engine accepts any directory that implements `sawlog.storage`.
"""

from __future__ import annotations

from sawlog.storage import FileDirectory, Storage


class CountingDirectory(FileDirectory):
    """A directory of files that counts each fdatasync of a segment."""

    syncs = 0

    def create(self, name: str) -> Storage:
        return self._counted(super().create(name))

    def open(self, name: str) -> Storage:
        return self._counted(super().open(name))

    def _counted(self, storage: Storage) -> Storage:
        sync = storage.sync

        def counted() -> None:
            sync()
            self.syncs += 1

        storage.sync = counted  # type: ignore[method-assign]
        return storage
