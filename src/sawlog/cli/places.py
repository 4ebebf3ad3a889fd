"""Opening what a command works on: a store in a directory, on object storage or behind a broker, or some partitions.

`open_named_logs` opens partitions for reading, which takes no lock and writes nothing, so commands that only read can
run next to a writer. `open_files_for_reading` does the same for commands that need the files themselves. Every function
here is a context manager that closes what it opened, even if the command fails.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import typer

from ..addresses import is_address
from ..errors import CorruptFile, InvalidConfig, LogNotFound, StorageError
from ..log.log import Log
from ..store.base import Partition
from ..store.directory.lock_leases import LOCK_TIMEOUT_S
from ..store.names import GROUPS
from .output import note
from .terminal import ask_password
from .units import format_size

if TYPE_CHECKING:
    from ..broker.remote import RemoteAcls, RemoteGroups, RemoteStore, RemoteTopic, RemoteUsers
    from ..broker.security.authorizer import StoredAcls
    from ..broker.security.credentials import StoredUsers
    from ..log.writer import Writer
    from ..store import base
    from ..store.directory.store import DirectoryStore
    from ..store.directory.topic import DirectoryTopic
    from ..store.objects.partition import ObjectPartition
    from ..store.objects.store import ObjectStore
    from ..store.objects.topic import ObjectTopic
    from ..store.writer import Packer, TopicWriter

    #: A store that is opened directly or through a broker; so are the others.
    AnyStore = base.Store | RemoteStore
    AnyTopic = base.Topic | RemoteTopic
    #: A buffered writer of single records.
    Sink = Packer | TopicWriter | Writer


class Address(PosixPath):
    """The URL of a store on object storage, such as s3://bucket/store, where a command expects a directory. A plain
    `Path` would lose a slash; this one keeps its text, so that opening it as a directory fails with a clear message."""

    #: The URL; empty for a path that was derived from one.
    text: str = ""

    @classmethod
    def of(cls, text: str) -> Address:
        """Return the address for a URL as typed."""
        made = cls(text)
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text or super().__str__()

    def __fspath__(self) -> str:
        return str(self)


def parse_location(text: str | Path) -> Path:
    """Parse the value of -d: a directory, or a URL on object storage."""
    return Address.of(text) if isinstance(text, str) and is_address(text) else Path(text)


def parse_directory(text: str | Path) -> Path:
    """Parse the value of -d for a command that needs files; refuse a URL."""
    found = parse_location(text)
    if isinstance(found, Address):
        raise typer.BadParameter(f"{found} is on object storage: this command needs a store in a directory")
    return found


Log_co = TypeVar("Log_co", bound=Partition, covariant=True)

#: Long poll while following a broker, which answers as soon as records arrive.
_LONG_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class NamedLog(Generic[Log_co]):
    """One log and its name: the topic and partition, or the directory's name and 0."""

    topic: str
    partition: int
    log: Log_co

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"{self.topic}/{self.partition}"


def note_remote(places: Iterable[NamedLog[Any]]) -> None:
    """Note each log whose oldest segments are only in the replica."""
    for place in places:
        lowest, local = place.log.lowest_offset, getattr(place.log, "local_offset", 0)
        if lowest < local:
            size = format_size(place.log._remote_bytes)
            note(f"{place.name}: offsets {lowest} to {local - 1} ({size}) are only in the replica")


#: Name of the committed-offsets log in tables.
GROUPS_LOG = "(groups)"


def groups_path(data: Path | None) -> Path | None:
    """Return the directory of the groups' committed offsets, or None if no offset was ever committed. A log that lost
    its segments counts; a log whose creation crashed before the first segment does not."""
    if data is None or isinstance(data, Address):
        return None
    path = data / GROUPS
    try:
        Log.open(path, mode="r").close()
    except LogNotFound:
        return None
    return path


@contextmanager
def open_groups_log(data: Path | None) -> Iterator[list[NamedLog[Log]]]:
    """Open the committed-offsets log for reading, if the store has one."""
    path = groups_path(data)
    if path is None:
        yield []
        return
    with Log.open(path, mode="r") as log:
        yield [NamedLog(GROUPS_LOG, 0, log)]


@contextmanager
def open_store(
    data: Path, mode: Literal["w", "r"] = "r", *, create: bool = False, lock_timeout: float = LOCK_TIMEOUT_S
) -> Iterator[DirectoryStore]:
    """Open the store in that directory, by default for reading, for commands that need its files. Short commands run no
    background maintenance."""
    from ..store.directory.store import DirectoryStore

    if isinstance(data, Address):
        raise InvalidConfig(f"{data} is on object storage: this command needs a store in a directory")
    if create:
        check_directory(data)
    elif mode == "w":
        DirectoryStore.open(data, mode="r").close()  # a mistyped directory must not become a store
    with DirectoryStore.open(data, mode=mode, maintenance_interval_s=None, lock_timeout=lock_timeout) as store:
        yield store


