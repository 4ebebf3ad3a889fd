"""Types of what programs use of the kernel, for type checkers and editors: the kernel itself declares C types."""

from collections.abc import Iterable
from typing import final

@final
class Record:
    """One record. Immutable, comparable, hashable."""

    @property
    def offset(self) -> int:
        """Its number in its partition; -1: none."""
    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970; -1: none."""
    @property
    def timestamp_type(self) -> int:
        """0 where the producer set the time, 1 where the log did."""
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...
    @property
    def topic(self) -> str | None:
        """Where it was read; None if not from a topic."""
    @property
    def partition(self) -> int:
        """Where it was read; -1 if not from a topic."""
    def __init__(
        self,
        value: bytes | bytearray | memoryview | None = None,
        key: bytes | bytearray | memoryview | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp: int | None = None,
        offset: int = -1,
        timestamp_type: int = 0,
        topic: str | None = None,
        partition: int = -1,
    ) -> None: ...
    def __hash__(self) -> int: ...
    def __eq__(self, other: object) -> bool: ...

def placed(record: Record, topic: str | None, partition: int) -> Record:
    """The same record, with the place where it was read."""
