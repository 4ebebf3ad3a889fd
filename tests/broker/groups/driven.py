"""A clock that the test drives, and clients of the classic protocol that it moves by hand."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from sawlog.broker.config import BrokerConfig
from sawlog.broker.groups.classic_group import ClassicGroup
from sawlog.broker.groups.members import JoinRequest, JoinResponse, SyncRequest, SyncResponse, encode_subscription
from sawlog.broker.wire import ErrorCode

SESSION_MS, REBALANCE_MS = 10_000, 60_000
TOPICS = encode_subscription(["orders"])


class Timer:
    """A call that is due."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Clock:
    """Time passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._due: list[tuple[float, int, Timer]] = []
        self._numbers = count()

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        made = Timer(callback)
        heapq.heappush(self._due, (self.now + delay, next(self._numbers), made))
        return made

    def advance(self, seconds: float) -> None:
        """Advance the clock, and make the calls that are due in order."""
        until = self.now + seconds
        while self._due and self._due[0][0] <= until:
            at, _, timer = heapq.heappop(self._due)
            self.now = max(self.now, at)
            if timer.call is not None:
                timer.call()
        self.now = until

    @property
    def pending(self) -> int:
        """Number of scheduled calls."""
        return sum(timer.call is not None for _, _, timer in self._due)


def protocols(*names: str, subscription: bytes = TOPICS) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, subscription) for name in names or ("range",))


class Client:
    """A member as its client sees it."""

    def __init__(
        self, group: ClassicGroup, name: str = "client", *, instance: str | None = None, **options: Any
    ) -> None:
        self.group = group
        self.name = name
        self.instance = instance
        self.id = ""
        self.generation = -1
        self.leads = False
        #: The last responses.
        self.joined: JoinResponse | None = None
        self.synced: SyncResponse | None = None
        self.waits = 0
        self.answer: Callable[[JoinResponse], None] = print
        self._requests = 0
        self.options = {
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": protocols(),
            **options,
        }

    def join(self, **changes: Any) -> JoinResponse | None:
        """Join, with the id that it was told if it was asked to come back with one. None if that waits."""
        self.joined, self.synced = None, None
        self._ask(**changes)
        if self.joined is not None and self._was_told(self.joined) is ErrorCode.MEMBER_ID_REQUIRED:
            self.joined = None
            self._ask(**changes)
        return self.joined

    def _ask(self, **changes: Any) -> None:
        self.options.update(changes)
        self.answer = self._awaited(self._on_joined)
        self.group.join(self.request(), self.answer)

    def request(self) -> JoinRequest:
        return JoinRequest(self.id, self.instance, self.name, "/127.0.0.1", **self.options)

    def _awaited(self, call: Callable[[Any], None]) -> Callable[[Any], None]:
        """A function that is called once. The answer to a request that the client gave up is dropped."""
        self._requests += 1
        self.waits += 1
        number, answers = self._requests, [None]

        def answer(given: Any) -> None:
            answers.pop()  # fails if it is answered twice
            self.waits -= 1
            if number == self._requests:
                call(given)

        return answer

    def _on_joined(self, answer: JoinResponse) -> None:
        self.joined = answer
        if answer.member_id and answer.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.id = answer.member_id
        if answer.error is ErrorCode.NONE:
            self.generation, self.leads = answer.generation, answer.leader == answer.member_id

    @staticmethod
    def _was_told(answer: JoinResponse) -> ErrorCode:
        return answer.error

    def sync(self, assignments: Mapping[str, bytes] | None = None, **changes: Any) -> SyncResponse | None:
        """Ask for the assignment; None if that waits."""
        self.synced = None
        given = {
            "protocol_type": None,
            "protocol": None,
            "generation": self.generation,
            "member_id": self.id,
            **changes,
        }
        self.group.sync(
            SyncRequest(instance_id=self.instance, assignments=dict(assignments or {}), **given),
            self._awaited(self._on_synced),
        )
        return self.synced

    def _on_synced(self, answer: SyncResponse) -> None:
        self.synced = answer

    def heartbeat(self) -> ErrorCode:
        return self.group.heartbeat(self.id, self.instance, self.generation)

    def leave(self) -> ErrorCode:
        return self.group.leave([(self.id, self.instance)])[0]

    def commit(self) -> ErrorCode:
        return self.group.commit_error(self.id, self.instance, self.generation)

    @property
    def error(self) -> ErrorCode | None:
        """Of the last JoinGroup request; None while it waits."""
        return None if self.joined is None else self.joined.error

    @property
    def sync_error(self) -> ErrorCode | None:
        """Of the last SyncGroup request; None while it waits."""
        return None if self.synced is None else self.synced.error

    @property
    def assignment(self) -> bytes | None:
        return self.synced.assignment if self.synced is not None and self.synced.error is ErrorCode.NONE else None


def settle(*clients: Client) -> None:
    """Send SyncGroup for clients that know the current generation."""
    leader = next(each for each in clients if each.leads and each.generation == each.group.generation)
    for each in clients:
        if each is not leader:
            each.sync()
    leader.sync({each.id: each.name.encode() for each in clients})


def make_group(clock: Clock, **settings: int) -> ClassicGroup:
    return ClassicGroup("billing", clock, BrokerConfig(**settings))
