"""`ObjectStore`: a store of topics on object storage. `sawlog.open("s3://bucket/store")` returns one.

```
<prefix>/sawlog.json      format, id and terms; created once
<prefix>/sawlog.copy.json a copy of it, for `sawlog repair`
<prefix>/commits/...      see journal.py
<prefix>/checkpoints/...  see checkpoints.py
<prefix>/staged/...       batches that were uploaded before their commit
<prefix>/segments/...     see consolidate.py
<prefix>/notes/...        see collect.py; also garbage/, clock
```
"""

from __future__ import annotations

import errno
import json
import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Unpack

from ...clock import now_ms
from ...display import counted
from ...errors import CorruptData, InvalidConfig, StoreNotFound, TopicExists, TopicNotFound, UnsafeStorage
from ...log.maintenance import UpkeepReport
from ...log.retention import RetentionReport
from .. import base
from .. import settings as topic_settings
from ..consumer import Consumer
from ..directory.maintenance import Upkeep
from ..directory.topic_entry import check_partitions
from ..names import check_topic_name
from ..queues.options import Terms as QueueTerms
from ..queues.queue import Queue
from ..settings import TopicChanges, TopicSettings
from .bucket import selftest
from .bucket.bucket import Bucket
from .bucket.cache import CACHE_BYTES, BlockCache, default_path
from .bucket.connecting import is_missing
from .bucket.selftest import FOLDER
from .documents import ObjectRegistry
from .groups import ObjectGroups
from .journal.checkpoints import CHECKPOINTS, COMMITS
from .journal.clocks import Clocks
from .journal.parameters import STORE, STORE_COPY, Terms
from .maintenance.consolidate import Place
from .maintenance.maintainer import Maintainer
from .partition.slices import ObjectSliceReader
from .queues import ObjectBooks, ObjectCrew
from .serving.service import ObjectService
from .session import Core
from .snapshots import SnapshotInfo, Snapshots
from .staging import ObjectStaging
from .state.commit import canonical
from .topic import ObjectTopic
from .transaction import ObjectTransaction

#: A store on object storage, as its file says it: a directory's has another name for its format.
_KIND, _FORMAT = "objects", 2


