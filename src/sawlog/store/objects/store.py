"""`ObjectStore`: a store of topics on object storage. `sawlog.open("s3://bucket/store")` returns one.

```
<prefix>/sawlog.json      format, id and parameters; created once
<prefix>/sawlog.copy.json a copy of it, for `sawlog repair`
<prefix>/commits/...      see journal.py
<prefix>/checkpoints/...  see checkpoints.py
<prefix>/staged/...       batches that were uploaded before their commit
<prefix>/segments/...     see maintenance.py
<prefix>/notes/...        see collect.py; also garbage/, clock
```

A store is created once: the bucket must be safe and hold nothing else. Every later process uses the parameters that it
finds in `sawlog.json`, a flat JSON object with the id and the fields of `StoreParameters`.

A snapshot is a commit that refers to the extents of all topics once more. Nothing is copied, and taking one takes as
long as that commit. Records that expire or are compacted or deleted later stay in it and use space until it is deleted.
A snapshot is consistent across topics and partitions: it has every earlier commit, and no later one.
"""

from __future__ import annotations

import errno
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Unpack

from ...clock import now_ms
from ...display import counted
from ...errors import (
    CorruptData,
    InvalidConfig,
    SnapshotNotFound,
    StoreNotFound,
    TopicExists,
    TopicNotFound,
    UnsafeStorage,
)
from ...log.maintenance import MaintenanceReport
from ...log.retention import RetentionReport
from .. import base
from .. import settings as topic_settings
from ..directory.topic_entry import check_partitions
from ..names import check_document_name, check_topic_name, no_topic, topic_exists
from ..settings import TopicChanges, TopicSettings
from . import selftest
from .bucket import Bucket, is_missing
from .cache import CACHE_BYTES, BlockCache, default_path
from .checkpoints import CHECKPOINTS
from .groups import ObjectGroups
from .journal import STORE, STORE_COPY, Clocks, StoreParameters
from .maintenance import Maintainer, PartitionId
from .serving import ObjectService
from .session import StoreSession, refused_with, results
from .slices import ObjectSliceReader
from .state.commit import COMMITS, canonical
from .state.partitions import id_in_snapshot
from .topic import ObjectTopic, SnapshotInfo
from .transaction import ObjectStaging, ObjectTransaction


