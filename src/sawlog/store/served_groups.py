"""Groups whose members connect over the network: a broker serves the group, and no consumer of this library joins it.

```
members/<group>/broker      locked by a broker while it has members of the group; its note has the broker's address
```

Network members and consumers that open the store themselves do not know of each other, so a group has either the one or
the other kind. Both are decided in turns of the groups' log: `Claim.take` takes the lock if no consumer has joined, and
joining, moving or deleting a group checks for the lock first (`refuse_served`). The kernel releases the lock of a
broker that dies for any reason.

A member that hangs or was stopped does not keep a broker out for longer than its session timeout: `Claim` watches it
as another member would, and fences it.

Thread-safe. Turns decide the order.
"""

from __future__ import annotations

import logging

from ..errors import DirectoryLocked, GroupActive
from ..storage import Directory, Lock
from .committed_offsets import OffsetStore
from .members import Member, Members, as_note, group_directory, note_of

_BROKER = "broker"

_logger = logging.getLogger("sawlog.store.groups")


class Served:
    """A broker's claim to a group, from `Claim.take` until `release`."""

    def __init__(self, directory: Directory, held: Lock) -> None:
        self._directory = directory
        self._held = held

    @property
    def current(self) -> bool:
        """Whether the lock is held, and is the one that others see."""
        return self._held.current

    def release(self) -> None:
        """Let other members join, after the last commit. Safe to call twice."""
        if not self._held.held:
            return
        try:
            if self._held.current:
                self._directory.remove(_BROKER)
        finally:
            self._held.release()
            self._directory.close()


class Claim:
    """A broker's attempts to serve one group."""

    def __init__(self, root: Directory, offsets: OffsetStore, group: str, address: str) -> None:
        self._root = root
        self._offsets = offsets
        self._group = group
        self._address = address
        self._members: Members | None = None
        #: The beat of each member when it was first seen.
        self._beats: dict[str, int] = {}

    def take(self) -> Served:
        """Serve the group. `GroupActive` if it has live members in this or another process of the machine, or another
        broker serves it."""
        with self._offsets.turn():
            if self._members is None:
                self._members = Members(group_directory(self._root, self._group, create=True))
            live = self._fenced(self._members, self._members.look())
            if live:
                who = ", ".join(sorted(each.name or each.process for each in live.values()))
                raise GroupActive(
                    f"the group {self._group!r} has live members that opened the store themselves ({who}): close them "
                    "before members join over the network"
                )
            refuse_served(self._members.directory, self._group)
            members, self._members = self._members, None
            try:
                held = members.directory.lock(_BROKER, alone=False)
                held.leave(as_note({"address": self._address}))
                return Served(members.directory, held)
            except BaseException:
                members.directory.close()
                raise

    def _fenced(self, members: Members, found: dict[str, Member]) -> dict[str, Member]:
        """Return the members except those whose session has expired, which are fenced. Call in a turn."""
        live: dict[str, Member] = {}
        for member in found.values():
            self._beats.setdefault(member.id, member.beat)
            if members.is_silent(member) and members.fence(member):
                who = member.name or member.process
                _logger.warning("the session of %s expired; it was removed from the group %r", who, self._group)
            else:
                live[member.id] = member
        self._beats = {id: beat for id, beat in self._beats.items() if id in live}
        return live

    @property
    def may_succeed(self) -> bool:
        """Whether no member has sent a heartbeat since it was first seen: trying again soon may find its session
        expired."""
        if self._members is None or not self._beats:
            return False
        found = self._members.look()
        return all(each.beat == self._beats.get(each.id, each.beat) for each in found.values())

    def close(self) -> None:
        """Close the files. A group that was taken stays taken."""
        members, self._members = self._members, None
        if members is not None:
            members.directory.close()


def noted_server(directory: Directory) -> str | None:
    """Return the address in the lock file; None if there is none. The broker may be dead."""
    if not directory.exists(_BROKER):
        return None
    return str(note_of(directory, _BROKER)[1].get("address", "")) or "an unknown address"


def server_of(directory: Directory) -> str | None:
    """Return the address of the broker that serves a group; None if there is none. Removes the file of a dead broker.
    Call in a turn, because it takes the lock for a moment."""
    address = noted_server(directory)
    if address is None:
        return None
    try:
        held = directory.lock(_BROKER, alone=False)
    except DirectoryLocked:
        return address
    try:
        directory.remove(_BROKER)
    finally:
        held.release()
    return None


def refuse_served(directory: Directory, group: str) -> None:
    """Raise `GroupActive` if a broker serves the group. Call in a turn."""
    address = server_of(directory)
    if address is not None:
        raise GroupActive(
            f"the group {group!r} has members at the broker {address}: connect to {address} with a Kafka client, or "
            "stop those members first"
        )