@contextmanager
def open_any(
    data: Path, mode: Literal["w", "r"] = "r", *, create: bool = False, lock_timeout: float = LOCK_TIMEOUT_S
) -> Iterator[DirectoryStore | ObjectStore]:
    """Open the store in that directory or at that URL. Short commands run no background maintenance."""
    if not isinstance(data, Address):
        with open_store(data, mode, create=create, lock_timeout=lock_timeout) as store:
            yield store
        return
    from ..store.objects.store import ObjectStore

    if mode == "w" and not create:
        ObjectStore.open(str(data), "r").close()  # a mistyped address must not become a store
    with ObjectStore.open(str(data), mode, maintenance_interval_s=None) as remote:
        yield remote


def check_directory(data: Path) -> None:
    """Raise if the path is a file. A missing directory is fine: the store will be created there."""
    if data.exists() and not data.is_dir():
        raise typer.BadParameter(f"{data} is a file, not a directory", param_hint="-d")


@contextmanager
def open_place(
    data: Path | None,
    broker: str | None,
    mode: Literal["w", "r"] = "r",
    *,
    create: bool = False,
    lock_timeout: float = LOCK_TIMEOUT_S,
) -> Iterator[AnyStore]:
    """Open the store in that directory, at that URL, or behind that broker."""
    if broker is not None:
        with _connect(broker) as remote:
            yield remote
        return
    if data is None:
        raise typer.BadParameter("give the store with -d DIR, or its broker with -b HOST:PORT")
    with open_any(data, mode, create=create, lock_timeout=lock_timeout) as store:
        yield store


@contextmanager
def open_users(
    data: Path | None, broker: str | None, mode: Literal["w", "r"] = "r", *, create: bool = False
) -> Iterator[StoredUsers | RemoteUsers]:
    """Open the users of the store in that directory, at that URL, or behind that broker."""
    if broker is not None:
        with _connect(broker) as remote:
            yield remote.users
        return
    if data is None:
        raise typer.BadParameter("give the store with -d DIR, or its broker with -b HOST:PORT")
    from ..broker.security.credentials import StoredUsers

    with open_any(data, mode, create=create) as store:
        yield StoredUsers(store._registry)


def _connect(broker: str) -> RemoteStore:
    """Connect to a broker by its address or by a TOML file that describes it."""
    from ..broker.access import read_access
    from ..broker.remote import connect

    if not broker.endswith(".toml"):
        return connect(broker)
    address, access = read_access(Path(broker), ask_password)
    return connect(address, access=access)


def check_place(data: Path | None, log: Path | None, topic: str | None) -> None:
    """Check that a store or a log was given. A log takes precedence over a store from the environment."""
    if data is None and log is None:
        raise typer.BadParameter("give the store with -d DIR, or the directory of one partition with --log DIR")
    if log is not None and topic is not None:
        raise typer.BadParameter("a topic needs a store: give -d DIR, or use --log without a topic")


@contextmanager
def open_acls(
    data: Path | None, broker: str | None, mode: Literal["w", "r"] = "r"
) -> Iterator[StoredAcls | RemoteAcls]:
    """Open the access control rules of the store in that directory, at that URL, or behind that broker."""
    if broker is not None:
        with _connect(broker) as remote:
            yield remote.acls
        return
    if data is None:
        raise typer.BadParameter("give the store with -d DIR, or its broker with -b HOST:PORT")
    from ..broker.security.authorizer import StoredAcls

    with open_any(data, mode) as store:
        yield StoredAcls(store._registry)


class OpenLogs:
    """The open logs that the command line names."""

    def __init__(self, places: Sequence[NamedLog[Partition]], remote: RemoteStore | None = None) -> None:
        self.places = places
        self._remote = remote

    @property
    def is_remote(self) -> bool:
        """Whether the logs are read through a broker."""
        return self._remote is not None

    @property
    def groups(self) -> RemoteGroups:
        """The groups of the broker."""
        assert self._remote is not None
        return self._remote.groups

    def wait(self, offsets: Sequence[int], seconds: float) -> None:
        """Wait for a record at one of these offsets, one per log. Files are polled, so this sleeps for `seconds`; a
        broker is long-polled."""
        if self._remote is None:
            time.sleep(seconds)
            return
        positions = {(place.topic, place.partition): offset for place, offset in zip(self.places, offsets, strict=True)}
        self._remote.wait(positions, _LONG_POLL_S)