class ObjectStore(base.Store):
    """Topics on object storage. Thread-safe; any number of processes may write at the same time."""

    supports_snapshots = True

    def __init__(self, session: StoreSession, store_id: str) -> None:
        self._session = session
        self._kept = session.kept
        self._id = store_id
        self._maintainer = Maintainer(session)
        #: Topics for the appends of transactions, by name.
        self._written: dict[str, ObjectTopic] = {}

    @classmethod
    def open(
        cls,
        url: str | Bucket,
        mode: Literal["w", "r"] = "w",
        *,
        options: Mapping[str, str] | None = None,
        parameters: StoreParameters | None = None,
        maintenance_interval_s: float | None = 60.0,
        create: bool = True,
        clocks: Clocks | None = None,
        cache_bytes: int | None = None,
        cache_path: str | PathLike[str] | None = None,
        lazily: bool = False,
        linger_ms: float | None = None,
    ) -> ObjectStore:
        """Open the store at an address. With mode "w" (the default), create it with these parameters if it does not
        exist, unless `create` is False; an existing store keeps its own.

        Blocks that were read are cached on the local disk, up to `cache_bytes` (1 GiB; 0 turns the cache off) in
        `cache_path` (by default below the user's cache directory). With `lazily`, the state is read on first use.

        While a commit is in flight, all writers share the next one. With `linger_ms`, that commit also waits this long
        before it is created: fewer requests, later acknowledgements. These three can be given as options, too.
        """
        if mode not in ("w", "r"):
            raise InvalidConfig(f'mode must be "w" or "r", not {mode!r}')
        given = _options(options)
        linger = _number(linger_ms, given.pop("linger_ms", None), 0)
        if type(linger) not in (int, float) or not 0 <= linger < 60_000:
            raise InvalidConfig(f"linger_ms must be a number of milliseconds, from 0 to below 60000, not {linger!r}")
        room = _number(cache_bytes, given.pop("cache_bytes", None), CACHE_BYTES)
        if type(room) is not int or room < 0:
            raise InvalidConfig(f"cache_bytes must be a number of bytes, or 0 for no cache, not {room!r}")
        place = cache_path or given.pop("cache_path", None)
        if parameters is not None and not isinstance(parameters, StoreParameters):
            raise InvalidConfig(
                f"parameters must be a sawlog.store.objects.journal.StoreParameters, not {parameters!r}"
            )
        creates = mode == "w" and create
        if not creates and isinstance(url, str) and is_missing(url):
            raise StoreNotFound(errno.ENOENT, f"no store in {url}")
        bucket = url if isinstance(url, Bucket) else Bucket(url, given)
        founded = read_or_create(bucket, StoreParameters() if parameters is None else parameters, create=creates)
        store_id, agreed = identity_of(bucket, founded)
        if mode == "w":
            check_conditional(bucket, founded)  # only after the object has proved to be a store
        is_remote = not bucket.url.startswith(("memory://", "file://"))
        place = (place or default_path()) if room and is_remote else None
        cache = None if place is None else BlockCache(place, store_id, room)
        session = StoreSession(
            bucket, mode, agreed, clocks=clocks, cache=cache, linger_s=linger / 1000, founded=founded
        )
        made = cls(session, store_id)
        if not lazily:
            session.check_end()
        if mode == "w":
            made._maintain_every(maintenance_interval_s)
        return made

    def close(self) -> None:
        """Commit the queued requests and close. Safe to call twice."""
        if self._maintenance is not None:
            self._maintenance.cancel()
            self._maintainer.stop()
            self._maintenance.wait()
        self._session.close()

    # --- maintenance

    def maintain(self) -> list[MaintenanceReport]:
        """Run maintenance now: consolidate, expire, compact, collect. Any number of processes may do so at the same
        time."""
        self._session.check_writable()
        return self._maintainer.run()

    def _expire(self, topic: str, partition: int) -> RetentionReport | None:
        self._session.check_writable()
        return self._maintainer.expire(PartitionId(topic, self.topic(topic).id, partition))

    def __repr__(self) -> str:
        """Describe the store from the last known state. Sends no request."""
        if self._session.is_closed:
            return f"<ObjectStore {self.path} closed>"
        known = self._session.glance(lambda state: len(state.topics()))
        return (
            f"<ObjectStore {self.path}>" if known is None else f"<ObjectStore {self.path}: {counted(known, 'topic')}>"
        )

    def _check_open(self) -> None:
        self._session.check_open()

    #: A heartbeat is a commit. With Kafka's default timeout, an idle consumer makes one every fifteen seconds.
    _session_timeout_ms = 45_000

    def _patient(self) -> ObjectStore:
        return ObjectStore(self._session.patient, self._id)

    @property
    def path(self) -> str:
        return self._session.bucket.url

    @property
    def id(self) -> str:
        return self._id

    @property
    def mode(self) -> str:
        return self._session.mode

    # --- topics

    def topics(self, *, at: str | SnapshotInfo | None = None) -> list[str]:
        if at is not None:
            return sorted(self._snapshot(str(at))["topics"])
        return self._session.look(lambda state: state.topics(), fresh=True)

    def topic(self, name: str, *, at: str | SnapshotInfo | None = None) -> ObjectTopic:
        if at is not None:
            entry = self._snapshot(str(at))["topics"].get(name)
            if entry is None:
                raise TopicNotFound(f"no topic {name!r} in snapshot {str(at)!r} of {self.path}")
            return ObjectTopic(self._session, name, id_in_snapshot(entry["id"], str(at)), at=str(at))
        found = self._session.find(lambda state: state.topic(name))
        if found is None:
            raise TopicNotFound(no_topic(name, self.path, self.topics()))
        return ObjectTopic(self._session, name, found["id"], self, tend=self._maintainer.run)

    def _slice_reader(self, topic: str, topic_id: str, partition: int) -> ObjectSliceReader:
        """Return a reader for slices, which sends no request until it is used."""
        return ObjectSliceReader(self._session, topic, topic_id, partition)

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[ObjectTopic]: ...
        def __getitem__(self, name: str) -> ObjectTopic: ...

    def create_topic(
        self, name: str, partitions: int = 1, *, exist_ok: bool = False, **settings: Unpack[TopicSettings]
    ) -> ObjectTopic:
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
            self._session.commit([action])
        except TopicExists as error:
            if not exist_ok:
                raise topic_exists(name, self.path) from error
        return self.topic(name)

    def alter_topic(self, name: str, partitions: int | None = None, **settings: Unpack[TopicChanges]) -> ObjectTopic:
        topic = self.topic(name)
        if partitions is not None:
            check_partitions(partitions)
        now = topic_settings.changed(topic.settings, settings)
        gone = dict.fromkeys(set(topic.settings) - set(now))
        action = {"do": "alter topic", "name": name, "id": topic.id, "partitions": partitions, "settings": now | gone}
        self._session.commit([action])
        return self.topic(name)

    def delete_topic(self, name: str) -> None:
        self._session.commit([{"do": "delete topic", "name": name, "id": self.topic(name).id}])

    # --- snapshots

    def snapshot(self, name: str, topics: Sequence[str] | None = None) -> SnapshotInfo:
        """Take a snapshot of all topics, or of some. Nothing is copied. Raises `SnapshotExists`."""
        check_topic_name(name)
        wanted = None if topics is None else sorted(set(topics))
        self._session.commit([{"do": "take snapshot", "name": name, "topics": wanted, "time_ms": now_ms()}])
        return _snapshot_info(name, self._snapshot(name))

    def snapshots(self) -> list[SnapshotInfo]:
        found = self._session.look(lambda state: state.snapshots(), fresh=True)
        return [_snapshot_info(name, entry) for name, entry in sorted(found.items())]

    def delete_snapshot(self, name: str | SnapshotInfo) -> None:
        """Delete a snapshot. Objects that only it refers to are deleted later. Raises `SnapshotNotFound`."""
        self._session.commit([{"do": "drop snapshot", "name": str(name)}])

    def _snapshot(self, name: str) -> Mapping[str, Any]:
        found = self._session.find(lambda state: state.snapshots().get(name))
        if found is None:
            raise SnapshotNotFound(f"no snapshot {name!r} in {self.path}")
        return found

    # --- groups, transactions, jobs

    @property
    def groups(self) -> ObjectGroups:
        return ObjectGroups(self._session)

    def transaction(self, name: str | None = None, sequence: int | None = None) -> ObjectTransaction:
        return ObjectTransaction(self._session, self._written_topic, name, sequence)

    def _written_topic(self, name: str) -> ObjectTopic:
        """Return a topic for appends, as of the last commit that this process has seen. Sends no request if it is
        known."""
        found = self._session.last_known(lambda state: state.topic(name))
        if found is None:
            return self.topic(name)
        known = self._written.get(name)
        if known is None or known.id != found["id"]:
            known = self._written[name] = ObjectTopic(self._session, name, found["id"])
        return known

    @property
    def _registry(self) -> ObjectRegistry:
        self._session.check_open()
        return ObjectRegistry(self._session)

    def _serve(self) -> ObjectService:
        self._session.check_writable()
        return ObjectService(self, self._session)

    def replace_topic(self, name: str, by: str, *, ends: Mapping[int, int] | None = None) -> ObjectTopic:
        """Give the name of a topic to the topic `by` and delete the old one, in one commit.

        Writers of either topic are not blocked meanwhile. With `ends` (partition to next offset), raises
        `OffsetMismatch` if the old topic has grown beyond them. The topic keeps the id of `by`, so that committed
        offsets of the old one do not apply to it.
        """
        if name == by:
            raise InvalidConfig(f"the topic {name!r} cannot replace itself")
        old, new = self.topic(name), self.topic(by)
        action: dict[str, Any] = {"do": "replace topic", "name": name, "id": old.id, "by": by, "by_id": new.id}
        if ends is not None:
            action["ends"] = [[number, ends.get(number, 0)] for number in range(old.partitions)]
        self._session.commit([action])
        return self.topic(name)

    @property
    def _staging(self) -> ObjectStaging:
        return ObjectStaging(self._session)


