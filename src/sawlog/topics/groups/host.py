"""`Host`: what groups and consumers need from their store."""

from __future__ import annotations

from typing import Protocol

from ...storage import Directory
from ..topic import Topic


class Host(Protocol):
    """A store, as its groups see it."""

    @property
    def path(self) -> str:
        """The directory, for messages."""

    @property
    def directory(self) -> Directory:
        """Where the files of the groups and of their members are."""

    @property
    def mode(self) -> str:
        """ "w", or "r" if nothing may be changed."""

    def topic(self, name: str) -> Topic:
        """The current topic of that name; `TopicNotFound` if it does not exist."""

    def upgrade(self) -> None:
        """Called before the first change: the store may have an older format."""
