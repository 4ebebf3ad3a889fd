"""`Probe`: a bucket under test."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..clock import Stopwatch
from .bucket import Bucket

T = TypeVar("T")

FOLDER = "sawlog-selftest/"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is tried."""

    threads: int = 8
    processes: int = 3
    #: Keys of each race, and the time after which no other key is raced for: SeaweedFS lets those who lose wait for
    #: seconds.
    races: int = 40
    race_s: float = 20.0
    #: Objects that are written and then looked for, one after the other.
    rounds: int = 25
    #: More than the 1,000 keys of one page.
    listed: int = 1100
    large_bytes: int = 32 << 20


class Probe:
    """The bucket under test: every request is counted and timed, and what was stored is remembered for its deletion.

    Writes are sent once; reads that fail on their way are repeated."""

    def __init__(self, bucket: Bucket, scale: Scale) -> None:
        self.bucket, self.scale = bucket, scale
        self._once = Bucket(bucket.url, {**bucket.options, "max_retries": "0"}) if self.is_remote else bucket
        self.prefix = f"{FOLDER}{uuid.uuid4().hex}/"
        #: Of every request that was made through this object.
        self.times_ms: list[float] = []
        #: How many others there were: of races.
        self.others = 0
        self._keys: list[str] = []

    def key(self, name: str) -> str:
        """A key of our own, which is deleted in the end."""
        made = f"{self.prefix}{name}"
        self._keys.append(made)
        return made

    def keys(self, name: str, count: int) -> list[str]:
        """Several, in order."""
        return [self.key(f"{name}/{number:06}") for number in range(count)]

    def again(self) -> Bucket:
        """The same bucket, with connections of its own."""
        return self.bucket.again()

    @property
    def requests(self) -> int:
        """How many requests there were so far."""
        return len(self.times_ms) + self.others

    @property
    def is_remote(self) -> bool:
        """Whether requests go through a network."""
        return not self.bucket.url.startswith(("memory:", "file:"))

    def create(self, key: str, data: bytes) -> bool:
        """As `Bucket.create`."""
        return self._timed(lambda: self._once.create(key, data))

    def get_range(self, key: str, start: int, size_bytes: int) -> bytes:
        """As `Bucket.get_range`."""
        return self._timed(lambda: self.bucket.get_range(key, start, size_bytes))

    def put(self, key: str, data: bytes) -> None:
        """As `Bucket.put`."""
        self._timed(lambda: self._once.put(key, data))

    def get(self, key: str) -> bytes | None:
        """As `Bucket.get`."""
        return self._timed(lambda: self.bucket.get(key))

    def list_beside(self, key: str) -> list[str]:
        """The keys in the folder of one."""
        return self.list(key.removeprefix(self.prefix).rpartition("/")[0] + "/")

    def list(self, folder: str, after: str = "") -> list[str]:
        """The keys below a folder, as `Bucket.list` has them."""
        return self._timed(lambda: [entry.key for entry in self.bucket.list(self.prefix + folder, after)])

    def delete(self, key: str) -> None:
        """As `Bucket.delete`."""
        self._timed(lambda: self._once.delete(key))

    def _timed(self, request: Callable[[], T]) -> T:
        watch = Stopwatch()
        try:
            return request()
        finally:
            self.times_ms.append(watch.elapsed_ms)

    def clean_up(self) -> None:
        """Delete everything that may have been stored."""
        if self._keys:
            self.bucket.delete_many(self._keys)
        self._keys = []
        if self.bucket.url.startswith("file://"):
            self._remove_folders(Path(self.bucket.url.removeprefix("file://")))

    def _remove_folders(self, top: Path) -> None:
        """Objects of a directory leave their folders behind."""
        below = sorted((top / self.prefix).rglob("*"), reverse=True)
        for folder in [*below, top / self.prefix, top / FOLDER]:
            with suppress(OSError):  # another test is running there
                folder.rmdir()
