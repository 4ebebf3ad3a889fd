"""`ObjectDeliveries` and `ObjectWorkers`: the delivery state of queues on object storage, and their workers.

An exchange is one commit. If two workers exchange at the same time, one of them has to retry, so the workers of a large
group should take many messages at once (`prefetch`).

Delivery timeouts are wall-clock times, as in a directory: machines whose clocks differ by a second may redeliver a
message a second early. A dead worker keeps its messages until its session or their timeout expires.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...clock import Stopwatch
from ..base import Topic, TopicPartition
from ..groups import Committed, DeliveryStates, Pages, QueueTurn, QueueWorkers, StartPosition, TurnConflict, begin
from ..membership import MemberOptions
from ..queues.options import QueueOptions
from .membership import ObjectMembership, committed_of, topics_by_id
from .session import StoreSession, refused_with, results
from .state import State
from .state.entries import quoted

#: Session timeout of a worker: a heartbeat is a commit.
_SESSION_MS = 45_000
#: Minimum interval between lookups of the live workers.
_LOOK_S = 1.0


class ObjectWorkers(QueueWorkers):
    """The workers of a queue, as one of them sees them."""

    def __init__(self, session: StoreSession, terms: QueueOptions) -> None:
        wanted = MemberOptions(terms.group, terms.worker or "", (terms.topic,), _SESSION_MS, float("inf"))
        self._member = ObjectMembership(session, wanted, works=True)
        self._looked = Stopwatch()
        self._alive: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        """Id of this worker."""
        return self._member.id

    def join(self) -> str:
        """Join the group as a worker and return its id."""
        if self._member.id and not self._member.is_current:
            self._member.leave()
        self._member.join()
        return self._member.id

    def dead(self, workers: set[str], *, now: bool) -> set[str]:
        """Return which of these workers are no longer members, after removing those whose session expired."""
        unknown = workers - self._alive
        if not (unknown or now or self._looked.elapsed_s >= _LOOK_S):
            return set()
        self._looked.restart()
        view = self._member.view()
        if view.silent - {self._member.id}:
            self._member.fence_silent()
            view = self._member.view()
        self._alive = frozenset(view.subscriptions)
        return workers - self._alive

    def beat(self) -> None:
        """Send a heartbeat if one is due."""
        self._member.beat()

    def leave(self) -> None:
        """Leave the group. Safe to call twice."""
        self._member.leave()

    def abandon(self) -> None:
        """Leave without waiting for the commit."""
        self._member.abandon()


class ObjectDeliveries(DeliveryStates):
    """Committed offsets and acknowledgement bitmaps of one group's queues."""

    def __init__(self, session: StoreSession, workers: ObjectWorkers) -> None:
        self._session = session
        self._workers = workers

    def of(self, group: str) -> dict[TopicPartition, Committed]:
        """Return the committed offsets of a group."""
        return self._session.look(lambda state: committed_of(state, group), calm=True)

    def pages(self, group: str) -> dict[TopicPartition, dict[int, bytes]]:
        """Return the acknowledgement bitmaps of a group's queues, by partition and number."""
        return self._session.look(lambda state: pages_of(state, group), calm=True)

    @contextmanager
    def turn(self) -> Iterator[ObjectExchange]:
        """Begin an exchange, which fails if another worker completes one first."""
        yield ObjectExchange(self._session, self._workers)


class ObjectExchange(QueueTurn):
    """An optimistic transaction: reads are of one state, and the write succeeds only if that state is still current."""

    def __init__(self, session: StoreSession, workers: ObjectWorkers) -> None:
        self._session = session
        self._workers = workers
        #: The start of the group in topics that it has not committed in.
        self._begun: dict[TopicPartition, Committed] = {}
        #: The last read: number of the exchange, offsets, bitmaps.
        self._read: tuple[int, dict[TopicPartition, Committed], dict[TopicPartition, dict[int, bytes]]] | None = None

    def _now(self, group: str) -> tuple[int, dict[TopicPartition, Committed], dict[TopicPartition, dict[int, bytes]]]:
        def look(state: State) -> tuple[int, dict[TopicPartition, Committed], dict[TopicPartition, dict[int, bytes]]]:
            count = int(state.entries.get(f"queue/{quoted(group)}", 0))
            return count, committed_of(state, group), pages_of(state, group)

        if self._read is None:
            self._read = self._session.look(look, fresh=True)
        return self._read

    def places(
        self, group: str, topics: Iterable[Topic], start: StartPosition, member: str
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return where a group continues. Its first use of a topic commits the start with the other changes."""
        known = self._session.look(lambda state: state.group(group)) or []
        for topic in topics:
            if topic.name not in known and start != "earliest":
                places = begin(topic, start)
                self._begun |= {
                    partition: Committed.by_member(member, topic.id, *at) for partition, at in places.items()
                }
        return {partition: (each.offset, each.leader_epoch) for partition, each in self.offsets(group).items()}

    def offsets(self, group: str) -> dict[TopicPartition, Committed]:
        """Return the offsets of a group."""
        return {**self._begun, **self._now(group)[1]}

    def pages(self, group: str) -> dict[TopicPartition, dict[int, bytes]]:
        """Return the acknowledgement bitmaps of a group's queues."""
        return self._now(group)[2]

    def write_all(
        self,
        changes: Iterable[tuple[str, Mapping[TopicPartition, Committed | None]]],
        marks: Mapping[str, str] | None = None,
        pages: Mapping[str, Pages] | None = None,
    ) -> None:
        """Commit offsets and bitmaps of one group. Raises `TurnConflict` if there was another exchange since they were
        read."""
        assert not marks
        ((group, offsets),) = changes
        written = {**self._begun, **{share: each for share, each in offsets.items() if each is not None}}
        ids = self._session.look(lambda state: {name: topic for topic, name in topics_by_id(state).items()})
        rows = [
            [each.topic_id, share[1], each.offset, each.metadata, each.leader_epoch] for share, each in written.items()
        ]
        of_pages: list[list[Any]] = [
            [ids[topic], partition, number, None if content is None else base64.b64encode(content).decode()]
            for (topic, partition), of_one in (pages or {}).get(group, {}).items()
            for number, content in of_one.items()
            if topic in ids
        ]
        if not rows and not of_pages:
            return
        action = {
            "do": "exchange",
            "group": group,
            "member": self._workers.id,
            "count": self._now(group)[0],
            "offsets": rows,
            "topics": sorted({share[0] for share in written}),
            "pages": of_pages,
        }
        outcome = self._session.submit([action]).result()
        if refused_with(outcome) == "Changed":
            raise TurnConflict
        results(outcome)


def pages_of(state: State, group: str) -> dict[TopicPartition, dict[int, bytes]]:
    """Return the acknowledgement bitmaps of a group's queues."""
    prefix = f"page/{quoted(group)}/"
    names = state.entries.names(prefix)
    found: dict[TopicPartition, dict[int, bytes]] = {}
    by_id = topics_by_id(state) if names else {}
    for name in names:
        topic, partition, number = name.removeprefix(prefix).split("/")
        if topic in by_id:
            content = base64.b64decode(state.entries.get(name))
            found.setdefault((by_id[topic], int(partition)), {})[int(number)] = content
    return found
