"""A simulated bucket with simulated clocks and processes: equal seeds give equal runs.

Every request to the bucket is a step, and a seeded choice selects the process that makes the next one. A process can be
stopped for any time before any request, or be killed there. Requests fail without an answer, applied or not, or are
applied much later; they are denied; a bit flips in transit; and a create is applied, answered with an error, repeated
by the client library, and then refused because of itself. Time is simulated. The bucket and all processes share one
clock, except for a process whose clock is set wrong on purpose.

Processes are threads of which one runs at a time. `determined` removes every other source of chance from a store:
names, clocks, and threads.
"""

from __future__ import annotations

import errno
import random
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from unittest import mock

from sawlog.errors import StorageError
from sawlog.store.objects import selftest
from sawlog.store.objects.bucket import Bucket, Entry, Unanswered
from sawlog.store.objects.collect import Collector
from sawlog.store.objects.extent_reader import ExtentReader
from sawlog.store.objects.journal import Clocks
from sawlog.store.objects.session import Committer, _Waiting
from sawlog.store.objects.state.commit import Extent

#: Duration of a request.
STEP_S = 0.004


class Killed(BaseException):
    """Raised in a process to end it."""


@dataclass
class Actor:
    """One simulated process."""

    name: str
    thread: threading.Thread
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    #: Time before which the process makes no step.
    until_s: float = 0.0
    is_killed: bool = False
    has_ended: bool = False
    error: BaseException | None = None


@dataclass
class Faults:
    """Probabilities of faults: no answer and not applied, applied, or applied later."""

    lost: float = 0.0
    applied: float = 0.0
    late: float = 0.0
    late_s: float = 10.0
    #: Creates that the client library repeats after they were applied, so that they are refused. Half of the time the
    #: next read of the process is denied.
    repeated: float = 0.0
    #: Requests that are denied, and commits and checkpoints in which a bit flips in transit.
    denied: float = 0.0
    flipped: float = 0.0
    #: Slow answers.
    slow: float = 0.0
    slow_s: float = 3.0
    #: Stops at the critical points, before and after a create or delete: probability and length.
    stalls: float = 0.0
    stalls_s: tuple[float, ...] = (1.0,)


class World:
    """The content of the bucket, the time, and the processes."""

    def __init__(self, seed: int, faults: Faults | None = None) -> None:
        self.random = random.Random(seed)
        self.faults = Faults() if faults is None else faults
        self.now_s = 1_700_000_000.0
        self.objects: dict[str, tuple[bytes, float]] = {}
        #: Creates in flight, with their arrival times.
        self.late: list[tuple[float, str, bytes]] = []
        self.actors: list[Actor] = []
        self.steps = 0
        #: All requests: time, process, operation.
        self.trace: list[str] = []
        #: The creator of each commit, in order.
        self.creators: list[str] = []
        #: The first content of each number: the true log, including collected commits.
        self.history: dict[str, bytes] = {}
        #: Set to ignore the conditions of creates, as some servers do.
        self.is_careless = False
        self._idle = threading.Semaphore(0)
        self._current = threading.local()

    # --- processes

    def start(self, name: str, work: Callable[[], None]) -> Actor:
        """Start a process, which runs when it is its turn."""

        def run() -> None:
            self._current.actor = actor
            actor.go.acquire()
            try:
                if not actor.is_killed:
                    work()
            except Killed:
                pass
            except BaseException as error:
                actor.error = error
            actor.has_ended = True
            self._idle.release()

        actor = Actor(name, threading.Thread(target=run, name=name, daemon=True))
        self.actors.append(actor)
        actor.thread.start()
        return actor

    def actor(self) -> Actor | None:
        """Return the running process; None for the test itself."""
        return getattr(self._current, "actor", None)

    def turn(self) -> None:
        """Called before each request of a process. May let another one run first."""
        actor = self.actor()
        if actor is None:
            self.now_s += STEP_S
            self._arrive()
            return
        self._idle.release()
        actor.go.acquire()
        if actor.is_killed:
            raise Killed

    def sleep(self, seconds: float) -> None:
        """Let the calling process sleep."""
        actor = self.actor()
        if actor is None:
            self.now_s += seconds
            return
        actor.until_s = max(actor.until_s, self.now_s + seconds)
        self.turn()

    def stop(self, actor: Actor, seconds: float) -> None:
        """Stop a process for some time, at its present step."""
        actor.until_s = max(actor.until_s, self.now_s + seconds)

    def kill(self, actor: Actor) -> None:
        """Kill a process at its present step."""
        actor.is_killed = True
        actor.until_s = 0.0

    def step(self) -> bool:
        """Run one process up to its next request. Return False if all have ended."""
        alive = [actor for actor in self.actors if not actor.has_ended]
        if not alive:
            return False
        ready = [actor for actor in alive if actor.until_s <= self.now_s]
        if not ready:
            self.now_s = min(actor.until_s for actor in alive)
            ready = [actor for actor in alive if actor.until_s <= self.now_s]
        self.now_s += STEP_S
        self.steps += 1
        self._arrive()
        chosen = self.random.choice(ready)
        chosen.go.release()
        self._idle.acquire()
        return True

    def end(self) -> None:
        """End all processes."""
        for actor in self.actors:
            self.kill(actor)
        while self.step():
            pass
        for actor in self.actors:
            actor.thread.join(60)

    # --- requests

    def _arrive(self) -> None:
        due = [each for each in self.late if each[0] <= self.now_s]
        self.late = [each for each in self.late if each[0] > self.now_s]
        for _, key, data in due:
            self.create(key, data, "late")

    def create(self, key: str, data: bytes, who: str) -> bool:
        """Create an object at the server."""
        if key in self.objects and not self.is_careless:
            return False
        self.objects[key] = (data, self.now_s)
        if key.startswith("commits/") and key not in self.history:
            self.history[key] = data
            self.creators.append(who)
        return True

    def fails(self) -> str:
        """Decide the fault of a request."""
        point = self.random.random()
        for kind in ("lost", "applied", "late", "repeated", "denied", "flipped"):
            share = getattr(self.faults, kind)
            if point < share:
                return kind
            point -= share
        return ""


