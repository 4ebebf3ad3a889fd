"""`AsyncTransaction`: records for several partitions, stored all or not at all, for asyncio."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from ..batch.inputs import RecordInput
from ..errors import LogClosed
from ..store.base import StoreTransaction
from ..store.directory.transactions.staging import PlacedOffsets
from .waiting import in_thread, past_recall


class AsyncTransaction:
    """A transaction: `async with store.transaction() as transaction`. It commits at the end of the block, and aborts if
    the block raises. Created by `AsyncStore.transaction`."""

    def __init__(self, begin: Callable[[], StoreTransaction]) -> None:
        self._begin = begin
        self._begun: StoreTransaction | None = None

    @property
    def _transaction(self) -> StoreTransaction:
        if self._begun is None:
            raise LogClosed("the transaction has not begun: use `async with`")
        return self._begun

    @property
    def replayed(self) -> bool:
        """This name and sequence, or a later one, are already stored."""
        return self._transaction.replayed

    async def append(self, topic: str, value: bytes | None, key: bytes | None = None) -> None:
        """Add one record; its offset is known after the commit."""
        await in_thread(self._transaction.append, topic, value, key)

    async def append_many(self, topic: str, records: Iterable[RecordInput], partition: int | None = None) -> None:
        """Add records, all or none of them."""
        await in_thread(self._transaction.append_many, topic, list(records), partition)

    async def commit(self) -> PlacedOffsets:
        """Store everything and return the offsets by (topic, partition). A commit in progress finishes even if the task
        is cancelled."""
        return await past_recall(self._transaction.commit)

    async def abort(self) -> None:
        """Discard everything."""
        await in_thread(self._transaction.abort)

    async def __aenter__(self) -> Self:
        self._begun = await in_thread(self._begin)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await in_thread(self._transaction.__exit__, kind, error, trace)
