"""Locks between threads that are free in a forked child.

A child has one thread: the one that forked. If another thread of its parent was appending, the child's copy of that
log's lock is held and never released: any thread in the child that asks for it, even to be told that the log belongs to
the parent or to close it, would wait forever. So every lock of an object that outlives a call is created by `forkable`
and is free again in a child. Locks that the forking thread itself holds stay held: it will release them.

The data that the locks protect may be half-changed in the child. That does not matter: a child may not write through
what it inherited, and it reads the log like any other process, not from its parent's memory (`in_children`).
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def forkable(lock: T) -> T:
    """Register the lock or condition, which from now on is free in every forked child, and return it."""
    _locks.add(lock)
    return lock


_told: weakref.WeakSet[Any] = weakref.WeakSet()


class Inherited(Protocol):
    """An object that changes in a forked child."""

    def after_fork(self) -> None:
        """Called in the child before anything else. It must not raise and must be fast: there may be thousands."""


def this_process() -> int:
    """A number that differs in a forked child."""
    return os.getpid()


def in_children(what: Inherited) -> None:
    """Notify this object, as long as it lives, when it is in a forked child."""
    _told.add(what)


def _free() -> None:
    for each in list(_told):
        each.after_fork()
    for lock in list(_locks):
        owned = getattr(lock, "_is_owned", None)
        # CPython's own method, which its modules also use; where it does not exist, the lock stays held.
        renew = getattr(lock, "_at_fork_reinit", None)
        if renew is not None and not (owned is not None and owned()):
            renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)
