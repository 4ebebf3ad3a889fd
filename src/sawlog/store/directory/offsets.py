"""`OffsetStore`: the committed offsets of all groups, and the start positions of new groups.

They are in `groups/`, a compacted log that every process of the machine writes in turns (`SharedLog`). One record is
one offset of one group:

```
key     ["offset", "billing", "orders", 3]
value   {"offset": 1200, "topic_id": "5f0c…", "metadata": "", "time_ms": 1763251200000, "member": "9b1e…",
         "leader_epoch": 3}
```

The last record of a key is valid; one without a value deletes it. The offset is that of the next record to read. It is
valid only for the topic with that id: a topic that was deleted and recreated starts without offsets. The leader epoch
is the one in which the group read: an offset beyond the end of its epoch falls back to that end (`Log.epoch_end`).
A network client that commits without an epoch has read in the current one; the epoch
it sent is kept as `told_epoch`.

Offsets that a transaction commits over the network are written together with its mark, so that it is never applied
twice:

```
key     ["transaction", "payments-7", "", 0]
value   "the mark of the last one that was applied"
```

The delivery state of queues after the committed offset is here, too, in pages (`sawlog.store.queues.delivery_state`):

```
key     ["queue", "workers", "orders", "3/17"]        group, topic, partition / number of the page
```

Damage in this log does not stop the groups: it is logged in `sawlog.store.groups` and skipped. A group that had
committed there falls back to an earlier offset: records are read again, and none is lost. If no commit of the group is
left for a topic, it may have had one. A consumer that would then start anywhere but at the first record raises the
error instead of skipping unread records; so does `describe` of a group that is not found.

Reading takes no lock: each process keeps the offsets in memory and reads the records appended since.
`sawlog.store.directory.members` defines which member may commit.

Thread-safe.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from ...batch.text import parse_json
from ...clock import Stopwatch
from ...config import MIB, LogConfig, MaintenanceConfig
from ...errors import CorruptBatch, LogClosed, LogNotFound, ReadOnlyLog, StorageError
from ...log.log import Log
from ...log.shared import SharedLog
from ...storage import Directory
from ...storage.forking import forkable
from ..base import Topic, TopicPartition
from ..groups import Committed, DeliveryStates, Pages, QueueTurn, StartPosition, begin
from ..names import GROUPS

_messages = logging.getLogger("sawlog.store.groups")

_CONFIG = LogConfig(segment_bytes=MIB)
#: The log is compacted when it has more segments than this, and enough in them is new.
_SEGMENTS = 4
_MAINTENANCE = MaintenanceConfig(compact=True, delete=False, merge_bytes=0)
#: Reload interval: a deletion may have been compacted away since the last load.
_STALE_S = 3600.0


class OffsetStore(DeliveryStates):
    """Committed offsets of all groups of a store."""

    def __init__(self, root: Directory, *, writable: bool) -> None:
        self._root = root
        self._writable = writable
        self._mutex = forkable(threading.RLock())
        self._shared: SharedLog | None = None
        self._directory: Directory | None = None
        self._reader: Log | None = None
        self._groups: dict[str, dict[TopicPartition, Committed]] = {}
        #: Mark of the last applied transaction, by name.
        self._marks: dict[str, str] = {}
        #: State pages of queues: by group, partition and number.
        self._pages: dict[str, dict[TopicPartition, dict[int, bytes]]] = {}
        self._position = 0
        #: First damage found.
        self._damage: CorruptBatch | None = None
        self._read = Stopwatch()
        self._closed = False

    @property
    def path(self) -> str:
        """The store's directory, for messages."""
        return self._root.path

    # --- reading

    def of(self, group: str) -> dict[TopicPartition, Committed]:
        with self._mutex:
            self._catch_up()
            return dict(self._groups.get(group, {}))

    def mark(self, transaction: str) -> str | None:
        """Return the mark of the last transaction of that name whose offsets were committed; None if there is none."""
        with self._mutex:
            self._catch_up()
            return self._marks.get(transaction)

    def pages(self, group: str) -> dict[TopicPartition, dict[int, bytes]]:
        with self._mutex:
            self._catch_up()
            return {partition: dict(pages) for partition, pages in self._pages.get(group, {}).items() if pages}

    def groups(self) -> list[str]:
        """Return the groups that have any offset."""
        with self._mutex:
            self._catch_up()
            return sorted(name for name, offsets in self._groups.items() if offsets)

    def lost_commits(self) -> CorruptBatch | None:
        """Return an error that says where commits are lost; None if all of them could be read."""
        with self._mutex:
            self._catch_up()
            found = self._damage
        if found is None:
            return None
        reason = (
            f"{found.reason}, so commits may be lost; `sawlog groups seek GROUP --topic TOPIC --to 500` commits "
            'where a group continues, and a consumer with start="earliest" reads everything again'
        )
        return CorruptBatch(reason, path=found.path, position=found.position)

    def _catch_up(self) -> None:
        if self._closed:
            raise LogClosed(f"the groups of {self._root.path} are closed")
        if self._reader is None:
            if GROUPS not in self._root.children():
                return
            directory = self._root.child(GROUPS)
            try:
                self._reader = Log.open(directory, _CONFIG, mode="r")
            except LogNotFound:  # no commit yet
                directory.close()
                return
        end = self._reader.visible_offset
        if end < self._position or self._read.restart() > _STALE_S:
            self._groups, self._marks, self._pages, self._position = {}, {}, {}, 0
            self._damage = None
        self._position = max(self._position, self._reader.lowest_offset)
        while self._position < end:
            self._read_on(self._reader, end)

    def _read_on(self, log: Log, end: int) -> None:
        try:
            for record in log.scan(self._position, end):
                self._apply(record.key, record.value)
            self._position = end
        except CorruptBatch as error:
            self._damage = self._damage or error
            next_offset = end if error.next_offset is None else max(error.next_offset, self._position + 1)
            _messages.error("%s; groups that committed there fall back to an earlier offset", error)
            self._position = min(next_offset, end)

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        try:
            kind, group, topic, partition = parse_json(key or b"")
            if kind == "transaction":
                self._apply_mark(str(group), value)
            if kind == "queue":
                self._apply_page(group, topic, partition, value)
            if kind != "offset":
                return  # written by a later version of sawlog
            if not isinstance(group, str) or not isinstance(topic, str) or type(partition) is not int:
                raise ValueError("expected the name of a group, the name of a topic and a number")
            offsets = self._groups.setdefault(group, {})
            if value is None:
                offsets.pop((topic, partition), None)
                return
            offsets[topic, partition] = Committed.decode(value)
        except (ValueError, KeyError, TypeError):
            _messages.error("a record of %s/%s is not a committed offset: %r", self._root.path, GROUPS, key)

    def _apply_mark(self, transaction: str, value: bytes | None) -> None:
        if value is None:
            self._marks.pop(transaction, None)
        else:
            self._marks[transaction] = str(parse_json(value))

    def _apply_page(self, group: str, topic: str, place: str, value: bytes | None) -> None:
        partition, number = map(int, place.split("/"))
        pages = self._pages.setdefault(group, {}).setdefault((topic, partition), {})
        if value is None:
            pages.pop(number, None)
        else:
            pages[number] = value

    # --- writing

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """Begin an exclusive turn: reads and writes in it are atomic among all processes."""
        if not self._writable:
            raise ReadOnlyLog(f'the store {self._root.path} was opened with mode="r": its groups cannot be changed')
        with self._mutex:
            if self._closed:
                raise LogClosed(f"the groups of {self._root.path} are closed")
            if self._shared is None:
                self._directory = self._root.child(GROUPS, create=True)
                self._shared = SharedLog(self._directory, _CONFIG)
            shared = self._shared
        with shared.turn() as log:
            yield Turn(self, log)

    def close(self) -> None:
        """Close the files."""
        with self._mutex:
            self._closed = True
            mine = (self._directory, self._shared, self._reader)
            self._directory = self._shared = self._reader = None
        with ExitStack() as last:  # not under the mutex: a thread in a turn needs it to end the turn
            for each in mine:
                if each is not None:
                    last.callback(each.close)


