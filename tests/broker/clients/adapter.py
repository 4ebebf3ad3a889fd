"""Interface of a client in the matrix. One module in `adapters` per client defines its `CLIENT`: modules in
`adapters/quick` run in every test run, modules in `adapters/slow` in the slow form.

An adapter is thin: it calls the client as documented and converts names and types. It does not wait or retry where the
client does not, and hides no error: errors become `Refused` with Kafka's name. A call that a client does not have
raises `NotOffered`, and the test is skipped.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

#: Time after which every client gives up.
PATIENCE_S = 60.0
_FOLDER = Path(__file__).parent / "adapters"
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Sent:
    """A record as an application gives it to a producer."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as a consumer gives it to an application."""

    partition: int
    offset: int
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


@dataclass(frozen=True, slots=True)
class Group:
    """A group as an administrator sees it."""

    state: str
    #: For each member: its instance id, and how many partitions it has.
    members: tuple[tuple[str | None, int], ...]


class Refused(Exception):
    """The broker or the client refused a call; `name` is Kafka's name of the error."""

    def __init__(self, name: str, message: object = "") -> None:
        self.name = name
        super().__init__(f"{name}: {message}")


class Missing(Exception):
    """Raised if this machine lacks a requirement of a client; the message names it."""


class NotOffered(Exception):
    """This client has no call for it."""


class Producer(Protocol):
    """Sends records, with a transactional id also in transactions."""

    def send(self, topic: str, records: Sequence[Sent]) -> list[int]:
        """Send, wait, and return the offsets."""

    def post(self, topic: str, records: Sequence[Sent]) -> None:
        """Send without waiting."""

    def flush(self) -> list[int]:
        """Wait for all posted records and return their offsets, in order."""

    def begin(self) -> None:
        """Begin a transaction."""

    def send_offsets(self, consumer: Any, offsets: Mapping[tuple[str, int], int], group: str) -> None:
        """Commit a group's offsets with the transaction."""

    def commit(self) -> None:
        """Commit the transaction."""

    def abort(self) -> None:
        """Abort it."""

    def close(self) -> None:
        """Close; posted records may be lost."""


class Consumer(Protocol):
    """Reads given partitions, or the partitions that its group assigns."""

    def assign(self, places: Mapping[tuple[str, int], int]) -> None:
        """Read these partitions from these offsets on."""

    def subscribe(self, *topics: str) -> None:
        """Read the partitions that the group assigns."""

    def subscribe_pattern(self, pattern: str) -> None:
        """Read the assigned partitions of all topics whose names match a pattern, which begins with `^`."""

    def poll(self, timeout_s: float = 0.2) -> list[Seen]:
        """Return available records; wait no longer than `timeout_s`."""

    def assignment(self) -> set[int]:
        """Return the currently assigned partitions."""

    def commit(self, offsets: Mapping[tuple[str, int], int] | None = None) -> None:
        """Commit these offsets, or the current position."""

    def committed(self, topic: str, partition: int) -> int | None:
        """Return the committed offset of the group."""

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """Return the offset of the first record that is not older."""

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset and the offset after the last record."""

    def close(self) -> None:
        """Leave the group and close."""


class Admin(Protocol):
    """Administration of topics, groups and transactions."""

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""

    def topics(self) -> dict[str, int]:
        """Return the number of partitions of each topic."""

    def add_partitions(self, name: str, total: int) -> None:
        """Add partitions to a topic, up to `total`."""

    def config(self, name: str) -> dict[str, str]:
        """Return all settings of a topic."""

    def configure(self, name: str, config: Mapping[str, str]) -> None:
        """Change settings of a topic."""

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Delete the records below an offset and return the first remaining offset."""

    def groups(self) -> set[str]:
        """Return the names of all groups."""

    def group(self, name: str) -> Group:
        """Describe a group."""

    def delete_group(self, name: str) -> None:
        """Delete a group and its offsets."""

    def set_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets of a group without members."""

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Return the committed offsets of a group."""

    def transactions(self) -> dict[str, str]:
        """Return the state of each transactional id."""

    def close(self) -> None:
        """Close the client."""


class Client(Protocol):
    """A client library."""

    def producer(
        self,
        address: str,
        *,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        linger_ms: int = 5,
        max_request_bytes: int = 1_000_000,
        timeout_ms: int = 60_000,
    ) -> Producer:
        """Return a producer; a transactional one is initialised."""

    def consumer(
        self,
        address: str,
        *,
        group: str | None = None,
        instance: str | None = None,
        committed: bool = False,
        reset: str = "earliest",
        session_ms: int = 10_000,
        protocol: str = "classic",
    ) -> Consumer:
        """Return a consumer that commits on request. Protocol "consumer" is that of KIP-848: the broker assigns."""

    def admin(self, address: str) -> Admin:
        """Return an admin client."""


def kafka_name(name: str) -> str:
    """Convert `UnknownTopicOrPartitionError`, `_MSG_TIMED_OUT`, ... to `UNKNOWN_TOPIC_OR_PARTITION`, `MSG_TIMED_OUT`,
    ..."""
    if not name.isupper():
        name = re.sub(r"(Error|Exception)$", "", name)
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()
    return _SYNONYMS.get(name.lstrip("_"), name.lstrip("_"))


#: Error names of clients that differ from those of Kafka's protocol.
_SYNONYMS = {
    "UNKNOWN_TOPIC_OR_PART": "UNKNOWN_TOPIC_OR_PARTITION",
    "MESSAGE_SIZE_TOO_LARGE": "MESSAGE_TOO_LARGE",
    "MSG_SIZE_TOO_LARGE": "MESSAGE_TOO_LARGE",
    "RECORD_TOO_LARGE": "MESSAGE_TOO_LARGE",
    "INVALID_TOPIC_EXCEPTION": "INVALID_TOPIC",
    "TOPIC_EXCEPTION": "INVALID_TOPIC",
    "INVALID_CONFIGURATION": "INVALID_CONFIG",
    "INVALID_CONFIGURATION_EXCEPTION": "INVALID_CONFIG",
    "TOPIC_EXISTS": "TOPIC_ALREADY_EXISTS",
    "NO_OFFSET_FOR_PARTITION": "OFFSET_OUT_OF_RANGE",
    "AUTO_OFFSET_RESET": "OFFSET_OUT_OF_RANGE",
    "FENCED": "PRODUCER_FENCED",
    "INVALID_PRODUCER_EPOCH": "PRODUCER_FENCED",
    "GROUP_NOT_EMPTY": "NON_EMPTY_GROUP",
}


def names(speed: str) -> list[str]:
    """Return the clients of the quick or of the slow form."""
    return sorted(path.stem.rstrip("_") for path in (_FOLDER / speed).glob("*.py"))


@cache
def load(name: str) -> Client:
    """Import a client by name, which may take a while and warn; `Missing`."""
    speed, stem = next(
        (s, e) for s in ("quick", "slow") for e in (name, f"{name}_") if (_FOLDER / s / f"{e}.py").exists()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        made: Client = importlib.import_module(f"{__package__}.adapters.{speed}.{stem}").CLIENT
    return made


def last_offsets(records: Iterable[Seen], topic: str) -> dict[tuple[str, int], int]:
    """Return the offsets to commit after these records."""
    ends: dict[tuple[str, int], int] = {}
    for record in records:
        place = (topic, record.partition)
        ends[place] = max(ends.get(place, 0), record.offset + 1)
    return ends
