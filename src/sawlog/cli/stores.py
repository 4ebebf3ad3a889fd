"""Open the store or the partitions that a command names: in a directory, on object storage or behind a broker.

Opening for reading takes no lock and writes nothing, so commands that only read can run next to a writer. Stores are
opened without background maintenance. The caller closes what it opened with a `with` block.
"""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from ..addresses import is_address
from ..config import Isolation
from ..display import size_text
from ..errors import CorruptFile, InvalidConfig, LogNotFound, StorageError
from ..log.log import Log
from ..store.base import Partition
from ..store.directory.open_partitions import LOCK_TIMEOUT_S
from ..store.names import GROUPS
from .output import note

if TYPE_CHECKING:
    from ..broker.remote import RemoteGroups, RemoteStore, RemoteTopic
    from ..log.writer import Writer
    from ..store import base
    from ..store.directory.store import DirectoryStore
    from ..store.directory.topic import DirectoryTopic
    from ..store.objects.store import ObjectStore
    from ..store.writer import Packer, TopicWriter

    #: A store that is opened directly or through a broker; so are the others.
    AnyStore = base.Store | RemoteStore
    AnyTopic = base.Topic | RemoteTopic
    #: A buffered writer of single records.
    Sink = Packer | TopicWriter | Writer

Mode = Literal["w", "r"]


# --- stores


def parse_directory(text: str | Path) -> Path:
    """Parse the value of -d for a command that needs files; refuse a URL."""
    if is_address(text):
        raise typer.BadParameter(f"{text} is on object storage: this command needs a store in a directory")
    return Path(text)


def check_directory(data: str | Path) -> None:
    """Raise if the path is a file. A missing directory is fine: the store will be created there."""
    if Path(data).exists() and not Path(data).is_dir():
        raise typer.BadParameter(f"{data} is a file, not a directory", param_hint="-d")


def open_directory(
    data: str | Path, mode: Mode = "r", *, create: bool = False, lock_timeout: float = LOCK_TIMEOUT_S
) -> DirectoryStore:
    """Open the store in that directory, for commands that need its files. A mistyped path does not become a store
    unless `create` is given."""
    from ..store.directory.store import DirectoryStore

    if create:
        check_directory(data)
    return DirectoryStore.open(data, mode, maintenance_interval_s=None, lock_timeout=lock_timeout, create=create)


def open_any(
    data: str, mode: Mode = "r", *, create: bool = False, lock_timeout: float = LOCK_TIMEOUT_S
) -> DirectoryStore | ObjectStore:
    """Open the store in that directory or at that URL."""
    if not is_address(data):
        return open_directory(data, mode, create=create, lock_timeout=lock_timeout)
    from ..store.objects.store import ObjectStore

    return ObjectStore.open(data, mode, maintenance_interval_s=None, create=create)


def open_store(
    data: str | None,
    broker: str | None,
    mode: Mode = "r",
    *,
    create: bool = False,
    lock_timeout: float = LOCK_TIMEOUT_S,
) -> AnyStore:
    """Open the store in that directory, at that URL, or behind that broker."""
    if broker is not None:
        return _connect(broker)
    if data is None:
        raise typer.BadParameter("give the store with -d DIR, or its broker with -b HOST:PORT")
    return open_any(data, mode, create=create, lock_timeout=lock_timeout)


def _connect(broker: str) -> RemoteStore:
    """Connect to a broker by its address or by a TOML file that describes it."""
    from ..broker.client import read_access
    from ..broker.remote import connect

    if not broker.endswith(".toml"):
        return connect(broker)
    address, access = read_access(Path(broker), _ask_password)
    return connect(address, access=access)


@cache  # ask once, even if a command connects twice
def _ask_password(user: str) -> str:
    """Ask for the password of a connecting user. Stdin may carry data, so only a terminal is asked."""
    if not sys.stdin.isatty():
        raise InvalidConfig(f"the password of {user!r} is not known: set password_file, or use a terminal")
    return str(typer.prompt(f"password of {user}", hide_input=True, err=True))


# --- partitions