class ObjectRegistry(base.DocumentRegistry):
    """The documents of one store. Each change is a commit that names the version it replaces. Safe for threads and
    processes."""

    def __init__(self, session: StoreSession) -> None:
        self._session = session

    def read(self, name: str) -> base.Document:
        check_document_name(name)
        return base.Document(*self._session.look(lambda state: state.document(name), fresh=True))

    def change(self, name: str, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> base.Document:
        """Replace the fields of a document by the result of `edit`, durably. `edit` is called again if another process
        changed the document meanwhile. If it raises or returns the same fields, nothing is stored."""
        check_document_name(name)
        self._session.check_writable()
        while True:
            found = self.read(name)
            fields = dict(edit(found.fields))
            if fields == found.fields:
                return found
            action = {"do": "change document", "name": name, "version": found.version, "fields": fields}
            outcome = self._session.submit([action]).result()
            if refused_with(outcome) != "Changed":
                results(outcome)
                return base.Document(found.version + 1, fields)


def _snapshot_info(name: str, entry: Mapping[str, Any]) -> SnapshotInfo:
    return SnapshotInfo(name, int(entry["time_ms"]), tuple(sorted(entry["topics"])))


def _options(given: object) -> dict[str, Any]:
    """Validate options: all but those of the cache are strings."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidConfig(f"options must be a dictionary, not {given!r}")
    for name, value in given.items():
        if not isinstance(name, str) or not (isinstance(value, str) or name in ("cache_bytes", "cache_path")):
            raise InvalidConfig(f"options are texts by name: {name!r} is {value!r}")
    return dict(given)


def _number(given: object, option: object, default: int) -> Any:
    """Return the argument, the option or the default. An option may be the text of a number."""
    wanted = next((each for each in (given, option) if each is not None), default)
    return int(wanted) if isinstance(wanted, str) and wanted.isdecimal() else wanted


# --- sawlog.json

#: The kind of store in `sawlog.json`: that of a store in a directory has another name for its format.
_KIND, _FORMAT = "objects", 2


def read_or_create(bucket: Bucket, parameters: StoreParameters, *, create: bool) -> bytes:
    """Read `sawlog.json`. With `create`, create it if there is no store."""
    data = bucket.get(STORE)
    if data is None:
        _refuse_remains(bucket)
        if not create:
            raise StoreNotFound(errno.ENOENT, f"no store in {bucket.url}")
        _refuse_strangers(bucket)
        selftest.check(bucket)  # a server that ignores preconditions would lose commits
        bucket.create(STORE, new_store(parameters))
        data = bucket.get(STORE) or b""
        bucket.put(STORE_COPY, data)
    return data


def new_store(parameters: StoreParameters) -> bytes:
    """Return the content of `sawlog.json` for a store with a new id."""
    return canonical({"kind": _KIND, "format": _FORMAT, "id": str(uuid.uuid4()), **asdict(parameters)}) + b"\n"


def check_conditional(bucket: Bucket, data: bytes) -> None:
    """Raise `UnsafeStorage` if an existing object can be created again: the server may have been replaced since the
    store was created, or a proxy put in front of it. The bytes are the same, so the check is harmless. If the copy is
    missing, the first create restores it."""
    if bucket.create(STORE_COPY, data) and bucket.create(STORE_COPY, data):
        raise UnsafeStorage(
            errno.ENOTSUP,
            f"{bucket.url} is not safe for a store: {STORE_COPY} exists, and was created again. The server ignores "
            "conditional writes (If-None-Match), so that two writers would overwrite each other's commits; nothing was "
            "changed. Use other storage, or another version of this server; `sawlog store test` shows more",
        )


def identity_of(bucket: Bucket, data: bytes) -> tuple[str, StoreParameters]:
    """Return the id and the parameters of a store from its `sawlog.json`; missing parameters have their defaults."""
    try:
        stored = json.loads(data)
        kind, version, store_id = stored.get("kind"), stored["format"], str(stored["id"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidConfig(f"{bucket.url}/{STORE} is not the file of a store: {error}") from error
    if kind != _KIND:
        raise InvalidConfig(f"{bucket.url} is a store in a directory: open it by its path, without file://")
    if version != _FORMAT:
        raise InvalidConfig(f"{bucket.url} has format {version}; this version of sawlog supports {_FORMAT}")
    known = {each.name: stored[each.name] for each in fields(StoreParameters) if each.name in stored}
    return store_id, StoreParameters(**known)


def _refuse_remains(bucket: Bucket) -> None:
    """Refuse to treat a store that has lost its `sawlog.json` as a new one: its parameters would differ from those of
    the processes that use these commits."""
    found = next((each.key for folder in (COMMITS, CHECKPOINTS) for each in bucket.list(folder)), None)
    if found is not None and bucket.get(STORE) is None:  # otherwise another process is creating it at this moment
        raise CorruptData(
            f"{bucket.url} has {found}, but no {STORE}: it was deleted, or the storage has lost it. Bring it back "
            f"from a version or a copy of the bucket, or with `sawlog repair -d {bucket.url}`"
        )


def _refuse_strangers(bucket: Bucket) -> None:
    """Refuse to create a store among unrelated files, such as a log or the target of a mistyped path."""
    if not bucket.url.startswith("file://"):
        return  # a prefix in a bucket is chosen deliberately and may hold any number of objects
    found = [each.key for each in bucket.list("") if not each.key.startswith(selftest.FOLDER)]
    if found and bucket.get(STORE) is None:  # otherwise another process is creating it at this moment
        raise InvalidConfig(
            f"{bucket.url} is neither empty nor a store: it holds {', '.join(found[:5])}; choose an empty or a new "
            "directory"
        )
