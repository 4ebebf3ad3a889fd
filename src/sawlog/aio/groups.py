"""`AsyncGroups`: the consumer groups of a store, for asyncio. Every call runs in a thread."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping

from ..store.assignment import Share
from ..store.base import ConsumerGroups
from ..store.committed_offsets import Start
from ..store.groups import GroupDescription
from .waiting import in_thread


class AsyncGroups:
    """Consumer groups of a store: list, inspect, move and delete them."""

    def __init__(self, groups: Callable[[], ConsumerGroups]) -> None:
        #: Called in a thread: a directory opens its groups on first use.
        self._groups = groups

    async def list(self) -> builtins.list[str]:
        """Return the names of all groups."""
        return await in_thread(lambda: self._groups().list())

    async def describe(self, name: str) -> GroupDescription:
        """Return the members of a group and its progress; `GroupNotFound`."""
        return await in_thread(lambda: self._groups().describe(name))

    async def commit(
        self,
        name: str,
        offsets: Mapping[Share, int],
        *,
        metadata: str = "",
        epochs: Mapping[Share, int] | None = None,
    ) -> None:
        """Commit offsets durably; `GroupActive` if a live member owns one of the partitions."""
        await in_thread(lambda: self._groups().commit(name, offsets, metadata=metadata, epochs=epochs))

    async def seek(self, name: str, offsets: Mapping[Share, Start]) -> dict[Share, int]:
        """Move a group without live members; `GroupActive`, `GroupNotFound`."""
        return await in_thread(lambda: self._groups().seek(name, offsets))

    async def delete(self, name: str) -> None:
        """Delete a group and its offsets; `GroupActive` if it has live members."""
        await in_thread(lambda: self._groups().delete(name))
