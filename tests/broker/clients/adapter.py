"""Interface of a client in the matrix. One module in `adapters` per client gives its `CLIENT`:
those in `adapters/quick` take part in every run, those in `adapters/slow` in the slow form.

An adapter is thin: it calls the client as its documentation says, and puts names and types into one shape. It waits
for nothing that the client would not wait for, retries nothing, and hides no error: those become `Refused`, with the
name that Kafka has for them. What a client cannot do at all raises `NotOffered`, and the test is skipped.
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
    """The broker, or the client for it, has refused; `name` is Kafka's name of the error."""

    def __init__(self, name: str, message: object = "") -> None:
        self.name = name
        super().__init__(f"{name}: {message}")


class Missing(Exception):
    """Raised if this machine lacks what a client needs; the message names it."""


class NotOffered(Exception):
    """This client has no call for it."""


class Producer(Protocol):
    """Sends; with a transactional id also in transactions."""

    def send(self, topic: str, records: Sequence[Sent]) -> list[int]:
        """Send and wait; the offsets."""

    def post(self, topic: str, records: Sequence[Sent]) -> None:
        """Send without waiting."""

    def flush(self) -> list[int]:
        """Wait for all that was posted; the offsets, in order."""

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
        """The partitions that it has now."""

    def commit(self, offsets: Mapping[tuple[str, int], int] | None = None) -> None:
        """Commit these offsets, or how far it has read."""

    def committed(self, topic: str, partition: int) -> int | None:
        """The offset that the group has committed."""

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """The first record that is not older."""

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset, and the one after the last."""

    def close(self) -> None:
        """Leave the group, and let go."""


class Admin(Protocol):
    """Administers."""

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""

    def topics(self) -> dict[str, int]:
        """All topics, and how many partitions each has."""

    def add_partitions(self, name: str, total: int) -> None:
        """Add partitions to a topic, up to `total`."""

    def config(self, name: str) -> dict[str, str]:
        """All settings of a topic."""

    def configure(self, name: str, config: Mapping[str, str]) -> None:
        """Change settings of a topic."""

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Delete the beginning; the first offset that is left."""

    def groups(self) -> set[str]:
        """The names of all groups."""

    def group(self, name: str) -> Group:
        """One group."""

    def delete_group(self, name: str) -> None:
        """Delete a group and its offsets."""

    def set_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit for a group without members."""

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Return the committed offsets of a group."""

    def transactions(self) -> dict[str, str]:
        """The state of each transactional id."""

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
        """A producer; a transactional one is initialised."""

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
        """A consumer that commits when it is told. Protocol "consumer": that of KIP-848, where the broker assigns."""

    def admin(self, address: str) -> Admin:
        """An admin client."""


def kafka_name(name: str) -> str:
    """`UnknownTopicOrPartitionError`, `_MSG_TIMED_OUT`, ... as `UNKNOWN_TOPIC_OR_PARTITION`, `MSG_TIMED_OUT`, ..."""
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
    """The clients of the quick form, or those of the slow form."""
    return sorted(path.stem.rstrip("_") for path in (_FOLDER / speed).glob("*.py"))


@cache
def load(name: str) -> Client:
    """The client of a name. Importing it may take a while, and warn; `Missing`."""
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