#: Long poll while following a broker, which answers as soon as records arrive.
_LONG_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class NamedLog:
    """One log at an isolation level, and its name: the topic and partition, or the directory's name and 0."""

    topic: str
    partition: int
    log: Partition
    isolation: Isolation = "committed"

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"{self.topic}/{self.partition}"

    @property
    def lowest_offset(self) -> int:
        """First offset of the log."""
        return self.log.lowest_offset

    @property
    def next_offset(self) -> int:
        """End offset at the isolation level."""
        return self.log.position(isolation=self.isolation)[0]

    def offset_at(self, timestamp: int) -> int:
        """Return the first offset at or after a time."""
        return self.log.offset_at(timestamp)


def note_remote(logs: Iterable[NamedLog]) -> None:
    """Note each log whose oldest segments are only in the replica."""
    for place in logs:
        lowest, local = place.log.lowest_offset, getattr(place.log, "_local_offset", 0)
        if lowest < local:
            size = size_text(getattr(place.log, "_remote_bytes", 0))
            note(f"{place.name}: offsets {lowest} to {local - 1} ({size}) are only in the replica")


#: Name of the committed-offsets log in tables.
GROUPS_LOG = "(groups)"


def open_groups_log(data: str | None) -> AbstractContextManager[Log | None]:
    """Open the log of the groups' committed offsets for reading; None if no offset was ever committed. A log that lost
    its segments counts; a log whose creation crashed before the first segment does not."""
    if data is None or is_address(data):
        return nullcontext()
    try:
        return Log.open(Path(data) / GROUPS, mode="r")
    except LogNotFound:
        return nullcontext()


class OpenLogs:
    """The open logs that the command line names."""

    def __init__(self, logs: Sequence[NamedLog], remote: RemoteStore | None = None) -> None:
        self.logs = logs
        self._remote = remote

    @property
    def is_remote(self) -> bool:
        """True if the logs are read through a broker."""
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
        positions = {(place.topic, place.partition): offset for place, offset in zip(self.logs, offsets, strict=True)}
        self._remote.wait(positions, _LONG_POLL_S)


@contextmanager
def open_logs(
    data: str | None,
    log: Path | None,
    topic: str | None = None,
    partitions: Sequence[int] | None = None,
    broker: str | None = None,
    *,
    isolation: Isolation = "committed",
    missing: list[MissingPartition] | None = None,
) -> Iterator[OpenLogs]:
    """Open the partitions that the command line names for reading; --log takes precedence over a store from the
    environment. Partitions whose files are missing are added to `missing`; if it is None, they raise."""
    if log is not None:
        check_store_or_log(data, log, topic)
        name = log.resolve().name
        with Log.open(log, mode="r", topic=name, partition=0) as found:
            yield OpenLogs([NamedLog(name, 0, found, isolation)])
        return
    if data is None and broker is None:
        raise typer.BadParameter(
            "give the store with -d DIR, its broker with -b HOST:PORT, or the directory of one partition with --log DIR"
        )
    from ..store.base import Store

    with open_store(data, broker) as store:
        topics = [store.topic(name) for name in (store.topics() if topic is None else [topic])]
        logs = [place for each in topics for place in _logs_of(each, partitions, isolation, missing)]
        yield OpenLogs(logs, None if isinstance(store, Store) else store)


def check_store_or_log(data: str | None, log: Path | None, topic: str | None) -> None:
    """Raise unless a store or a log was given, or if a topic was given with --log."""
    if data is None and log is None:
        raise typer.BadParameter("give the store with -d DIR, or the directory of one partition with --log DIR")
    if log is not None and topic is not None:
        raise typer.BadParameter("a topic needs a store: give -d DIR, or use --log without a topic")


class MissingPartition(CorruptFile):
    """The files of a partition are missing."""

    def __init__(self, topic: str, partition: int, message: str) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition


def _logs_of(
    topic: AnyTopic,
    partitions: Sequence[int] | None,
    isolation: Isolation,
    missing: list[MissingPartition] | None,
) -> Iterator[NamedLog]:
    from ..store.directory.topic import DirectoryTopic

    for number in chosen(topic, partitions):
        try:
            log = _log_of(topic, number) if isinstance(topic, DirectoryTopic) else topic.partition(number)
        except MissingPartition as error:
            if missing is None:
                raise
            missing.append(error)
        else:
            yield NamedLog(topic.name, number, log._patient(), isolation)  # `--follow` polls the end continuously


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
