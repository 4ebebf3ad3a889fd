"""Consumer groups: how far each has read, and looking at and moving that from outside.

Committed offsets live in `groups/`, a compacted log of our own that every process of the machine writes in turns
(`SharedLog`). One record is one offset of one group:

```
key     ["offset", "billing", "orders", 3]
value   {"offset": 1200, "topic_id": "5f0c…", "metadata": "", "time_ms": 1763251200000, "member": "9b1e…",
         "leader_epoch": 3}
```

The last record of a key counts; one without a value deletes it. The offset is that of the next record to be read. It
counts for the topic with that id only: a topic that was deleted and made again starts without offsets. The leader epoch
is the one in which the group read: an offset beyond the end of its epoch falls back to that end (`Log.epoch_end`).
Commits of version 0.2 have none.

Damage in this log does not stop the groups: it is reported in the log `sawlog.topics.groups` and passed over. A group
that had committed there goes on from an earlier offset, which costs a repetition and loses nothing.

Reading takes no lock: each process keeps the offsets in memory and reads what was appended since. Who may commit what
is said in `members`.

Threads: any.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from ..batch.text import parse_json
from ..config import MIB, LogConfig, UpkeepConfig, whole_number
from ..errors import (
    CorruptBatch,
    GroupActive,
    GroupNotFound,
    InvalidConfig,
    LogClosed,
    LogNotFound,
    ReadOnlyLog,
    StorageError,
    TopicNotFound,
)
from ..log.files.epochs import MAX_EPOCH
from ..log.log import Log
from ..log.shared import SharedLog
from ..storage import Directory
from ..storage.forking import forkable
from .assignment import Share
from .members import Member, Members, check_group_name, forget_group, give_up, group_directory, groups_with_members
from .names import GROUPS

if TYPE_CHECKING:
    from .store import Store
    from .topic import Topic

#: Where to start: the first record there is, the end, an offset, or the first record that is not older.
Place = Literal["earliest", "latest"] | int | datetime

_messages = logging.getLogger(__name__)

_CONFIG = LogConfig(segment_bytes=MIB)
#: The log is compacted when it has more segments than this, and enough in them is new.
_SEGMENTS = 4
_UPKEEP = UpkeepConfig(compact=True, delete=False, merge_bytes=0)
#: What was read so long ago is read anew: a deletion may have been compacted away since.
_STALE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Committed:
    """One committed offset."""

    offset: int
    topic_id: str
    metadata: str
    time_ms: int
    #: The id of the member that committed it; empty if it came from outside.
    member: str
    #: In which leader epoch of the partition it was read; -1 if that is not known.
    leader_epoch: int = -1


class OffsetStore:
    """The committed offsets of all groups of a store."""

    def __init__(self, root: Directory, *, writable: bool, before_write: Callable[[], None] = lambda: None) -> None:
        self._root = root
        #: Called before anything is written: the store may be of an older format.
        self._before_write = before_write
        self._writable = writable
        self._mutex = forkable(threading.RLock())
        self._shared: SharedLog | None = None
        self._directory: Directory | None = None
        self._reader: Log | None = None
        self._groups: dict[str, dict[Share, Committed]] = {}
        self._position = 0
        self._read_s = 0.0
        self._closed = False

    # --- reading

    def of(self, group: str) -> dict[Share, Committed]:
        """The offsets of one group, as of now."""
        with self._mutex:
            self._catch_up()
            return dict(self._groups.get(group, {}))

    def groups(self) -> list[str]:
        """The groups that have any."""
        with self._mutex:
            self._catch_up()
            return sorted(name for name, offsets in self._groups.items() if offsets)

    def _catch_up(self) -> None:
        if self._closed:
            raise LogClosed(f"the groups of {self._root.path} are closed")
        if self._reader is None:
            if GROUPS not in self._root.children():
                return
            directory = self._root.child(GROUPS)
            try:
                self._reader = Log.open(directory, _CONFIG, mode="r")
            except LogNotFound:  # nobody has committed yet
                directory.close()
                return
        end = self._reader.visible_offset
        now = time.monotonic()
        if end < self._position or now - self._read_s > _STALE_S:
            self._groups, self._position = {}, 0
        self._read_s = now
        self._position = max(self._position, self._reader.lowest_offset)
        while self._position < end:
            self._read_on(self._reader, end)

    def _read_on(self, log: Log, end: int) -> None:
        try:
            for record in log.scan(self._position, end):
                self._apply(record.key, record.value)
            self._position = end
        except CorruptBatch as error:
            following = end if error.next_offset is None else max(error.next_offset, self._position + 1)
            _messages.error("%s; of the groups that committed there, an earlier offset counts", error)
            self._position = min(following, end)

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        try:
            kind, group, topic, partition = parse_json(key or b"")
            if kind != "offset":
                return  # of a later version of this program
            if not isinstance(group, str) or not isinstance(topic, str) or type(partition) is not int:
                raise ValueError("not the name of a group, the name of a topic and a number")
            offsets = self._groups.setdefault(group, {})
            if value is None:
                offsets.pop((topic, partition), None)
                return
            found = parse_json(value)
            offsets[topic, partition] = Committed(
                int(found["offset"]),
                str(found["topic_id"]),
                str(found["metadata"]),
                int(found["time_ms"]),
                str(found["member"]),
                int(found.get("leader_epoch", -1)),
            )
        except (ValueError, KeyError, TypeError):
            _messages.error("a record of %s/%s is no committed offset: %r", self._root.path, GROUPS, key)

    # --- writing

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """Alone among all processes: what is read and written in it happens at one moment."""
        if not self._writable:
            raise ReadOnlyLog(f'the store {self._root.path} was opened with mode="r": its groups cannot be changed')
        with self._mutex:
            if self._closed:
                raise LogClosed(f"the groups of {self._root.path} are closed")
            if self._shared is None:
                self._before_write()
                self._directory = self._root.child(GROUPS, create=True)
                self._shared = SharedLog(self._directory, _CONFIG)
            shared = self._shared
        with shared.turn() as log:
            yield Turn(self, log)

    def close(self) -> None:
        """Let go of the files."""
        with self._mutex:
            self._closed = True
            mine = (self._directory, self._shared, self._reader)
            self._directory = self._shared = self._reader = None
        with ExitStack() as last:  # not under the mutex: whoever is in a turn needs that to end it
            for each in mine:
                if each is not None:
                    last.callback(each.close)


class Turn:
    """What can be done in a turn."""

    def __init__(self, store: OffsetStore, log: Log) -> None:
        self._store = store
        self._log = log

    def offsets(self, group: str) -> dict[Share, Committed]:
        """The offsets of one group: nobody else changes them now."""
        return self._store.of(group)

    def write(self, group: str, offsets: Mapping[Share, Committed | None]) -> None:
        """Commit, or with None delete; all of them or none. Durable when this returns."""
        if not offsets:
            return
        records = []
        for (topic, partition), each in sorted(offsets.items()):
            key = json.dumps(["offset", group, topic, partition]).encode()
            value = None
            if each is not None:
                fields = {
                    "offset": each.offset,
                    "topic_id": each.topic_id,
                    "metadata": each.metadata,
                    "time_ms": each.time_ms,
                    "member": each.member,
                    "leader_epoch": each.leader_epoch,
                }
                value = json.dumps(fields).encode()
            records.append((value, key))
        self._log.append_many(records)
        if len(self._log.segments) > _SEGMENTS and self._log.upkeep_due(_UPKEEP):
            try:
                self._log.upkeep(_UPKEEP)
            except StorageError as error:  # what was asked for is done, and durable
                _messages.warning("the offsets in %s could not be compacted: %s", self._log.path, error)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """How far a group is in one partition."""

    topic: str
    partition: int
    #: The next offset to be read; None if nothing was committed.
    committed: int | None
    lowest: int
    end: int
    #: Records that are there and not committed as read.
    lag: int
    #: The id of the member that owns it, if one does.
    owner: str | None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """What there is to know about a group."""

    name: str
    members: tuple[Member, ...]
    rows: tuple[GroupRow, ...]


class Groups:
    """The consumer groups of a store. `store.groups` gives it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Committed offsets; for consumers.
        self.offsets = OffsetStore(store.directory, writable=store.mode != "r", before_write=store.upgrade)

    def close(self) -> None:
        """Let go of the files; `Store.close` does it."""
        self.offsets.close()

    # --- looking

    def list(self) -> list[str]:
        """The names of all groups that have committed something or have members."""
        names = set(self.offsets.groups())
        names.update(name for name in groups_with_members(self._store.directory) if self._live(name))
        return sorted(names)

    def describe(self, name: str) -> GroupDescription:
        """The members of a group and how far it is; `GroupNotFound` if there is none of that name."""
        offsets = self.offsets.of(check_group_name(name))
        members = self._live(name)
        if not offsets and not members:
            raise self._not_found(name)
        owners = {share: id for share, id in self._owners(name).items() if id in members}
        topics = {topic for topic, _ in offsets}.union(*(member.topics for member in members.values()))
        rows: list[GroupRow] = []
        for topic_name in sorted(topics):
            try:
                topic = self._store.topic(topic_name)
            except TopicNotFound:
                continue  # deleted since
            rows.extend(_row(topic, number, offsets, owners) for number in range(topic.partitions))
        return GroupDescription(name, tuple(sorted(members.values(), key=lambda each: each.id)), tuple(rows))

    def _members_of(self, name: str) -> Members | None:
        if name not in groups_with_members(self._store.directory):
            return None
        return Members(group_directory(self._store.directory, name, create=False))

    def _live(self, name: str) -> dict[str, Member]:
        found = self._members_of(name)
        if found is None:
            return {}
        try:
            return found.look() if self._store.mode != "r" else found.glance()
        finally:
            found.directory.close()

    def _owners(self, name: str) -> dict[Share, str]:
        found = self._members_of(name)
        if found is None:
            return {}
        try:
            return found.owners()
        finally:
            found.directory.close()

    def _not_found(self, name: str) -> GroupNotFound:
        return GroupNotFound(f"there is no group {name!r} in {self._store.path}: nobody has committed or joined")

    # --- moving

    def commit(
        self,
        name: str,
        offsets: Mapping[Share, int],
        *,
        metadata: str = "",
        epochs: Mapping[Share, int] | None = None,
    ) -> None:
        """Commit offsets for a group without being a member: for readers that keep track of themselves. `epochs` are
        the leader epochs in which they were read; where none is given, that of now counts.

        `GroupActive`, and nothing is written, if a live member owns one of the partitions.
        """
        check_group_name(name)
        known = epochs or {}
        made = {share: self._committed(share, offset, metadata, known.get(share)) for share, offset in offsets.items()}
        with self._turn_without_owners(name, made) as turn:
            turn.write(name, made)

    def seek(self, name: str, offsets: Mapping[Share, Place]) -> dict[Share, int]:
        """Move a group that nobody consumes in: to offsets, "earliest", "latest" or times; the offsets.

        `GroupActive` if it has live members: they would go on where they are. `GroupNotFound` if there is no such
        group.
        """
        epochs = {share: self._partition(share)[1].leader_epoch for share in offsets}  # before their ends are looked up
        found = {share: self._resolved(share, place) for share, place in offsets.items()}
        made = {share: self._committed(share, offset, "", epochs[share]) for share, offset in found.items()}
        with self.offsets.turn() as turn:
            if not turn.offsets(check_group_name(name)) and not self._live(name):
                raise self._not_found(name)
            self._refuse_members(name)
            turn.write(name, made)
        return found

    def delete(self, name: str) -> None:
        """Forget a group and all its offsets; `GroupActive` if it has live members."""
        with self.offsets.turn() as turn:
            offsets = turn.offsets(check_group_name(name))
            if not offsets and not self._live(name):
                raise self._not_found(name)
            self._refuse_members(name)
            turn.write(name, dict.fromkeys(offsets))
            forget_group(self._store.directory, name)

    def _refuse_members(self, name: str) -> None:
        members = self._live(name)
        if members:
            who = ", ".join(sorted(each.name or each.process for each in members.values()))
            raise GroupActive(f"the group {name!r} has live members ({who}): close them first, or seek in the consumer")

    @contextmanager
    def _turn_without_owners(self, name: str, shares: Iterable[Share]) -> Iterator[Turn]:
        """A turn in which nobody owns these partitions."""
        with self.offsets.turn() as turn, ExitStack() as undo:
            members = self._members_of(name)
            if members is not None:
                undo.callback(members.directory.close)
                for share in shares:
                    held = members.take(share, "")
                    if held is None:
                        raise GroupActive(
                            f"partition {share[1]} of {share[0]!r} is owned by a live member of the group {name!r}: "
                            "its offset is committed there"
                        )
                    undo.callback(give_up, held)
            yield turn

    def _partition(self, share: Share) -> tuple[Topic, Log]:
        topic = self._store.topic(share[0])
        return topic, topic.partition(share[1])

    def _committed(self, share: Share, offset: int, metadata: str, epoch: int | None = None) -> Committed:
        topic, log = self._partition(share)
        epoch = log.leader_epoch if epoch is None else whole_number(epoch, "a leader epoch")
        if not -1 <= epoch <= MAX_EPOCH:
            raise InvalidConfig(f"a leader epoch is a number from -1 (unknown) to {MAX_EPOCH}, not {epoch}")
        return Committed(checked_position(offset), topic.id, metadata, now_ms(), "", epoch)

    def _resolved(self, share: Share, place: Place) -> int:
        return resolve(self._partition(share)[1], place)


