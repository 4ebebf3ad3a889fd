"""`Catalog`: topics are created, altered and deleted so that a crash leaves either the old state or the new one.

The catalog is the directory itself. A topic exists if `topics/<name>/topic.json` exists. Everything it needs is created
first, under a name that no topic can have, and then renamed:

```
create   topics/<id>.tmp/ with all partitions and topic.json  ->  rename to topics/<name>
alter    partition-<n>.tmp/ -> rename to partition-<n>, each; then replace topic.json, which puts them into effect
delete   take the lock of every partition; record the leader epoch in deleted.json; rename to topics/<id>.deleted;
         then remove the files
replace  a topic replaces another: rename to topics/<id>.swap; write the other's name to its topic.json, which is the
         commit point; rename the other to topics/<other id>.deleted and the new one to topics/<name>
```

The next process that opens the store for writing removes the remains of an unfinished change (`*.tmp`, `*.deleted`,
partitions above the number in topic.json). An unfinished replacement (`*.swap`) is finished by the next process that
changes the catalog or wants to write to the topic being replaced. All changes happen under the store's LOCK, which is
held briefly; a process that finds it locked retries for a few seconds. Reading takes no lock. A reader that looks for a
topic between the last two renames finds it under `<id>.swap`.

A visible name need not be durable: its creator may be about to sync the directory, or may have died before that. So a
process that changes the catalog writes a note into the LOCK when everything is synced (`_IN_ORDER`), and removes it
when it begins. A process that opens the store for writing, or takes the lock of a partition, checks for the note and
syncs the directories itself if it is missing (`settle`): an acknowledgement must not depend on a name that is not
durable. A power cut may or may not remove the note; all names found afterwards are durable.

Deleting needs the partitions' locks, so a topic is not deleted while a process writes to it. A process that takes a
partition's lock afterwards has to check whether the topic is still the same one (`Catalog.check`): its open log may
belong to the deleted topic.
"""

from __future__ import annotations

import errno
import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

from ...errors import CorruptFile, InvalidConfig, ReadOnlyLog, StorageError, StoreNotFound, TopicExists, TopicNotFound
from ...log.checkpoint import last_epoch
from ...log.log import Log
from ...log.turns import take_turn, words_of
from ...storage import Directory, checksummed
from ...storage.checksummed import MISSING
from ...storage.locks import lock_within
from .. import settings
from ..names import (
    DELETED,
    LOCK,
    STAGING,
    STORE,
    SWAP,
    TMP,
    TOPICS,
    is_topic_name,
    no_topic,
    partition_name,
    topic_exists,
)
from ..table_info import TABLE, TableInfo
from . import topic_entry
from .founding import is_log, refuse_objects, refuse_strangers
from .topic_entry import TopicEntry, check_partitions, finish_replacing, replacing

#: Version of the on-disk layout, recorded in `sawlog.json`.
FORMAT = 2
#: Maximum wait for the catalog's lock.
_PATIENCE_S = 5.0
#: The note in the LOCK after a change, when all of it is durable.
_IN_ORDER = b"in order"

_logger = logging.getLogger("sawlog")


