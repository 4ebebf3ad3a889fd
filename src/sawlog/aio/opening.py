"""`Opening`: the result of an open call, for `await` or for `async with`, which also closes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar


class Closable(Protocol):
    """An object with an asynchronous `close`."""

    async def close(self) -> None:
        """Release everything. Safe to call twice."""


T = TypeVar("T", bound=Closable)


class Opening(Generic[T]):
    """An open call that has not run yet. Await it or enter it, once."""

    def __init__(self, open_: Callable[[], Awaitable[T]]) -> None:
        self._open = open_
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()
