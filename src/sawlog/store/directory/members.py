"""`Members`: the members of a consumer group, and the partitions they own.

```
members/<group>/member-<id>           locked by a member as long as it lives; its note identifies it
members/<group>/owner-<topic>-<n>     locked by the member that owns partition n of the topic; its note names it
members/<group>/broker                locked by a broker that serves the group to the network: see membership.py
```

All are files with only a lock and a note (`Directory.lock`, `Lock.leave`). A note is one line of JSON.

**Liveness.** The kernel releases the locks of a process that dies for any reason: a process that can take a member's
lock knows that the member is dead, and removes its file. A member that hangs or was stopped keeps its locks. But a
working member increments a heartbeat counter in its note; if the counter has not changed for the session timeout, the
session has expired and the member is *fenced*: its files are removed, so that its locks belong to names that no longer
exist (`Lock.current`). Clocks are never compared: each member watches the counters of the others by its own clock, and
time in which it did not check (it may have been stopped as well) does not count.

**Ownership.** Joining, fencing, taking a partition and committing an offset happen in turns of the groups' log
(`SharedLog`), so all processes see them in one order. This gives the guarantee of a group: *no commit of an earlier
owner comes after a later owner has begun*.

- A name refers to one file at a time, and a file's lock has one holder. Owner files are removed only in turns. So
  within a turn at most one member has a current lock for a partition.
- A commit checks in its turn whether the locks of its partitions are current; if not, it is refused (`GroupFenced`).
- A new owner reads the committed offset in the same turn. From then on it has the current lock until it releases it,
  dies or is fenced; so every commit of another member came before that turn, or is refused.

A partition is released without a turn, after the last commit. Files of dead members are removed without one, too: their
names are never reused.

Thread-safe. File locks and turns decide which process may change what.
"""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Sequence
from contextlib import closing

from ...batch.text import parse_json
from ...clock import now_ms
from ...errors import DirectoryLocked, GroupActive, StorageError
from ...storage import Directory, Lock
from ...storage.forking import forkable
from ..base import TopicPartition
from ..groups import Member, Silence
from ..names import MEMBERS, quoted, unquoted

_MEMBER, _OWNER = "member-", "owner-"
#: File names have 255 bytes.
_LONGEST = 255


def note_of(directory: Directory, name: str) -> tuple[str, dict[str, object]]:
    """Return the signature and the note in a lock file; an empty note if there is none or it is being written."""
    try:
        signature, _, rest = directory.read(name).partition(b"\n")
        found = parse_json(rest.partition(b"\n")[0])
    except (StorageError, ValueError):
        return "", {}
    return signature.decode("utf-8", "replace"), found if isinstance(found, dict) else {}


def as_note(fields: dict[str, object]) -> bytes:
    """Encode a note."""
    return json.dumps(fields).encode() + b"\n"


def _is_dead(directory: Directory, name: str) -> bool:
    """Return whether the lock has no holder, and remove the file if so."""
    try:
        held = directory.lock(name, alone=False)
    except DirectoryLocked:
        return False
    try:
        directory.remove(name)
    finally:
        held.release()
    return True


class Membership:
    """This process's own membership: alive until `leave` or until it is fenced."""

    def __init__(
        self, directory: Directory, name: str, topics: Sequence[str], session_timeout_ms: int, *, works: bool = False
    ) -> None:
        self.id = uuid.uuid4().hex
        self._directory = directory
        self._fields: dict[str, object] = {
            "id": self.id,
            "name": name,
            "topics": list(topics),
            "session_timeout_ms": session_timeout_ms,
            **({"works": True} if works else {}),
        }
        self._beat = 0
        #: A heartbeat must not reach a file that is being closed: its descriptor may be reused by then.
        self._mutex = forkable(threading.Lock())
        self._held = directory.lock(_MEMBER + self.id, alone=False)
        self.beat()

    def beat(self) -> None:
        """Send a heartbeat."""
        with self._mutex:
            if self._held.held:
                self._beat += 1
                note = {**self._fields, "beat": self._beat, "time_ms": now_ms()}
                self._held.leave(as_note(note))

    @property
    def current(self) -> bool:
        """True if the other members still count this one."""
        return self._held.current

    def leave(self) -> None:
        """Leave the group."""
        with self._mutex:
            try:
                if self._held.current:
                    self._directory.remove(_MEMBER + self.id)
            finally:
                self._held.release()


