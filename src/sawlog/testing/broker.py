"""`Broker`: a real broker for tests of programs that use Kafka, without a container, Java or an external network.

```python
from sawlog.testing import Broker

with Broker(partitions=2) as broker:              # on a free port, in a temporary directory
    producer = Producer({"bootstrap.servers": broker.address})
    ...
    assert [record.value for record in broker.records("orders")] == [b"one", b"two"]

    broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)    # clients should retry
    broker.faults.drop("Produce", after=True)     # stored, but the acknowledgement is lost
    broker.faults.delay("Fetch", seconds=0.5)
    broker.reset()                                # empty again, same address
```

It is the broker of `sawlog serve`, in a thread of this process, so it starts within a fraction of a second. By default
its topics do not wait for the disk (`durability` "os"). The pytest fixtures are `sawlog_broker` (one per test) and
`sawlog_broker_session` (one per session, which you reset).
"""

from __future__ import annotations

import asyncio
import inspect
import math
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar, cast

from ..batch.kernel import Record
from ..broker.broker import Broker as _Broker
from ..broker.broker import Fault, new_loop, running
from ..broker.config import Address, BrokerConfig, changed
from ..broker.connection import ClientConnection
from ..broker.handlers import Answer, Context, Handler, refusal
from ..broker.security.credentials import MECHANISMS, MIN_ITERATIONS, Salted, StoredUsers
from ..broker.wire import BY_KEY, Body, ErrorCode, RequestHeader
from ..errors import InvalidConfig
from ..store.directory.store import DirectoryStore
from ..store.directory.topic import DirectoryTopic

_T = TypeVar("_T")

#: Number of requests that `Broker.requests` keeps.
_REMEMBERED = 10_000
_START_S = 30.0


class Request(NamedTuple):
    """A request that a client sent."""

    api: str
    version: int
    client_id: str | None


@dataclass(slots=True)
class _Rule:
    """A fault for some requests of an API."""

    api: str
    act: Fault
    #: First request that the rule applies to, counted from now, and the number of requests.
    nth: int
    times: int | None
    seen: int = 0

    def matches(self, api: str) -> bool:
        if api != self.api:
            return False
        self.seen += 1
        return self.seen >= self.nth and (self.times is None or self.seen < self.nth + self.times)


