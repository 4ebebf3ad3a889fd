"""Opens the logs that a command works on: the partitions of a topic, of all topics, or one log directory.

`reading` opens them for reading, which takes no lock and writes nothing, so commands that only read can run while a
writer is running. Everything opened here is closed when the command ends, also if it fails.
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
class NamedLog:
    """One log and its name: the topic and partition, or the directory's name and 0."""

    topic: str
    partition: int
    log: Log

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"{self.topic}/{self.partition}"


@contextmanager
def open_store(data: Path, mode: Literal["w", "r"] = "r", *, create: bool = False) -> Iterator[Store]:
    """Open the store in that directory, by default for reading. A short command runs no upkeep."""
    from ..topics.store import Store

    if mode == "w" and not create:
        Store.open(data, mode="r").close()  # a mistyped directory must not become a store
    with Store.open(data, mode=mode, upkeep_interval_s=None) as store:
        yield store


def check_place(data: Path | None, log: Path | None, topic: str | None) -> None:
    """Check that a store or a log is given. A log takes precedence over a store from the environment."""
    if data is None and log is None:
        raise typer.BadParameter("give the store with -d DIR, or the directory of one partition with --log DIR")
    if log is not None and topic is not None:
        raise typer.BadParameter("a topic needs a store: give -d DIR, or use --log without a topic")


@contextmanager
def reading(
    data: Path | None, log: Path | None, topic: str | None = None, partitions: Sequence[int] | None = None
) -> Iterator[list[NamedLog]]:
    """Open the logs that the command line names for reading."""
    check_place(data, log, topic)
    if log is not None:
        with Log.open(log, mode="r") as found:
            yield [NamedLog(log.resolve().name, 0, found)]
        return
    assert data is not None
    with open_store(data) as store:
        names = store.topics() if topic is None else [topic]
        yield [place for name in names for place in places_of(store.topic(name), partitions)]


def places_of(topic: Topic, partitions: Sequence[int] | None = None) -> list[NamedLog]:
    """Open the selected partitions of a topic."""
    return [NamedLog(topic.name, number, _log_of(topic, number)) for number in chosen(topic, partitions)]


def _log_of(topic: Topic, number: int) -> Log:
    """Return the log of a partition. It was created with the topic, so a missing one is data loss, not a typing
    error."""
    try:
        return topic.partition(number)
    except LogNotFound as error:
        raise CorruptFile(
            f"the files of partition {number} of {topic.name} are missing ({error.strerror}); restore them, or "
            f"`sawlog repair {topic.name} -p {number} --apply` makes it usable without its records"
        ) from error


def chosen(topic: Topic, partitions: Sequence[int] | None) -> list[int]:
    """Return the selected partitions, or all if none was given."""
    for number in partitions or ():
        if number >= topic.partitions:
            raise typer.BadParameter(
                f"{topic.name} has partitions 0 to {topic.partitions - 1}, not {number}", param_hint="--partition"
            )
    return sorted(set(partitions)) if partitions else list(range(topic.partitions))