class Catalog:
    """Topics of one store. Safe for threads and processes."""

    def __init__(self, root: Directory, mode: str, *, create: bool = True) -> None:
        self.root = root
        self.mode = mode
        self._topics: Directory | None = None
        if mode == "w" and create:
            self._make()
        self.id = self._load_id()
        self._topics = self._open_topics()
        if mode == "w":
            try:
                self.settle()
                self.sweep()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the handle of `topics/`. The caller closes the root."""
        if self._topics is not None:
            self._topics.close()

    # --- the store itself

    def _make(self) -> None:
        """Create a store if there is none. Touches nothing else in the directory."""
        if self.root.exists(STORE):
            return
        refuse_strangers(self.root)  # before leaving a LOCK in a foreign directory
        with self.changing():
            if not self.root.exists(STORE):
                refuse_strangers(self.root)
                for name in (TOPICS, STAGING):  # before sawlog.json, so that they are durable once it exists
                    self.root.child(name, create=True).close()
                checksummed.store(self.root, STORE, {"format": FORMAT, "id": str(uuid.uuid4())})

    def _load_id(self) -> str:
        path = f"{self.root.path}/{STORE}"
        if not self.root.exists(STORE):
            hint = ": it holds one log, use Log.open" if is_log(self.root.names()) else ""
            raise StoreNotFound(errno.ENOENT, f"no store in {self.root.path}{hint}")
        refuse_objects(self.root)
        fields = checksummed.load(self.root, STORE)
        found = checksummed.field(fields, "format", int, path)
        if found != FORMAT:
            raise InvalidConfig(f"{path} has format {found}; this version of sawlog supports format {FORMAT}")
        return checksummed.field(fields, "id", str, path)

    def _open_topics(self) -> Directory:
        if TOPICS in self.root.children():
            return self.root.child(TOPICS)
        raise CorruptFile(  # it is created before sawlog.json
            f"the store {self.root.path} has lost its directory {TOPICS!r}, and all topics with it: restore it, or "
            "create an empty one to continue without them"
        )

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the catalog's lock. Blocks while another process changes the catalog, which takes milliseconds."""
        if self.mode != "w":
            raise ReadOnlyLog(f'the store {self.root.path} was opened with mode="r"')
        held = lock_within(self.root, LOCK, _PATIENCE_S)
        try:
            if held.found != _IN_ORDER:
                self._sync_names()
            if self._topics is not None:
                finish_replacing(self.topics)
            yield
            held.leave(_IN_ORDER)
        finally:
            held.release()

    def settle(self) -> None:
        """Make every visible name durable; see the module docstring. Takes no lock."""
        if not self.root.exists(LOCK) or self.root.read(LOCK).partition(b"\n")[2] != _IN_ORDER:
            self._sync_names()

    def _sync_names(self) -> None:
        """Sync the names of sawlog.json, the topics, their topic.json and their partitions."""
        self.root.sync()
        if TOPICS not in self.root.children():
            return
        self.topics.sync()
        for name in self.topics.children():
            try:
                directory = self.topics.child(name)
            except StorageError as error:
                if error.errno not in MISSING:
                    raise
                continue  # just deleted
            try:
                directory.sync()
            finally:
                directory.close()

    # --- reading

    @property
    def topics(self) -> Directory:
        """Directory of all topics."""
        if self._topics is None:
            self._topics = self.root.child(TOPICS)
        return self._topics

    def names(self) -> list[str]:
        """Return the names of all topics, sorted."""
        if self._topics is None and TOPICS not in self.root.children():
            return []
        found = self.topics.children()
        names = {name for name in found if is_topic_name(name)}
        if any(name.endswith(SWAP) for name in found):
            try:
                names.update(entry.name for _, entry in replacing(self.topics))
            except CorruptFile as error:  # reported to callers that change something; the others can be read
                _logger.error("a topic that was replacing another one: %s", error)
        return sorted(names)

    def load(self, name: str) -> TopicEntry:
        """Return the entry of a topic; `TopicNotFound` if it does not exist."""
        missing = TopicNotFound(f"no topic {name!r} in {self.root.path}")
        if not isinstance(name, str) or not is_topic_name(name):
            raise missing
        found = self._find(name)
        if found is None:
            raise TopicNotFound(no_topic(name, self.root.path, self.names()))
        with closing(found) as directory:
            entry = TopicEntry.load(directory, name)
        if entry.name != name:
            if entry.name.lower() == name.lower():  # a file system that ignores case
                raise missing
            raise CorruptFile(f"{directory.path} holds the topic {entry.name!r}; rename the directory to that name")
        return entry

    def _find(self, name: str) -> Directory | None:
        """Return the directory of a topic, or None. Looks twice, because the topic may be renamed meanwhile."""
        for _ in range(2):
            try:
                return self.topics.child(name)
            except StorageError as error:
                if error.errno not in MISSING:
                    raise
            for state, entry in replacing(self.topics):
                if entry.name == name:
                    try:
                        return self.topics.child(state)
                    except StorageError as error:
                        if error.errno not in MISSING:
                            raise
                        break  # already renamed
        return None

    def check(self, entry: TopicEntry) -> TopicEntry:
        """Return the current topic.json; `TopicNotFound` if the topic was deleted or recreated since `entry` was read.

        Called after a partition's lock is taken. Finishes an interrupted replacement first: records written to the old
        topic now would be lost with it.
        """
        if self.mode == "w" and any(other.name == entry.name for _, other in replacing(self.topics)):
            with self.changing():
                pass
        now = self.load(entry.name)
        if now.id != entry.id:
            raise TopicNotFound(f"the topic {entry.name!r} was deleted and recreated; ask the store for it again")
        return now

    def partition(self, entry: TopicEntry, number: int) -> Directory:
        """Return the directory of one partition; `TopicNotFound` if the topic was deleted or recreated."""
        with self._directory(entry) as topic:
            return topic.child(partition_name(number))

    def table(self, entry: TopicEntry) -> TableInfo | None:
        """Return the location of the topic's table; None if it has none."""
        with self._directory(entry) as directory:
            return TableInfo.load(directory)

    @contextmanager
    def _directory(self, entry: TopicEntry) -> Iterator[Directory]:
        """Open the directory of a topic; `TopicNotFound` if it was deleted or recreated."""
        topic = self._find(entry.name)
        if topic is None:
            raise TopicNotFound(f"the topic {entry.name!r} no longer exists in {self.root.path}")
        try:
            if TopicEntry.load(topic, entry.name).id != entry.id:
                raise TopicNotFound(f"the topic {entry.name!r} was deleted and recreated; ask the store for it again")
            yield topic
        finally:
            topic.close()

    # --- changing

    def set_table(self, entry: TopicEntry, info: TableInfo | None) -> None:
        """Note where the topic's table is, or that it has none."""
        with self.changing(), self._directory(entry) as directory:
            if info is not None:
                info.store(directory)
            elif directory.exists(TABLE):
                directory.remove(TABLE)
                directory.sync()

    def create(
        self, name: str, partitions: int, given: Mapping[str, object], *, topic_id: str | None = None
    ) -> TopicEntry:
        """Create a topic; `TopicExists` if there is one of that name, ignoring case. A copy has the id of its
        original."""
        entry = TopicEntry.new(name, partitions, given)
        if topic_id is not None:
            entry = replace(entry, id=topic_id)
        with self.changing():
            self._check_free(name)
            temporary = f"{entry.id}{TMP}"
            try:
                self._build(temporary, entry, topic_entry.first_epoch(self.root, name))
                self.topics.rename(temporary, name)
            except BaseException:
                self.discard(temporary)
                raise
            self.topics.sync()
        return entry

    def _check_free(self, name: str) -> None:
        for other in self.names():
            if other == name:
                raise topic_exists(name, self.root.path)
            if other.lower() == name.lower():
                raise TopicExists(
                    errno.EEXIST,
                    f"the topic {other!r} already exists: {name!r} differs from it only in case, "
                    "which not every file system distinguishes",
                )

    def _build(self, temporary: str, entry: TopicEntry, epoch: int) -> None:
        """Create a complete topic under a temporary name. Its partitions start in this leader epoch."""
        with closing(self.topics.child(temporary, create=True)) as directory:
            for number in range(entry.partitions):
                self._build_partition(directory, partition_name(number), entry, epoch)
            entry.store(directory)

    @staticmethod
    def _build_partition(topic: Directory, name: str, entry: TopicEntry, epoch: int) -> None:
        with closing(topic.child(name, create=True)) as made:
            Log._create(made, settings.log_config(entry.settings), leader_epoch=epoch)

    def discard(self, temporary: str) -> None:
        """Remove a directory that is not a topic. What cannot be removed now is removed when the store is next
        opened."""
        try:
            self.topics.remove_child(temporary)
        except StorageError as error:
            _logger.warning("will be removed when the store is next opened: %s", error)

    def alter(self, name: str, partitions: int | None, changes: Mapping[str, object]) -> TopicEntry:
        """Add partitions or change settings; all of it or nothing."""
        if partitions is not None:
            check_partitions(partitions)
        with self.changing():
            entry = self.load(name)
            wanted = entry.partitions if partitions is None else partitions
            if wanted < entry.partitions:
                raise InvalidConfig(
                    f"the topic {name!r} has {entry.partitions} partitions; their number can only increase, "
                    "because records would be lost and keys would move: create a new topic and copy"
                )
            changed = replace(entry, partitions=wanted, settings=settings.changed(entry.settings, changes))
            if changed != entry:
                self._change(entry, changed)
        return changed

    def _change(self, entry: TopicEntry, changed: TopicEntry) -> None:
        directory, epoch = self.topics.child(entry.name), topic_entry.first_epoch(self.root, entry.name)
        try:
            self._sweep_topic(directory, entry)
            for number in range(entry.partitions, changed.partitions):
                temporary = f"{partition_name(number)}{TMP}"
                self._build_partition(directory, temporary, changed, epoch)
                directory.rename(temporary, partition_name(number))
            directory.sync()
            changed.store(directory)
        finally:
            directory.close()

    def delete(self, name: str) -> TopicEntry:
        """Delete a topic with all its records; `DirectoryLocked` if another process is writing to it."""
        with self.changing(), ExitStack() as held:
            entry, epoch = self.load(name), 0
            for number in range(entry.partitions):
                directory = self.partition(entry, number)
                held.callback(directory.close)
                held.callback(take_turn(directory, b"", _PATIENCE_S).release)
                if (words := words_of(directory)) is not None:
                    words.begin()  # and never finish: other processes that know the log look whether it is still there
                epoch = max(epoch, last_epoch(directory))
            topic_entry.remember(self.root, name, epoch)
            gone = f"{entry.id}{DELETED}"
            self.topics.rename(name, gone)
            self.topics.sync()
        self.discard(gone)  # takes some time, so outside the lock
        return entry

    def replace(self, entry: TopicEntry, by: TopicEntry) -> str:
        """Replace a topic by the topic `by`, which takes its name; return the directory to `discard` afterwards.

        The caller holds the locks of all partitions of both. If this raises, the replacement either happened or did
        not.
        """
        state, renamed = f"{by.id}{SWAP}", replace(by, name=entry.name)
        with self.changing():
            self.check(entry)
            self.check(by)
            try:
                self.topics.rename(by.name, state)
                self.topics.sync()
                with closing(self.topics.child(state)) as directory:
                    renamed.store(directory)
            finally:  # even after an error: roll forward or back, as topic.json says
                try:
                    finish_replacing(self.topics)
                except StorageError:
                    finish_replacing(self.topics)  # most errors are temporary; else the next process finishes it
        return f"{entry.id}{DELETED}"

    # --- after a crash

    def sweep(self) -> None:
        """Remove what unfinished changes left behind."""
        if not self._leftovers():
            return
        with self.changing():
            for name in self._leftovers():
                if name.endswith((TMP, DELETED)):
                    self.topics.remove_child(name)
                    continue
                with closing(self.topics.child(name)) as directory:
                    self._sweep_topic(directory, TopicEntry.load(directory, name))
            self.topics.sync()

    def _leftovers(self) -> list[str]:
        """Return the directories that are not topics, and topics with extra directories."""
        return [
            name
            for name in self.topics.children()
            if name.endswith((TMP, DELETED, SWAP)) or (is_topic_name(name) and self._has_extra(name))
        ]

    def _has_extra(self, name: str) -> bool:
        try:
            directory = self.topics.child(name)
        except StorageError:
            return False  # just deleted
        try:
            return bool(TopicEntry.load(directory, name).extra_in(directory))
        except (CorruptFile, TopicNotFound):
            return False  # the error is raised when the topic is opened
        finally:
            directory.close()

    @staticmethod
    def _sweep_topic(directory: Directory, entry: TopicEntry) -> None:
        for name in entry.extra_in(directory):
            directory.remove_child(name)