class SimulatedBucket(Bucket):
    """The bucket, as one process sees it."""

    def __init__(self, world: World) -> None:
        super().__init__("memory://simulated")
        self._world = world
        self._is_denied = False

    def again(self) -> SimulatedBucket:
        return self

    def _request(self, what: str) -> str:
        self._world.turn()
        actor = self._world.actor()
        self._world.trace.append(f"{self._world.now_s:.3f} {'test' if actor is None else actor.name}: {what}")
        kind = self._world.fails() if self._world.actor() is not None else ""
        if kind == "lost":
            raise Unanswered(errno.EIO, "simulated: not applied")
        if kind == "denied" or self._is_denied:
            self._is_denied = False
            raise StorageError(errno.EACCES, "simulated: denied")
        return kind

    def _stall(self) -> None:
        world = self._world
        if world.actor() is not None and world.random.random() < world.faults.stalls:
            world.sleep(world.random.choice(world.faults.stalls_s))

    def _answer(self, kind: str) -> None:
        if self._world.actor() is not None and self._world.random.random() < 0.2:
            self._world.turn()  # a process may stop between the request and its answer as well
        if self._world.actor() is not None and self._world.random.random() < self._world.faults.slow:
            self._world.sleep(self._world.faults.slow_s)
        if kind == "applied":
            raise Unanswered(errno.EIO, "simulated: applied")

    def create(self, key: str, data: bytes) -> bool:
        """See `Bucket`."""
        self._stall()
        kind = self._request(f"create {key}, {len(data)} bytes")
        actor = self._world.actor()
        if kind == "late":
            arrives = self._world.now_s + self._world.random.uniform(0, self._world.faults.late_s)
            self._world.late.append((arrives, key, data))
            raise Unanswered(errno.EIO, "simulated: on its way")
        made = self._world.create(key, data, "test" if actor is None else actor.name)
        if kind == "repeated":
            self._is_denied = self._world.random.random() < 0.5
            made = self._world.create(key, data, "repeated")
        self._stall()
        self._answer(kind)
        return made

    def put(self, key: str, data: bytes) -> None:
        """See `Bucket`."""
        kind = self._request(f"put {key}, {len(data)} bytes")
        self._world.objects[key] = (bytes(data), self._world.now_s)
        self._answer(kind)

    def get(self, key: str) -> bytes | None:
        """See `Bucket`."""
        kind, found = self._got(key)
        if found is None or kind != "flipped" or not key.startswith(("commits/", "checkpoints/")):
            return found
        flipped = bytearray(found)
        flipped[self._world.random.randrange(len(found))] ^= 1 << self._world.random.randrange(8)
        return bytes(flipped)

    def _got(self, key: str) -> tuple[str, bytes | None]:
        kind = self._request(f"get {key}")
        found = self._world.objects.get(key)
        self._answer(kind)
        return kind, None if found is None else found[0]

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """See `Bucket`. Sequential, so that the seed decides everything."""
        return [self.get(key) for key in keys]

    def get_range(self, key: str, start: int, size_bytes: int) -> bytes:
        """See `Bucket`."""
        _, data = self._got(key)
        if data is None or len(data) < start + size_bytes:
            raise StorageError(errno.ENOENT, f"simulated: {key} has no {size_bytes} bytes from {start} on")
        return data[start : start + size_bytes]

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        """See `Bucket`."""
        kind = self._request(f"list {prefix}")
        found = sorted(key for key in self._world.objects if key.startswith(prefix) and key > after)
        entries = [self._entry(key) for key in found]
        self._answer(kind)
        return iter(entries)

    def _entry(self, key: str) -> Entry:
        data, modified_s = self._world.objects[key]
        return Entry(key, len(data), datetime.fromtimestamp(modified_s, UTC))

    def delete(self, key: str) -> None:
        """See `Bucket`."""
        self._stall()
        kind = self._request(f"delete {key}")
        self._world.objects.pop(key, None)
        self._answer(kind)


