"""Locks between threads that a forked child finds free.

A child has one thread: the one that forked. If another thread of its parent was in the middle of an append, the
child's copy of that log's lock is taken, and nobody is there to let go of it; whoever asks for it in the child, be it
only to be told that the log belongs to the parent, or to close it, would wait for ever. So every lock of an object that
lives longer than a call is made by `forkable`, and is free again in a child. Those that the forking thread itself holds
stay as they are: it is going to let go of them.

What the locks guarded may be half-changed in the child. It does not matter: a child may not write through what it
inherited, and it reads the log as any other process would, not by what its parent knew (`in_children`).
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def forkable(lock: T) -> T:
    """The lock or condition, which from now on is free in every forked child."""
    _locks.add(lock)
    return lock


_told: weakref.WeakSet[Any] = weakref.WeakSet()


class Inherited(Protocol):
    """Something that a forked child finds changed."""

    def after_fork(self) -> None:
        """In the child, before anything else. It must not raise, and take no time: there may be thousands."""


def this_process() -> int:
    """A number that a forked child has not."""
    return os.getpid()


def in_children(what: Inherited) -> None:
    """Tell this object, for as long as it lives, when it finds itself in a forked child."""
    _told.add(what)


def _free() -> None:
    for each in list(_told):
        each.after_fork()
    for lock in list(_locks):
        owned = getattr(lock, "_is_owned", None)
        # CPython's own way, by which its modules do the same; where there is none, the lock stays as it is.
        renew = getattr(lock, "_at_fork_reinit", None)
        if renew is not None and not (owned is not None and owned()):
            renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)