class Members:
    """Members of one group, as one process sees them."""

    def __init__(self, directory: Directory) -> None:
        #: members/<group>
        self.directory = directory
        self._silence = Silence()

    def join(self, name: str, topics: Sequence[str], session_timeout_ms: int, *, works: bool = False) -> Membership:
        """Join as a member, or as a worker of the group's queue. Call in a turn."""
        for _ in range(100):
            try:
                made = Membership(self.directory, name, topics, session_timeout_ms, works=works)
            except DirectoryLocked:
                continue  # another process saw the file before our lock, and treated it as a dead member's
            if made.current:
                return made
            made.leave()
        raise DirectoryLocked(self.directory.path)

    def look(self) -> dict[str, Member]:
        """Return the live members by id. Removes the files of dead ones."""
        found: dict[str, Member] = {}
        for name in self.directory.names():
            if name.startswith(_MEMBER) and not _is_dead(self.directory, name):
                member = self._member(name)
                if member is not None:
                    found[member.id] = member
        self._silence.watch(found)
        return found

    def glance(self) -> dict[str, Member]:
        """Like `look`, without changing anything: a member counts as alive if its last heartbeat is recent by the wall
        clock."""
        found: dict[str, Member] = {}
        time_ms = now_ms()
        for name in self.directory.names():
            member = self._member(name) if name.startswith(_MEMBER) else None
            if member is not None and time_ms - member.time_ms <= member.session_timeout_ms:
                found[member.id] = member
        return found

    def _member(self, name: str) -> Member | None:
        signature, note = note_of(self.directory, name)
        try:
            topics = note["topics"]
            if not isinstance(topics, list):
                return None
            return Member(
                str(note["id"]),
                str(note["name"]),
                signature,
                tuple(map(str, topics)),
                int(str(note["session_timeout_ms"])),
                int(str(note["beat"])),
                int(str(note["time_ms"])),
                bool(note.get("works")),
            )
        except (KeyError, ValueError):
            return None  # it is just joining

    def is_silent(self, member: Member) -> bool:
        """Return whether the member's session has expired, as far as this process has checked."""
        return self._silence.is_silent(member)

    def fence(self, member: Member) -> bool:
        """Remove an inactive member and its ownership, unless it has come back; return whether it was removed. Call in
        a turn."""
        again = self._member(_MEMBER + member.id)
        if again is not None and again.beat != member.beat:
            return False
        for name, (_, owner) in self._owner_files().items():
            if owner == member.id:
                self.directory.remove(name)
        self.directory.remove(_MEMBER + member.id)
        return True

    # --- partitions

    def _owner_files(self) -> dict[str, tuple[TopicPartition, str]]:
        found: dict[str, tuple[TopicPartition, str]] = {}
        for name in self.directory.names():
            if name.startswith(_OWNER):
                _, note = note_of(self.directory, name)
                if note.keys() >= {"topic", "partition", "member"}:
                    found[name] = (str(note["topic"]), int(str(note["partition"]))), str(note["member"])
        return found

    def owners(self) -> dict[TopicPartition, str]:
        """Return the claimed owner of each partition. It may be dead: see `look`."""
        return dict(self._owner_files().values())

    def take(self, partition: TopicPartition, member_id: str) -> Lock | None:
        """Take a partition; None if another member owns it. Call in a turn."""
        try:
            held = self.directory.lock(_owner_name(partition), alone=False)
        except DirectoryLocked:
            return None
        held.leave(as_note({"topic": partition[0], "partition": partition[1], "member": member_id}))
        return held


def give_up(held: Lock) -> None:
    """Release a partition."""
    held.leave(b"")
    held.release()


def refuse_workers(members: Members, group: str) -> None:
    """Raise `GroupActive` if workers of a queue are in the group: workers and consumers do not see each
    other's progress. Call in a turn."""
    working = [each for each in members.look().values() if each.works]
    if working:
        who = ", ".join(sorted(each.name or each.process for each in working))
        raise GroupActive(f"the group {group!r} has workers of a queue ({who}): close them first, or use another group")


def refuse_consumers(members: Members, group: str) -> None:
    """Raise `GroupActive` if consumers are in the group. Call in a turn."""
    consumers = [each for each in members.look().values() if not each.works]
    if consumers:
        who = ", ".join(sorted(each.name or each.process for each in consumers))
        raise GroupActive(f"the group {group!r} has consumers ({who}): close them first, or use another group")


def _owner_name(share: TopicPartition) -> str:
    topic, partition = share
    name = f"{_OWNER}{topic}-{partition}"
    if len(name) > _LONGEST:
        name = f"{_OWNER}{hashlib.sha256(topic.encode()).hexdigest()}-{partition}"
    return name


def group_directory(root: Directory, group: str, *, create: bool) -> Directory:
    """Open members/<group> of a store."""
    with closing(root.child(MEMBERS, create=create)) as above:
        return above.child(quoted(group), create=create)


def groups_with_members(root: Directory) -> list[str]:
    """Return the names of all groups that have, or had, members."""
    if MEMBERS not in root.children():
        return []
    with closing(root.child(MEMBERS)) as above:
        return sorted(map(unquoted, above.children()))


def forget_group(root: Directory, group: str) -> None:
    """Delete a group's directory. Call in a turn, and only if it has no members."""
    if MEMBERS in root.children():
        with closing(root.child(MEMBERS)) as above:
            above.remove_child(quoted(group))