class ObjectStore(base.Store):
    """Topics on object storage. Thread-safe; any number of processes may write at the same time."""

    supports_snapshots = True

    def __init__(self, core: Core, store_id: str) -> None:
        self._core = core
        self._id = store_id
        self._maintainer = Maintainer(core)
        self._upkeep: Upkeep | None = None

    @classmethod
    def open(
        cls,
        url: str | Bucket,
        mode: Literal["w", "r"] = "w",
        *,
        options: Mapping[str, str] | None = None,
        terms: Terms | None = None,
        upkeep_interval_s: float | None = 60.0,
        clocks: Clocks | None = None,
        cache_bytes: int | None = None,
        cache_path: str | PathLike[str] | None = None,
        lazily: bool = False,
        linger_ms: float | None = None,
    ) -> ObjectStore:
        """Open the store at an address; with mode "w" (the default) create it if there is none, with these terms. A
        store that exists keeps its own.

        What is read is kept on the local disk, up to `cache_bytes` (1 GiB; 0 turns it off) in `cache_path` (in the
        user's folder for caches). With `lazily` the state is not read before it is needed.

        While a commit is on its way, all who write share the next one. With `linger_ms` that one waits for so long
        before it is made, too: fewer requests, later acknowledgements. These three may also be options."""
        if mode not in ("w", "r"):
            raise InvalidConfig(f'mode must be "w" or "r", not {mode!r}')
        given = _options(options)
        linger_s = _linger_s(linger_ms, given.pop("linger_ms", None))
        room = _cache_bytes(cache_bytes, given.pop("cache_bytes", None))
        place = cache_path or given.pop("cache_path", None) or default_path()
        if terms is not None and not isinstance(terms, Terms):
            raise InvalidConfig(f"terms must be a sawlog.store.objects.journal.parameters.Terms, not {terms!r}")
        if mode == "r" and isinstance(url, str) and is_missing(url):
            raise StoreNotFound(errno.ENOENT, f"no store in {url}")
        bucket = url if isinstance(url, Bucket) else Bucket(url, given)
        founded = _founded(bucket, mode, Terms() if terms is None else terms)
        store_id, agreed = described(bucket, founded)
        if mode == "w":
            _check_conditional(bucket, founded)  # not before it is known that this is a store of ours
        is_remote = not bucket.url.startswith(("memory://", "file://"))
        cache = BlockCache(place, store_id, room) if room and is_remote and place is not None else None
        core = Core(bucket, mode, agreed, clocks=clocks, cache=cache, linger_s=linger_s, founded=founded)
        made = cls(core, store_id)
        if not lazily:
            core.check_end()
        if mode == "w":
            made._tend(upkeep_interval_s)
        return made

    def _tend(self, interval_s: float | None) -> None:
        if interval_s is None:
            return
        if isinstance(interval_s, bool) or not isinstance(interval_s, (int, float)) or not interval_s > 0:
            raise InvalidConfig(f"upkeep_interval_s must be a number of seconds above 0 or None, not {interval_s!r}")
        reference = weakref.ref(self)  # the store must not be kept alive by its own maintenance
        self._upkeep = Upkeep(lambda: [] if (store := reference()) is None else store.upkeep(), interval_s)

    def close(self) -> None:
        """Commit what waits, and end. Safe to call twice."""
        if self._upkeep is not None:
            self._upkeep.stop()
            self._maintainer.stop()
            self._upkeep.wait()
        self._core.close()

    # --- upkeep

    def upkeep(self) -> list[UpkeepReport]:
        """Do now what is due: consolidate, expire, compact, collect. Any number of processes may do so at once."""
        self._core.check_writable()
        return self._maintainer.run()

    def expire(self, topic: str, partition: int) -> RetentionReport | None:
        """Drop now what exceeds the age or size limit of one partition; None if that is nothing."""
        self._core.check_writable()
        return self._maintainer.expire(Place(topic, self.topic(topic).id, partition))

    @property
    def upkeep_reports(self) -> list[UpkeepReport]:
        """What upkeep in the background has done so far; the last hundred reports."""
        return [] if self._upkeep is None else list(self._upkeep.reports)

    def _tend_topic(self, name: str) -> list[UpkeepReport]:
        return self._maintainer.run(name)

    def __repr__(self) -> str:
        """What is known; nothing is requested."""
        if self._core.is_closed:
            return f"<ObjectStore {self.path} closed>"
        known = self._core.glance(lambda state: len(state.topics()))
        return (
            f"<ObjectStore {self.path}>" if known is None else f"<ObjectStore {self.path}: {counted(known, 'topic')}>"
        )

    def _check_open(self) -> None:
        self._core.check_open()

    def _close_later(self, made: Consumer | Queue) -> None:
        self._core.keep(made)

    #: A heartbeat is a commit: Kafka's default, so that an idle consumer makes one every fifteen seconds.
    _session_timeout_ms = 45_000

    def _patient(self) -> ObjectStore:
        return _PatientStore(self._core, self._id)

    @property
    def core(self) -> Core:
        """Its commits and its state, for code of this package that copies stores."""
        return self._core

    @property
    def path(self) -> str:
        """Its address."""
        return self._core.bucket.url

    @property
    def id(self) -> str:
        """The unique id of this store."""
        return self._id

    @property
    def mode(self) -> str:
        """ "w", or "r" if it only reads."""
        return self._core.mode

    # --- topics

    def topics(self, *, at: str | SnapshotInfo | None = None) -> list[str]:
        """The names of all topics, sorted; or of those in a snapshot."""
        if at is not None:
            return list(Snapshots(self._core).get(str(at)).topics)
        return self._core.look(lambda state: state.topics(), fresh=True)

    def topic(self, name: str, *, at: str | SnapshotInfo | None = None) -> ObjectTopic:
        """The current topic of that name, or as it is in a snapshot, which can only be read; `TopicNotFound` if it does
        not exist."""
        if at is not None:
            return ObjectTopic(self._core, name, Snapshots(self._core).topic(name, str(at)), at=str(at))
        found = self._core.look(lambda state: state.topic(name)) or self._core.look(
            lambda state: state.topic(name), fresh=True
        )
        if found is None:
            raise TopicNotFound(f"no topic {name!r} in {self.path}")
        return ObjectTopic(self._core, name, found["id"], self, tend=self._tend_topic)

    def patient_topic(self, name: str) -> ObjectTopic:
        """The same topic for somebody who looks for new records again and again: an idle store is asked about once a
        second."""
        found = self._core.look(lambda state: state.topic(name), calm=True) or self._core.look(
            lambda state: state.topic(name), fresh=True
        )
        if found is None:
            raise TopicNotFound(f"no topic {name!r} in {self.path}")
        return ObjectTopic(self._core, name, found["id"], self, calm=True)

    def slice_reader(self, topic: str, topic_id: str, partition: int) -> ObjectSliceReader:
        """For slices of a partition that `ObjectTopic.plan` has returned, perhaps in another process. Nothing is looked
        up before it is needed."""
        return ObjectSliceReader(self._core, topic, topic_id, partition)

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[ObjectTopic]: ...
        def __getitem__(self, name: str) -> ObjectTopic: ...

    def create_topic(
        self, name: str, partitions: int = 1, *, exist_ok: bool = False, **settings: Unpack[TopicSettings]
    ) -> ObjectTopic:
        """Create a topic. With `exist_ok` an existing one is returned, whatever its partitions and settings."""
        check_topic_name(name)
        check_partitions(partitions)
        action: dict[str, Any] = {
            "do": "create topic",
            "name": name,
            "id": str(uuid.uuid4()),
            "partitions": partitions,
            "settings": topic_settings.check(settings),
            "created_ms": now_ms(),
        }
        try:
            self._core.commit([action])
        except TopicExists:
            if not exist_ok:
                raise
        return self.topic(name)

    def alter_topic(self, name: str, partitions: int | None = None, **settings: Unpack[TopicChanges]) -> ObjectTopic:
        """Add partitions or change settings; None resets a setting to its default."""
        topic = self.topic(name)
        if partitions is not None:
            check_partitions(partitions)
        now = topic_settings.changed(topic.settings, settings)
        gone = dict.fromkeys(set(topic.settings) - set(now))
        action = {"do": "alter topic", "name": name, "id": topic.id, "partitions": partitions, "settings": now | gone}
        self._core.commit([action])
        return self.topic(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records."""
        self._core.commit([{"do": "delete topic", "name": name, "id": self.topic(name).id}])

    # --- snapshots

    def snapshot(self, name: str, topics: Sequence[str] | None = None) -> SnapshotInfo:
        """Keep all topics, or some, as they are now, under a name: nothing is copied. `SnapshotExists`."""
        return Snapshots(self._core).take(name, topics)

    def snapshots(self) -> list[SnapshotInfo]:
        """All snapshots."""
        return Snapshots(self._core).list()

    def delete_snapshot(self, name: str | SnapshotInfo) -> None:
        """Forget a snapshot. What only it refers to is removed later; `SnapshotNotFound`."""
        Snapshots(self._core).drop(str(name))

    # --- groups, transactions, jobs

    @property
    def groups(self) -> ObjectGroups:
        """Consumer groups: their progress."""
        return ObjectGroups(self._core)

    def transaction(self, name: str | None = None, sequence: int | None = None) -> ObjectTransaction:
        """Records for several topics and partitions, stored all or not at all."""
        return ObjectTransaction(self._core, self._written_topic, name, sequence)

    def _written_topic(self, name: str) -> ObjectTopic:
        """A topic for appends, as it was when this process last saw a commit: nothing is requested if it is known."""
        found = self._core.last_known(lambda state: state.topic(name))
        return self.topic(name).written if found is None else ObjectTopic(self._core, name, found["id"]).written

    @property
    def registry(self) -> ObjectRegistry:
        """Small documents beside the topics: the users of a broker, and what they may do."""
        self._core.check_open()
        return ObjectRegistry(self._core)

    def _queueing(self, terms: QueueTerms) -> tuple[ObjectBooks, ObjectCrew]:
        crew = ObjectCrew(self._core, terms)
        return ObjectBooks(self._core, crew), crew

    def serve(self) -> ObjectService:
        """What a broker needs besides, for as long as the store is open; see `sawlog.store.served`."""
        self._core.check_writable()
        return ObjectService(self, self._core)

    def replace_topic(self, name: str, by: str, *, ends: Mapping[int, int] | None = None) -> ObjectTopic:
        """Let the topic `by` take the name of another, which is deleted, in one commit.

        Nobody is kept from writing to either meanwhile: with `ends` (partition to next offset), nothing may have been
        written to the old one beyond these: `OffsetMismatch`. The topic keeps the id of `by`, so that committed offsets
        of the old one do not apply to it.
        """
        if name == by:
            raise InvalidConfig(f"the topic {name!r} cannot replace itself")
        old, new = self.topic(name), self.topic(by)
        action: dict[str, Any] = {"do": "replace topic", "name": name, "id": old.id, "by": by, "by_id": new.id}
        if ends is not None:
            action["ends"] = [[number, ends.get(number, 0)] for number in range(old.partitions)]
        self._core.commit([action])
        return self.topic(name)

    @property
    def staging(self) -> ObjectStaging:
        """For jobs of many processes."""
        return ObjectStaging(self._core)


class _PatientStore(ObjectStore):
    """Store for consumers and queues, which look at it again and again: an idle store is polled once a second."""

    def topic(self, name: str, *, at: str | SnapshotInfo | None = None) -> ObjectTopic:
        return self.patient_topic(name) if at is None else super().topic(name, at=at)


def _options(given: object) -> dict[str, Any]:
    """Options by name; all but the room of the cache are texts."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidConfig(f"options must be a dictionary, not {given!r}")
    for name, value in given.items():
        if not isinstance(name, str) or not (isinstance(value, str) or name in ("cache_bytes", "cache_path")):
            raise InvalidConfig(f"options are texts by name: {name!r} is {value!r}")
    return dict(given)


def _number(given: object, option: str | None) -> object:
    """What was given, or what an option says, as a number if it is one."""
    wanted: object = option if given is None else given
    return int(wanted) if isinstance(wanted, str) and wanted.isdecimal() else wanted


def _cache_bytes(given: object, option: str | None) -> int:
    """The room of the cache: as it was given, or as an option says."""
    wanted = _number(given, option)
    if wanted is None:
        return CACHE_BYTES
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0:
        raise InvalidConfig(f"cache_bytes must be a number of bytes, or 0 for no cache, not {wanted!r}")
    return wanted


def _linger_s(given: object, option: str | None) -> float:
    """How long a commit waits for others: as it was given, or as an option says."""
    wanted = _number(given, option)
    if wanted is None:
        return 0.0
    if isinstance(wanted, bool) or not isinstance(wanted, (int, float)) or not 0 <= wanted < 60_000:
        raise InvalidConfig(f"linger_ms must be a number of milliseconds, from 0 to below 60000, not {wanted!r}")
    return wanted / 1000


def _founded(bucket: Bucket, mode: str, terms: Terms) -> bytes:
    """Read `sawlog.json`. With mode "w" create it if there is no store."""
    data = bucket.get(STORE)
    if data is None:
        _refuse_remains(bucket)
        if mode != "w":
            raise StoreNotFound(errno.ENOENT, f"no store in {bucket.url}")
        _refuse_strangers(bucket)
        selftest.check(bucket)  # a server that ignores preconditions would lose commits
        bucket.create(STORE, new_store(terms))
        data = bucket.get(STORE) or b""
        bucket.put(STORE_COPY, data)
    return data


def new_store(terms: Terms) -> bytes:
    """The content of `sawlog.json` for a store with a new id."""
    return canonical({"kind": _KIND, "format": _FORMAT, "id": str(uuid.uuid4()), **terms.as_fields()}) + b"\n"


def _check_conditional(bucket: Bucket, founded: bytes) -> None:
    """Raise `UnsafeStorage` if an object that exists can be created: the server may have changed since the store was
    created, or another one may be in front of it. The bytes are the same, so that does no harm. If the copy is missing,
    the first create brings it back."""
    if bucket.create(STORE_COPY, founded) and bucket.create(STORE_COPY, founded):
        raise UnsafeStorage(
            errno.ENOTSUP,
            f"{bucket.url} is not safe for a store: {STORE_COPY} exists, and was created again. The server ignores "
            "conditional writes (If-None-Match), so that two writers would overwrite each other's commits; nothing was "
            "changed. Use other storage, or another version of this server; `sawlog store test` shows more",
        )


def described(bucket: Bucket, founded: bytes) -> tuple[str, Terms]:
    """The id of a store and its terms, from its `sawlog.json`."""
    try:
        fields = json.loads(founded)
        kind, version, store_id = fields.get("kind"), fields["format"], str(fields["id"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidConfig(f"{bucket.url}/{STORE} is no file of a store: {error}") from error
    if kind != _KIND:
        raise InvalidConfig(f"{bucket.url} is a store in a directory: open it by its path, without file://")
    if version != _FORMAT:
        raise InvalidConfig(f"{bucket.url} has format {version}; this version of sawlog supports {_FORMAT}")
    return store_id, Terms.of(fields)


def _refuse_remains(bucket: Bucket) -> None:
    """Do not take a store that has lost its `sawlog.json` for none: a new one would have other terms than the processes
    that use these commits."""
    found = next((each.key for folder in (COMMITS, CHECKPOINTS) for each in bucket.list(folder)), None)
    if found is not None and bucket.get(STORE) is None:  # else another process creates it at this moment
        raise CorruptData(
            f"{bucket.url} has {found}, but no {STORE}: it was deleted, or the storage has lost it. Bring it back "
            f"from a version or a copy of the bucket, or with `sawlog repair -d {bucket.url}`"
        )


def _refuse_strangers(bucket: Bucket) -> None:
    """Do not create a store among the files of somebody else: a log, or whatever a mistyped path is."""
    if not bucket.url.startswith("file://"):
        return  # a prefix of a bucket is chosen, not met, and may have any number of objects
    found = [each.key for each in bucket.list("") if not each.key.startswith(FOLDER)]
    if found and bucket.get(STORE) is None:  # else another process creates it at this moment
        raise InvalidConfig(
            f"{bucket.url} is neither empty nor a store: it holds {', '.join(found[:5])}; choose an empty or a new "
            "directory"
        )