def _row(topic: Topic, number: int, offsets: Mapping[Share, Committed], owners: Mapping[Share, str]) -> GroupRow:
    log = topic.partition(number)
    end, lowest = log.visible_offset, log.lowest_offset
    found = offsets.get((topic.name, number))
    committed, reached = None, lowest
    if found is not None and found.topic_id == topic.id:
        committed, reached = found.offset, min(found.offset, log.epoch_end(found.leader_epoch))
    lag = end - max(lowest, reached)
    return GroupRow(topic.name, number, committed, lowest, end, max(lag, 0), owners.get((topic.name, number)))


def resolve(log: Log, place: Place) -> int:
    """A place as an offset of a log. A number is taken as it is, whether the log has it or not."""
    end = log.visible_offset  # looks for what other processes did
    if place == "earliest":
        return log.lowest_offset
    if place == "latest":
        return end
    if isinstance(place, datetime):
        return log.offset_at(place)
    if isinstance(place, bool) or not isinstance(place, int):
        raise InvalidConfig(f'a place is "earliest", "latest", an offset or a datetime, not {place!r}')
    return checked_position(place)


def checked_position(offset: object) -> int:
    """Return it if a log can have it; else `InvalidConfig`."""
    found = whole_number(offset)
    if not 0 <= found < 2**62:
        raise InvalidConfig(f"an offset is a number from 0 to 2**62 - 1, not {offset!r}")
    return found


def now_ms() -> int:
    """The time as it is written down."""
    return time.time_ns() // 1_000_000
