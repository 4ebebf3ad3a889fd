"""Fork safety: release inherited locks in a forked child, and notify objects that they are in one.

A child has a single thread, the one that forked. If another thread of the parent was appending, the child's copy of
that log's lock is held and never released: any use of the log in the child, even to close it or to learn that it
belongs to the parent, would deadlock. So every lock that outlives a call is registered with `forkable`, and is free
again in a child. Locks held by the forking thread itself stay held: it will release them.

The data protected by such a lock may be half-changed in the child. That is harmless: a child may not write through
inherited objects, and reads a log like any other process, not from its parent's memory (`notify_after_fork`).
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def forkable(lock: T) -> T:
    """Register a lock or condition to be free in every forked child, and return it."""
    _locks.add(lock)
    return lock


_fork_aware: weakref.WeakSet[Any] = weakref.WeakSet()


class ForkAware(Protocol):
    """An object that must change in a forked child."""

    def after_fork(self) -> None:
        """Called in the child before any other code. Must not raise, and must be fast: there may be thousands."""


def this_process() -> int:
    """Return a number that differs in a forked child."""
    return os.getpid()


def notify_after_fork(what: ForkAware) -> None:
    """Call the object's `after_fork` in every forked child, for as long as the object lives."""
    _fork_aware.add(what)


def _after_fork_in_child() -> None:
    for each in list(_fork_aware):
        each.after_fork()
    for lock in list(_locks):
        owned = getattr(lock, "_is_owned", None)
        # CPython's private method, which the standard library uses too; without it the lock stays held.
        renew = getattr(lock, "_at_fork_reinit", None)
        if renew is not None and not (owned is not None and owned()):
            renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
