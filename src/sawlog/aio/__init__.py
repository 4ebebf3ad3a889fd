"""The asyncio API: stores, topics, logs and consumers whose calls are awaited.

```python
async with sawlog.open_async("data") as store:
    orders = await store.create_topic("orders", exist_ok=True)
    await orders.append(b"value", key=b"customer 7")
    async with store.consumer("billing", ["orders"]) as consumer:
        async for record in consumer: ...
```

Computation, reads from mapped files and writes to the page cache run in the event loop, in small portions. Operations
that may block on a disk, a lock or another process run elsewhere: an append is placed at once, and the group commit
reports when it is durable; opening, closing, committing and every change of a store run in a thread of the loop's
executor. A reader at the end of a log is woken by the next append.

*Cancellation.* A call that raises `CancelledError` has not appended anything. Once an append is in progress it cannot
be recalled: the call returns its result, and the task is cancelled at its next await. So a cancelled call can be
retried, and nothing is stored twice. Other calls (commit, truncate, close) finish before the cancellation is delivered;
repeating them does no harm.

Every object belongs to the event loop in which it was opened. See docs/async.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ..config import LogConfig
    from ..storage import Directory
    from .store import AsyncConsumer, AsyncStore
    from .topic import AsyncLog, AsyncTopic
    from .waiting import Opening

__all__ = ["AsyncConsumer", "AsyncLog", "AsyncStore", "AsyncTopic", "open_async", "open_log_async"]

#: Modules of the classes, imported on first use: not every program needs asyncio.
_CLASSES = {"AsyncConsumer": ".store", "AsyncLog": ".topic", "AsyncStore": ".store", "AsyncTopic": ".topic"}


if not TYPE_CHECKING:  # otherwise type checkers would accept every name

    def __getattr__(name: str) -> Any:
        if name not in _CLASSES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_CLASSES[name], __name__), name)


def open_async(
    path: str | PathLike[str] | Directory,
    mode: Literal["w", "r"] = "w",
    *,
    maintenance_interval_s: float | None = 60.0,
    lock_timeout: float | None = None,
    options: Mapping[str, str] | None = None,
) -> Opening[AsyncStore]:
    """Open a store of topics for asyncio: `async with open_async(path) as store`, or `await open_async(path)`. The
    arguments are those of `sawlog.open`, including addresses of object storage."""
    from .store import opening  # imports asyncio, which not every program needs

    given: dict[str, Any] = {
        "lock_timeout": lock_timeout,
        "options": options,
    }
    given = {name: value for name, value in given.items() if value is not None}
    return opening(path, mode, {"maintenance_interval_s": maintenance_interval_s, **given})


def open_log_async(
    path: str | PathLike[str] | Directory, config: LogConfig | None = None, *, mode: Literal["w", "r", "a"] = "w"
) -> Opening[AsyncLog]:
    """Open a single log for asyncio: `async with open_log_async(path) as log`. The arguments are those of
    `Log.open`."""
    from .topic import open_log

    return open_log(path, config, mode=mode)
