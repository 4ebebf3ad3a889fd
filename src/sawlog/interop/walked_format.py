"""What the formats have in common whose logs are read as a walk (walking.py): they only say how to write."""

from __future__ import annotations

from collections.abc import Callable

from ..storage import Directory
from .foreign import Damage, Detection
from .layout import Sniffed, detect_below
from .walking import WalkedLog


class WalkedFormat:
    """A format without topics: a directory for each log."""

    def __init__(
        self, name: str, title: str, log: type[WalkedLog], sniff: Callable[[Directory], Sniffed | None]
    ) -> None:
        self.name = name
        self.title = title
        self._log = log
        self._sniff = sniff

    def detect(self, directory: Directory) -> Detection | None:
        """By the names, and by what the first records say."""
        return detect_below(self.name, directory, self._sniff)

    def open(self, directory: Directory, *, damage: Damage = "stop", strict: bool = False) -> WalkedLog:
        """The log in this directory."""
        return self._log(directory, damage=damage, strict=strict)

    def place(self, topic: str, partition: int) -> str:
        """There are no topics: a directory for each log."""
        return f"{topic}-{partition}"