class SimulatedClocks(Clocks):
    """Clocks that show the world's time."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now_s(self) -> tuple[float, float]:
        """See `Clocks`."""
        return self._world.now_s, self._world.now_s

    def pause(self, seconds: float) -> None:
        """See `Clocks`."""
        self._world.sleep(seconds)


class InlineCommitter(Committer):
    """A committer in the thread of the caller, because a simulated process has one thread."""

    def submit(self, request, inline=()):  # type: ignore[no-untyped-def]
        """See `Committer`."""
        made = _Waiting(request, inline)
        made.outcome.set_running_or_notify_cancel()
        self._commit([made])
        return made.outcome


class SimulatedTime:
    """Replacement of the module `time` with the world's time."""

    def __init__(self, world: World) -> None:
        self._world = world

    def time(self) -> float:
        """Return seconds since 1970."""
        return self._world.now_s

    def time_ns(self) -> int:
        """Return nanoseconds since 1970."""
        return int(self._world.now_s * 1e9)

    monotonic, monotonic_ns = time, time_ns

    def sleep(self, seconds: float) -> None:
        """See `World`."""
        self._world.sleep(seconds)


class AtOnce:
    """An executor that runs everything in the thread of its caller."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, call: Callable[..., Any], *given: Any) -> Future[Any]:
        """See `Executor`."""
        made: Future[Any] = Future()
        try:
            made.set_result(call(*given))
        except Exception as error:
            made.set_exception(error)
        return made

    def shutdown(self, *_: object, **__: object) -> None:
        """See `Executor`."""


def _fetched_at_once(reader: ExtentReader, run: Sequence[Extent]) -> Future[list[memoryview]]:
    return AtOnce().submit(reader._fetch, run)


@contextmanager
def determined(world: World, seed: int) -> Iterator[None]:
    """Make stores of this process depend on the seed alone: names, clocks and pauses are the world's, and each request
    is made by the process that needs it. The self-test is skipped, because it takes threads."""
    names = random.Random(seed)

    def name() -> uuid.UUID:
        return uuid.UUID(int=names.getrandbits(128), version=4)

    with ExitStack() as stack:
        for patch in (
            mock.patch.object(uuid, "uuid4", name),
            mock.patch("sawlog.clock.time", SimulatedTime(world)),
            mock.patch("sawlog.clock.random", random.Random(seed)),
            mock.patch("sawlog.store.objects.journal.random", random.Random(seed)),
            mock.patch("sawlog.store.objects.session.Committer", InlineCommitter),
            mock.patch("sawlog.store.objects.transaction.ThreadPoolExecutor", AtOnce),
            mock.patch.object(selftest, "check", return_value=None),
            mock.patch.object(Collector, "_each", lambda self, do, keys: [do(key) for key in list(keys)]),
            mock.patch.object(ExtentReader, "_submit", _fetched_at_once),
        ):
            stack.enter_context(patch)
        yield