class Turn(QueueTurn):
    """Operations within a turn. No other process changes the offsets meanwhile."""

    def __init__(self, offsets: OffsetStore, log: Log) -> None:
        self._offsets = offsets
        self._log = log

    def offsets(self, group: str) -> dict[TopicPartition, Committed]:
        return self._offsets.of(group)

    def places(
        self, group: str, topics: Iterable[Topic], start: StartPosition, member: str
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return where a group continues in topics: committed offset and leader epoch. Partitions that are missing in
        the result start at their first record.

        The first access of a group to a topic commits the start position, so that all later members continue from there
        and not from another "latest". If commits are lost, this may not be the first access: `CorruptBatch`.
        """
        found, places = self.offsets(group), dict[TopicPartition, tuple[int, int]]()
        known = {name for name, _ in found}
        for topic in topics:
            if topic.name not in known and start != "earliest":
                lost = self._offsets.lost_commits()
                if lost is not None:
                    raise lost
                begun = begin(topic, start)
                made = {partition: Committed.by_member(member, topic.id, *place) for partition, place in begun.items()}
                self.write(group, made)
                places.update(begun)
            else:
                places.update(
                    (partition, (each.offset, each.leader_epoch))
                    for partition, each in found.items()
                    if partition[0] == topic.name and each.topic_id == topic.id
                )
        return places

    def write(self, group: str, offsets: Mapping[TopicPartition, Committed | None]) -> None:
        """Commit offsets, all or none; None deletes one. Durable on return."""
        self.write_all([(group, offsets)])

    def mark(self, transaction: str) -> str | None:
        """Return the mark of the last transaction of that name."""
        return self._offsets.mark(transaction)

    def pages(self, group: str) -> dict[TopicPartition, dict[int, bytes]]:
        return self._offsets.pages(group)

    def without_pages(self, group: str, partitions: Iterable[TopicPartition]) -> Pages:
        """Return the page removals for a group that moves in these partitions, where its delivery state becomes
        invalid."""
        known = self.pages(group)
        return {partition: dict.fromkeys(known[partition]) for partition in partitions if partition in known}

    def write_all(
        self,
        changes: Iterable[tuple[str, Mapping[TopicPartition, Committed | None]]],
        marks: Mapping[str, str] | None = None,
        pages: Mapping[str, Pages] | None = None,
    ) -> None:
        """Commit offsets of several groups with one append, all or none, together with the marks of their transactions
        and the state pages of queues by group."""
        records = [
            (None if each is None else each.encode(), json.dumps(["offset", group, topic, partition]).encode())
            for group, offsets in changes
            for (topic, partition), each in sorted(offsets.items())
        ]
        records += [
            (json.dumps(mark).encode(), json.dumps(["transaction", name, "", 0]).encode())
            for name, mark in (marks or {}).items()
        ]
        records += [
            (value, json.dumps(["queue", group, topic, f"{partition}/{number}"]).encode())
            for group, of_group in (pages or {}).items()
            for (topic, partition), of_one in of_group.items()
            for number, value in of_one.items()
        ]
        if not records:
            return
        self._log.append_many(records)
        if len(self._log.segments) > _SEGMENTS and self._log._maintenance_due(_MAINTENANCE):
            try:
                self._log.maintain(_MAINTENANCE)
            except StorageError as error:  # the commit itself is done, and durable
                _messages.warning("the offsets in %s could not be compacted: %s", self._log.path, error)
