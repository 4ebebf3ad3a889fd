"""`ObjectTransaction`: records for several topics and partitions of a store on object storage, in one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Literal

from ...batch.build import encode
from ...batch.inputs import RecordInput
from ...errors import AmbiguousAppend, TransactionAborted, TransactionError
from ..directory.transactions.staging import Part, PlacedOffsets, check_name
from .session import StoreSession, results
from .staging import check_repeated, once_action, stored_under
from .topic import ObjectTopic


class ObjectTransaction:
    """A transaction buffered in memory and committed as one object. Not thread-safe."""

    def __init__(
        self, session: StoreSession, topic_of: Callable[[str], ObjectTopic], name: str | None, sequence: int | None
    ) -> None:
        check_name(name, sequence)
        self._session = session
        self._topic_of = topic_of
        self._name, self._sequence = name, sequence
        self._parts: dict[tuple[str, int], list[RecordInput]] = {}
        self._topics: dict[str, ObjectTopic] = {}
        self._state: Literal["open", "committed", "aborted"] = "open"
        self._placed: PlacedOffsets = {}
        last = None if name is None else stored_under(session, name)
        #: Whether this transaction was stored before: then everything appended to it is ignored.
        self.replayed = last is not None and (last.sequence or 0) >= (sequence or 0)
        #: Set if the commit may be stored but has no name by which a retry would be recognised.
        self._doubt: AmbiguousAppend | None = None

    def append(self, topic: str, value: bytes | None, key: bytes | None = None) -> None:
        """Add one record. Its offset is known after the commit."""
        self.append_many(topic, [(value, key)])

    def append_many(self, topic: str, records: Iterable[RecordInput], partition: int | None = None) -> None:
        """Add records, all of them or none."""
        self._check_open()
        found = self._topics.get(topic) or self._topics.setdefault(topic, self._topic_of(topic))
        given = list(records)
        encode(given)  # reject invalid records early
        for number, each in found.split(given, partition).items():
            self._parts.setdefault((topic, number), []).extend(each)

    def _check_open(self) -> None:
        if self._state == "aborted":
            raise TransactionAborted("the transaction was aborted")
        if self._state == "committed":
            raise TransactionError("the transaction is committed")
        if self._doubt is not None:
            raise AmbiguousAppend(f"the transaction may be stored, and cannot be repeated: {self._doubt}")

    def commit(self) -> PlacedOffsets:
        """Store everything and return the offsets by (topic, partition). Raises `ReplayMismatch` if this name and
        sequence are stored with different records."""
        if self._state == "committed":
            return self._placed
        self._check_open()
        actions: list[dict[str, Any]] = []
        inline: list[bytes] = []
        if self._name is not None:
            actions.append(once_action(self._name, self._sequence, self._given()))
        for (topic, number), records in sorted(self._parts.items()):
            action, batches = self._topics[topic].partition(number).action(encode(records), trusted=True)
            actions.append(action)
            inline += batches
        if actions:
            try:
                self._placed = self._offsets(self._session.submit(actions, inline).result())
            except AmbiguousAppend as error:
                self._doubt = error if self._name is None else None
                raise
        self._state = "committed"
        return self._placed

    def _offsets(self, outcome: Any) -> PlacedOffsets:
        if "no" in outcome and outcome["no"][0] == "Done":
            self.replayed = True
            if self._parts:
                check_repeated(self._session, self._name, self._sequence, self._given())
            return {}
        found: list[Any] = results(outcome)[0 if self._name is None else 1 :]
        return {part: range(*placed) for part, placed in zip(sorted(self._parts), found, strict=True)}

    def _given(self) -> list[Part]:
        """Describe the appended records by partition and count."""
        return [
            Part(topic, self._topics[topic].id, number, len(records), ())
            for (topic, number), records in self._parts.items()
        ]

    def abort(self) -> None:
        """Discard the transaction."""
        if self._state == "open":
            self._state = "aborted"
            self._parts.clear()

    def __enter__(self) -> ObjectTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._state == "open":
            self.commit()
