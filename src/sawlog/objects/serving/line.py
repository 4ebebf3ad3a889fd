"""`Line`: appends to one partition, in the order in which they came, though large ones are uploaded first.

A producer's batches have sequence numbers: a small one must not overtake a large one that is still being uploaded.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

from ...storage.forking import forkable
from ..commit import Request
from ..core import Core, results
from ..state import Outcome

#: The request of an append, and the batches that go into the commit with it.
Ready = tuple[Request, Sequence[bytes]]


@dataclass(slots=True)
class _Entry:
    """An append that waits for those before it, or for its upload."""

    placed: Future[range] = field(default_factory=Future)
    ready: Ready | None = None
    error: BaseException | None = None


class Line:
    """The appends of one process to one partition. Safe for threads; nothing of it waits."""

    def __init__(self, core: Core, threads: Executor) -> None:
        self._core = core
        self._threads = threads
        self._lock = forkable(threading.Lock())
        self._waiting: deque[_Entry] = deque()

    def append(self, ready: Ready) -> Future[range]:
        """A request that can be committed; the last of its actions appends."""
        with self._lock:
            made = _Entry(ready=ready)
            if self._waiting:
                self._waiting.append(made)
            else:
                self._submit(made)
        return made.placed

    def prepare(self, upload: Callable[[], Ready]) -> Future[range]:
        """A request that is known after an upload."""
        made = _Entry()
        with self._lock:
            self._waiting.append(made)

        def work() -> None:
            try:
                made.ready = upload()
            except BaseException as error:
                made.error = error
            with self._lock:
                self._go_on()

        self._threads.submit(work)
        return made.placed

    def _go_on(self) -> None:
        while self._waiting and (self._waiting[0].ready is not None or self._waiting[0].error is not None):
            self._submit(self._waiting.popleft())

    def _submit(self, entry: _Entry) -> None:
        if entry.ready is None:
            assert entry.error is not None
            entry.placed.set_exception(entry.error)
            return
        try:
            outcome = self._core.submit(*entry.ready)
        except BaseException as error:
            entry.placed.set_exception(error)
            return
        outcome.add_done_callback(lambda done: _settle(entry.placed, done))


def _settle(placed: Future[range], done: Future[Outcome]) -> None:
    """Give the offsets, or the error, to who waits for them."""
    try:
        found = results(done.result())[-1]
        assert isinstance(found, list)
        placed.set_result(range(found[0], found[1]))
    except BaseException as error:
        placed.set_exception(error)
