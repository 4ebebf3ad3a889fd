"""Which logs a command works on: the partitions of a topic, of all topics, or one directory that holds a log.

`reading` opens them for reading, which takes no lock and writes nothing, so that every command that only looks may run
beside a writer. Whatever is opened here is closed when the command ends, also if it fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from ..errors import CorruptFile, LogNotFound
from ..log.log import Log

if TYPE_CHECKING:
    from ..topics.store import Store
    from ..topics.topic import Topic


@dataclass(frozen=True, slots=True)
class Place:
    """One log and what it is called: the topic and the partition, or the directory's name and 0."""

    topic: str
    partition: int
    log: Log

    @property
    def name(self) -> str:
        """As it is written in messages."""
        return f"{self.topic}/{self.partition}"


@contextmanager
def open_store(data: Path, mode: Literal["w", "r"] = "r", *, create: bool = False) -> Iterator[Store]:
    """The store in that directory, for reading unless said otherwise. Upkeep is not the business of a short command."""
    from ..topics.store import Store

    if mode == "w" and not create:
        Store.open(data, mode="r").close()  # a mistyped directory must not become a store
    with Store.open(data, mode=mode, upkeep_interval_s=None) as store:
        yield store


def check_place(data: Path | None, log: Path | None, topic: str | None) -> None:
    """Something is named to work on. A log that is named wins over a store, which may come from the environment."""
    if data is None and log is None:
        raise typer.BadParameter("give the store with -d DIR, or one partition's directory with --log DIR")
    if log is not None and topic is not None:
        raise typer.BadParameter("a topic is in a store: give -d DIR, or leave the topic out with --log")


@contextmanager
def reading(
    data: Path | None, log: Path | None, topic: str | None = None, partitions: Sequence[int] | None = None
) -> Iterator[list[Place]]:
    """The logs that a command line names, open for reading."""
    check_place(data, log, topic)
    if log is not None:
        with Log.open(log, mode="r") as found:
            yield [Place(log.resolve().name, 0, found)]
        return
    assert data is not None
    with open_store(data) as store:
        names = store.topics() if topic is None else [topic]
        yield [place for name in names for place in places_of(store.topic(name), partitions)]


def places_of(topic: Topic, partitions: Sequence[int] | None = None) -> list[Place]:
    """The partitions of a topic that are wanted."""
    return [Place(topic.name, number, _log_of(topic, number)) for number in chosen(topic, partitions)]


def _log_of(topic: Topic, number: int) -> Log:
    """The log of a partition. It was made with the topic, so one that is not there is a loss, not a mistake in
    typing."""
    try:
        return topic.partition(number)
    except LogNotFound as error:
        raise CorruptFile(
            f"the files of partition {number} of {topic.name} are gone ({error.strerror}); restore them, or "
            f"`sawlog repair {topic.name} -p {number} --apply` makes it usable without its records"
        ) from error


def chosen(topic: Topic, partitions: Sequence[int] | None) -> list[int]:
    """The partitions that are wanted, all if none was named."""
    for number in partitions or ():
        if number >= topic.partitions:
            raise typer.BadParameter(
                f"{topic.name} has partitions 0 to {topic.partitions - 1}, not {number}", param_hint="--partition"
            )
    return sorted(set(partitions)) if partitions else list(range(topic.partitions))
