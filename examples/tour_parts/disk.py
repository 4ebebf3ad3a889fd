"""A directory that counts: how often the engine really asks the disk to be sure.

The engine takes any directory that keeps the promises of `sawlog.storage`, so this one is put in from outside.
"""

from __future__ import annotations

from sawlog.storage import FileDirectory, Storage


class CountingDirectory(FileDirectory):
    """Files as ever; each fdatasync of a segment is counted."""

    syncs = 0

    def create(self, name: str) -> Storage:
        """As ever."""
        return self._counted(super().create(name))

    def open(self, name: str) -> Storage:
        """As ever."""
        return self._counted(super().open(name))

    def _counted(self, storage: Storage) -> Storage:
        sync = storage.sync

        def counted() -> None:
            sync()
            self.syncs += 1

        storage.sync = counted  # type: ignore[method-assign]
        return storage