@dataclass(slots=True)
class Faults:
    """Faults that a broker injects on demand. `api` is Kafka's name of the API, such as "Produce" or "JoinGroup"; `nth`
    counts its requests from now, starting at 1; `times=None` affects all later ones."""

    _rules: list[_Rule] = field(default_factory=list)

    def delay(self, api: str, seconds: float, *, nth: int = 1, times: int | None = 1) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
            raise InvalidConfig(f"seconds must be a number, at least 0, not {seconds!r}")

        async def act(connection: ClientConnection, context: Context, handler: Handler, request: Body) -> Body | None:
            await asyncio.sleep(seconds)
            return await _result(handler(context, request))

        self._add(api, act, nth, times)

    def drop(self, api: str, *, after: bool = False, nth: int = 1, times: int | None = 1) -> None:
        """Drop the connection instead of responding; with `after`, only once the request has taken effect."""

        async def act(connection: ClientConnection, context: Context, handler: Handler, request: Body) -> Body | None:
            if after:
                await _result(handler(context, request))
            connection.abort()
            return None

        self._add(api, act, nth, times)

    def fail(self, api: str, error: str | int, *, nth: int = 1, times: int | None = 1) -> None:
        """Respond with an error, given by Kafka's name or code, without executing the request."""
        try:
            code = ErrorCode[error] if isinstance(error, str) else ErrorCode(error)
        except (KeyError, ValueError):
            raise InvalidConfig(f"Kafka has no error {error!r}; an example is NOT_LEADER_OR_FOLLOWER") from None

        def act(connection: ClientConnection, context: Context, handler: Handler, request: Body) -> Answer:
            return refusal(context.header.api_key, request, code)

        self._add(api, act, nth, times)

    def clear(self) -> None:
        self._rules.clear()

    def _add(self, api: str, act: Fault, nth: int, times: int | None) -> None:
        if api not in {each.name for each in BY_KEY.values()}:
            raise InvalidConfig(f"no API {api!r}; examples are Produce, Fetch, Metadata, JoinGroup, OffsetCommit")
        for name, number in (("nth", nth), ("times", 1 if times is None else times)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                allowed = " or None (all from then on)" if name == "times" else ""
                raise InvalidConfig(f"{name} must be an integer, at least 1{allowed}, not {number!r}")
        self._rules.append(_Rule(api, act, nth, times))

    def for_request(self, api: str) -> Fault | None:
        """Return the action for this request: that of the first matching rule."""
        found = [rule for rule in list(self._rules) if rule.matches(api)]
        return found[0].act if found else None


async def _result(answer: Answer) -> Body | None:
    if inspect.isawaitable(answer):
        return await answer
    return answer


class Broker:
    """A broker in a thread. Use it as a context manager, or call `start` and `stop`."""

    def __init__(
        self, *, partitions: int = 1, directory: str | None = None, durability: str = "os", **settings: Any
    ) -> None:
        """Configure a broker without starting it. `partitions` is the partition count of automatically created topics.
        A store in `directory` outlives the broker; without it, the store is temporary. `settings` are those of
        `sawlog serve`, such as `auto_create_topics=False` or `sasl_mechanisms=["SCRAM-SHA-256"]` (see `add_user`)."""
        defaults: dict[str, Any] = {
            "listen": Address("127.0.0.1", 0),
            "default_partitions": partitions,
            "topic_defaults": {"durability": durability},
            "maintenance_interval_s": None,
            "group_min_session_timeout_ms": 100,  # lets a test observe the eviction of a member
            "cluster_id": "sawlog-testing",  # kept by a reset, because clients warn when it changes
        }
        self._config = changed(BrokerConfig(), {**defaults, **settings})
        self._directory = directory
        self._temporary: str | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._broker: _Broker | None = None
        self._store: DirectoryStore | None = None
        self._end: asyncio.Event | None = None
        self._started = threading.Event()
        self._error: BaseException | None = None
        #: Faults to inject.
        self.faults = Faults()
        #: Requests received, oldest first.
        self.requests: deque[Request] = deque(maxlen=_REMEMBERED)

    # --- life

    def start(self) -> Broker:
        """Start the broker and return when it accepts requests."""
        if self._thread is not None:
            return self
        if self._directory is None and self._temporary is None:
            self._temporary = tempfile.mkdtemp(prefix="sawlog-broker-")
        self._started.clear()
        self._error = None
        self._thread = threading.Thread(target=self._run, name="sawlog-test-broker", daemon=True)
        self._thread.start()
        if not self._started.wait(_START_S):
            raise TimeoutError(f"the broker did not start within {_START_S:.0f} s")
        self._raise_error()
        return self

    def _raise_error(self) -> None:
        """Raise the error that kept the broker from starting, if any."""
        if self._error is not None:
            self._halt()
            self._discard()
            raise self._error

    def stop(self) -> None:
        """Stop the broker cleanly. Removes a temporary store."""
        self._halt()
        self._discard()

    def restart(self) -> None:
        """Restart the broker with the same store and address. Clients must reconnect."""
        address = self.listening
        self._halt()
        self._config = replace(self._config, listen=address)
        self.start()

    def reset(self) -> None:
        """Remove all topics, groups, faults and requests, and keep the address. Clients must reconnect."""
        address = self.listening
        if self._directory is not None:
            raise InvalidConfig(f"only a temporary store can be reset, not {self._directory}")
        self.stop()
        self.faults.clear()
        self.requests.clear()
        self._config = replace(self._config, listen=address)
        self.start()

    def _halt(self) -> None:
        if self._thread is None:
            return
        if self._loop is not None and self._end is not None:
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._thread = None

    def _discard(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._broker = self._store = self._loop = self._end = None
            self._started.set()

    async def _serve(self) -> None:
        async with running(self.directory, self._config) as (broker, store):
            self._store = cast(DirectoryStore, store)
            broker.server.fault_for = self._fault_for
            self._loop, self._broker, self._end = broker.loop, broker, asyncio.Event()
            self._started.set()
            await self._end.wait()

    def _fault_for(self, header: RequestHeader, request: Body) -> Fault | None:
        api = BY_KEY[header.api_key].name
        self.requests.append(Request(api, header.version, header.client_id))
        return self.faults.for_request(api)

    # --- state

    @property
    def listening(self) -> Address:
        """Address that the broker listens on."""
        return self._live().listening

    @property
    def address(self) -> str:
        """`HOST:PORT`, for a client's `bootstrap.servers`."""
        return str(self.listening)

    @property
    def directory(self) -> str:
        """Directory of the store."""
        found = self._directory or self._temporary
        assert found is not None
        return found

    @property
    def store(self) -> DirectoryStore:
        """The store that the broker serves, for direct access."""
        self._live()
        assert self._store is not None
        return self._store

    def create_topic(self, name: str, partitions: int | None = None, **settings: object) -> DirectoryTopic:
        """Create a topic, as a client would."""
        given = {key.replace("_", "."): value for key, value in settings.items()}
        broker = self._live()
        self._call(broker.create_topic(name, partitions, given))
        return self.store.topic(name)

    def add_user(self, name: str, password: str) -> None:
        """Add a user who can connect immediately, for brokers with `sasl_mechanisms`."""
        broker = self._live()
        salted = [Salted.new(each, password, MIN_ITERATIONS) for each in MECHANISMS.values()]
        StoredUsers(broker.store.registry).put(name, salted)
        self._call(broker.authenticator.refresh())

    def records(self, topic: str) -> list[Record]:
        """Return the records of a topic, partition by partition, as a consumer would receive them."""
        return list(self.store.topic(topic).scan())

    def drop_connections(self) -> None:
        """Drop every connection, as a network failure would."""

        async def drop() -> None:
            self._live().server.drop_all()

        self._call(drop())

    def _live(self) -> _Broker:
        if self._broker is None:
            raise InvalidConfig("the broker is not running: use it as a context manager, or call start()")
        return self._broker

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
