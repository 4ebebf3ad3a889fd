"""The async appends of a log: one `AsyncAppends` per event loop that uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .aio import AsyncAppends
    from .appender import Appender


class Loops:
    """Finds the appends of the running loop. asyncio is imported when it is first needed."""

    def __init__(self) -> None:
        self._of: dict[int, AsyncAppends] = {}
        self._last: AsyncAppends | None = None

    def appends(self, appender: Appender) -> AsyncAppends:
        """Those of the running loop."""
        last = self._last
        if last is not None and last.loop is last.running_loop():
            return last
        return self._find(appender)

    def _find(self, appender: Appender) -> AsyncAppends:
        from .aio import AsyncAppends, running_loop

        loop = running_loop()
        found = self._of.get(id(loop))
        if found is None or found.loop is not loop:
            for number, gone in list(self._of.items()):
                if gone.loop.is_closed():
                    del self._of[number]
                    gone.close()
            found = self._of[id(loop)] = AsyncAppends(appender)
        self._last = found
        return found

    def all(self) -> list[AsyncAppends]:
        """Those of all loops."""
        return list(self._of.values())
