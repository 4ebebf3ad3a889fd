"""What tables are made from: a store, its topics and their partitions. `Store` and `Topic` fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..log.log import Log
from ..storage import Directory
from .history import History


class TableTopic(Protocol):
    """A topic that is read as a table."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def partitions(self) -> int:
        """The number of partitions."""

    @property
    def settings(self) -> Mapping[str, int | float | str]:
        """The settings that were given."""

    def partition(self, number: int) -> Log:
        """One partition."""

    def directory(self, number: int) -> Directory:
        """The directory of one partition; the caller closes it."""

    def history(self) -> History | None:
        """What of the topic is in a table; None if there is none."""


class TableStore(Protocol):
    """Topics by name."""

    def topics(self) -> list[str]:
        """The names of all topics."""

    def topic(self, name: str) -> TableTopic:
        """The topic of that name."""
