"""Telling somebody, instead of letting them wait, that what they appended is as durable as the policy promises.

An event loop places batches and goes on; a background thread makes what is placed durable, with one fdatasync for all
that came meanwhile, and calls back. Those who append in the ordinary way share these syncs (see commit.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ... import background
from ...errors import SawlogError
from ...storage.forking import forkable
from .commit import GroupCommit

#: Called with None, or with the error that ended writing.
Call = Callable[[BaseException | None], None]


class Settling:
    """Who waits to be told."""

    def __init__(self, commit: GroupCommit, waits: Callable[[], bool]) -> None:
        self._commit = commit
        #: Whether the policy has an append wait for the disk now.
        self._waits = waits
        self._lock = forkable(threading.Lock())
        self._pending: list[tuple[int, Call]] = []
        self._serving = False

    def when(self, offset: int, call: Call) -> None:
        """Call back when an append that ended at `offset` may be acknowledged: at once, in this thread, if there is
        nothing to wait for; else from a background thread. The callback must not raise, and should not wait."""
        if self._commit.failure is None and (self._commit.durable_offset >= offset or not self._waits()):
            call(None)
            return
        with self._lock:
            self._pending.append((offset, call))
            serving, self._serving = self._serving, True
        if not serving:
            background.soon(self._serve)

    def _serve(self) -> None:
        while True:
            with self._lock:
                pending, self._pending = self._pending, []
                if not pending:
                    self._serving = False
                    return
            error: BaseException | None = None
            try:
                self._commit.ensure(max(offset for offset, _ in pending))
            except (SawlogError, OSError) as failure:
                error = failure
            for _, call in pending:
                call(error)