@contextmanager
def open_named_logs(
    data: Path | None,
    log: Path | None,
    topic: str | None = None,
    partitions: Sequence[int] | None = None,
    broker: str | None = None,
) -> Iterator[OpenLogs]:
    """Open the logs that the command line names for reading."""
    if data is None and log is None and broker is None:
        raise typer.BadParameter(
            "give the store with -d DIR, its broker with -b HOST:PORT, or the directory of one partition with --log DIR"
        )
    if broker is not None and log is None:
        with _connect(broker) as store:
            names = store.topics() if topic is None else [topic]
            topics = [store.topic(name) for name in names]
            yield OpenLogs(
                [
                    NamedLog(each.name, number, each.partition(number))
                    for each in topics
                    for number in chosen(each, partitions)
                ],
                store,
            )
        return
    with open_for_reading(data, log, topic, partitions) as places:
        yield OpenLogs([NamedLog(each.topic, each.partition, each.log) for each in places])


@contextmanager
def open_for_reading(
    data: Path | None,
    log: Path | None,
    topic: str | None = None,
    partitions: Sequence[int] | None = None,
    missing: list[MissingPartition] | None = None,
) -> Iterator[Sequence[NamedLog[Log] | NamedLog[ObjectPartition]]]:
    """Open the partitions that the command line names for reading, in a directory or at a URL. Partitions whose files
    are missing are added to `missing`; if it is None, they raise."""
    if log is not None or not isinstance(data, Address):
        with open_files_for_reading(data, log, topic, partitions, missing) as places:
            yield places
        return
    with open_any(data) as store:
        names = store.topics() if topic is None else [topic]
        found = [store.topic(name) for name in names]
        yield [_part(each, number) for each in found for number in chosen(each, partitions)]


def _part(topic: DirectoryTopic | ObjectTopic, number: int) -> NamedLog[Log] | NamedLog[ObjectPartition]:
    from ..store.objects.topic import ObjectTopic

    if isinstance(topic, ObjectTopic):  # `--follow` polls the end continuously
        return NamedLog(topic.name, number, topic.partition(number).patient())
    return NamedLog(topic.name, number, topic.partition(number))


@contextmanager
def open_files_for_reading(
    data: Path | None,
    log: Path | None,
    topic: str | None = None,
    partitions: Sequence[int] | None = None,
    missing: list[MissingPartition] | None = None,
) -> Iterator[list[NamedLog[Log]]]:
    """Open the logs whose files the command line names for reading; `missing` as in `open_for_reading`."""
    check_place(data, log, topic)
    if log is not None:
        with Log.open(log, mode="r") as found:
            yield [NamedLog(log.resolve().name, 0, found)]
        return
    assert data is not None
    with open_store(data) as store:
        names = store.topics() if topic is None else [topic]
        yield [place for name in names for place in logs_of(store.topic(name), partitions, missing)]


class MissingPartition(CorruptFile):
    """The files of a partition are missing."""

    def __init__(self, topic: str, partition: int, message: str) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition


def logs_of(
    topic: DirectoryTopic, partitions: Sequence[int] | None = None, missing: list[MissingPartition] | None = None
) -> list[NamedLog[Log]]:
    """Open the selected partitions of a topic; `missing` as in `open_for_reading`."""
    places = []
    for number in chosen(topic, partitions):
        try:
            places.append(NamedLog(topic.name, number, _log_of(topic, number)))
        except MissingPartition as error:
            if missing is None:
                raise
            missing.append(error)
    return places


def _log_of(topic: DirectoryTopic, number: int) -> Log:
    """Return the log of a partition. It was created with the topic, so a missing log is data loss, not a typo."""
    try:
        return topic.partition(number)
    except StorageError as error:
        if not isinstance(error, LogNotFound) and error.errno != errno.ENOENT:
            raise
        create = "" if isinstance(error, LogNotFound) else "create the directory, and "
        raise MissingPartition(
            topic.name,
            number,
            f"the files of partition {number} of {topic.name} are missing ({error.strerror}); restore them, or "
            f"{create}`sawlog repair {topic.name} -p {number} --apply` makes it usable without its records",
        ) from error


def chosen(topic: AnyTopic, partitions: Sequence[int] | None) -> list[int]:
    """Return the selected partitions, or all if none was given."""
    for number in partitions or ():
        if number >= topic.partitions:
            raise typer.BadParameter(
                f"{topic.name} has partitions 0 to {topic.partitions - 1}, not {number}", param_hint="--partition"
            )
    return sorted(set(partitions)) if partitions else list(range(topic.partitions))
