"""`Broker`: a store and everything that the request handlers share: partitions, coordinators, threads, the event loop.
`Server` is its listener. `serve` opens a store, listens, and serves until a signal arrives.

The event loop never blocks on the store. Calls that may block on the disk (opening, locking, lookups, deletion) run in
a thread pool (`run`); calls that may block on another process run in a thread of their own (`ask`). Produced batches
are written immediately and acknowledged by a callback (`later`).
"""

from __future__ import annotations

import asyncio
import base64
import logging
import signal
import threading
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from os import PathLike
from typing import Any, ParamSpec, TypeVar

from ..display import counted
from ..errors import LogClosed, StorageFull
from ..storage.system import allow_more_descriptors, most_descriptors
from ..store.base import Store, Topic
from ..store.opening import open_store
from ..store.serving import StoreService
from .config import Address, BrokerConfig
from .connection import ClientConnection
from .groups.coordinator import Coordinator
from .handlers import (  # noqa: F401  the modules register their handlers
    HANDLERS,
    Answer,
    Context,
    Handler,
    admin,
    fetch,
    groups,
    metadata,
    produce,
    security,
    transactions,
)
from .limits import ConnectionMonitor, Limits
from .membership import ClusterMembership
from .metrics import DiskSpace, Metrics
from .partitions import Partitions
from .security.authentication import Authenticator
from .security.authorizer import Authorizer, StoredAcls
from .security.tls import TlsListener, load_context
from .transactions import TransactionCoordinator
from .wire import BY_KEY, Body, Key, RequestHeader

_P = ParamSpec("_P")
_T = TypeVar("_T")

_logger = logging.getLogger("sawlog.broker")

#: Grace period of a stop for an unresponsive process.
_PATIENCE_S = 1.0
#: Highest version offered, where a later one is implemented but would promise a feature that is missing.
_HIGHEST = {Key.END_TXN: 4}  # version 5 implies transaction.version 2


class Broker:
    """A store and its clients. Methods belong to the event loop's thread unless they say otherwise."""

    def __init__(self, store: StoreService, config: BrokerConfig) -> None:
        self.store = store
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.cluster_id = config.cluster_id or base64.urlsafe_b64encode(uuid.UUID(store.id).bytes).decode().rstrip("=")
        self.metrics = Metrics()
        self.limits = Limits(config, self.metrics, self.loop, most_descriptors())
        self.disk_space = DiskSpace(store.free_bytes, self.loop.time)
        self.partitions = Partitions(self)
        self.authorizer = Authorizer(
            StoredAcls(store.registry),
            self.run,
            config.super_users,
            allow_if_no_acl=config.allow_everyone_if_no_acl_found,
        )
        self.handlers = dict(HANDLERS)
        self.versions = {key: _offered(key) for key in HANDLERS}
        #: `versions` in the form of ApiVersions.
        self.supported = [
            {"api_key": key, "min_version": versions[0], "max_version": versions[-1]}
            for key, versions in sorted(self.versions.items())
        ]
        self.authenticator = Authenticator(self)
        self.server = Server(self)
        self.nodes = ClusterMembership(self)
        self.groups = Coordinator(self)
        self.transactions = TransactionCoordinator(self)
        self.is_stopping = False
        #: Number of logs recovered at startup.
        self.recovered = 0
        self._threads = ThreadPoolExecutor(config.threads, thread_name_prefix="sawlog-broker")
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_called = False
        #: Pending calls of `ask`.
        self._asked: set[asyncio.Future[Any]] = set()
        self._has_given_up = False
        self._refreshing: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None

    # --- lifecycle

    async def start(self) -> None:
        """Recover logs that were not closed cleanly, then start to serve clients."""
        self.recovered = await self.run(self._recover)
        await self.transactions.start()
        await self.authorizer.refresh()
        await self.authenticator.start()
        await self.nodes.join()
        await self.server.start()
        await self.nodes.start()
        self._refreshing = asyncio.create_task(self._refresh())

    async def stop(self) -> None:
        """Finish the requests in progress, then stop. The store stays open."""
        self.is_stopping = True
        self.server.refuse_new()
        await self.nodes.stop()
        if self._refreshing is not None:
            self._refreshing.cancel()
            with suppress(asyncio.CancelledError):
                await self._refreshing
        self.limits.budget.lift_limit()
        self.partitions.wake()  # pending fetches return what there is
        self.groups.stop()  # pending joins return an error
        giving_up = self.loop.call_later(_PATIENCE_S, self._give_up)
        await self.server.stop(self.config.stop_timeout_s)
        giving_up.cancel()
        await self.transactions.close()
        await self.groups.close()
        self.partitions.close()
        self.limits.rate_limited_log.end()
        self._threads.shutdown(wait=True)

    def _recover(self) -> int:
        """Lock and recover the logs that a killed process left; return their number. Runs in a thread."""
        count = 0
        for topic, number, report in self.store.recover():
            count += 1
            _logger.log(logging.INFO if report else logging.ERROR, "recovered %s/%s: %s", topic, number, report)
        return count

    @property
    def listening(self) -> Address:
        return self.server.listening

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(self.config.refresh_s)
            await self.authorizer.refresh()
            await self.partitions.refresh()
            await self.authenticator.refresh()

    @property
    def node_id(self) -> int:
        return self.nodes.id

    def reload(self) -> None:
        """Reload the certificate soon."""
        self._reloading = asyncio.create_task(self.authenticator.refresh(force=True))

    # --- threads

    def run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_T]:
        """Run a call that may block on the disk in the thread pool."""
        made = self.loop.run_in_executor(self._threads, lambda: call(*args, **kwargs))
        made.add_done_callback(self._note_full_disk)
        return made

    def _note_full_disk(self, done: asyncio.Future[Any]) -> None:
        """Record a lack of disk space, however the caller handles the error."""
        error = None if done.cancelled() else done.exception()
        if isinstance(error, StorageFull):
            self.disk_space.lacks("the store", error)

    def ask(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_T]:
        """Run a call that may block on another process in its own thread, so that a process that hangs delays no other
        call. A stop gives up after a short while (`_give_up`)."""
        if self._has_given_up:
            raise LogClosed("the broker is stopping")
        made: asyncio.Future[_T] = self.loop.create_future()
        self._asked.add(made)
        made.add_done_callback(self._asked.discard)

        def work() -> None:
            try:
                found = call(*args, **kwargs)
            except BaseException as error:
                self.later(_end, made, None, error)
            else:
                self.later(_end, made, found, None)

        threading.Thread(target=work, name="sawlog-broker-asking", daemon=True).start()
        return made

    def _give_up(self) -> None:
        """Fail the calls that still wait for another process."""
        self._has_given_up = True
        for each in list(self._asked):
            _end(each, None, LogClosed("the broker stops, and another process keeps the partition"))

    def later(self, call: Callable[..., None], *args: Any) -> None:
        """Run a call in the event loop soon. Thread-safe; many calls share one wake-up."""
        self._calls.append((call, args))
        if not self._is_called:
            self._is_called = True
            try:
                self.loop.call_soon_threadsafe(self._call_all)
            except RuntimeError:
                pass  # the loop is closed

    def _call_all(self) -> None:
        self._is_called = False
        while self._calls:
            call, args = self._calls.popleft()
            call(*args)

    # --- topics

    async def create_topic(
        self, name: str, partitions: int | None = None, given: Mapping[str, object] | None = None
    ) -> Topic:
        """Create a topic, with this broker's defaults."""
        count = self.config.default_partitions if partitions is None else partitions
        made = {**(self.config.topic_defaults or {}), **(given or {})}
        topic = await self.run(self.store.create_topic, name, count, made)
        _logger.info("created topic %s with %s", name, counted(count, "partition"))
        self.partitions.remember(topic)
        return topic

    async def delete_topic(self, name: str) -> None:
        self.partitions.drop(name)
        await self.run(self.store.delete_topic, name)
        _logger.info("deleted topic %s", name)

    async def alter_topic(self, name: str, changes: Mapping[str, object]) -> None:
        """Change settings; None resets one. Reopen the topic's logs if their configuration changed."""
        before = (await self.partitions.topic(name)).config
        topic = await self.run(self.store.alter_topic, name, None, changes)
        if topic.config != before:
            self.partitions.close_logs(name)
            await self.run(self.store.reopen, name)
        await self.partitions.refresh(name)


def _end(future: asyncio.Future[Any], found: Any, error: BaseException | None) -> None:
    """Resolve a future unless it is done already."""
    if future.done():
        return
    if error is None:
        future.set_result(found)
    else:
        future.set_exception(error)


def _offered(key: int) -> range:
    known = BY_KEY[key].versions
    return range(known[0], min(known[-1], _HIGHEST.get(Key(key), known[-1])) + 1)


# --- the listener


#: Grace period of a stop for a client that does not read.
_READING_S = 1.0
#: Replaces a handler; see `sawlog.testing.Broker`.
Fault = Callable[[ClientConnection, Context, Handler, Body], Answer]


class Server:
    """One listener of a broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._listener: asyncio.Server | TlsListener | None = None
        self._connections: set[ClientConnection] = set()
        self._watch = ConnectionMonitor(broker.limits, lambda: self._connections)
        self._watching: asyncio.Task[None] | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._listening = broker.config.listen
        #: Returns a fault to inject for a request; for tests of clients.
        self.fault_for: Callable[[RequestHeader, Body], Fault | None] = lambda header, request: None

    async def start(self) -> None:
        wanted, tls = self.broker.config.listen, self.broker.authenticator.tls
        if tls is not None:
            self._listener = secure = TlsListener(
                tls, lambda: ClientConnection(self), self._refused, timeout_s=self.broker.config.handshake_timeout_s
            )
            port = await secure.start(wanted.host, wanted.port)
        else:
            self._listener = plain = await self.broker.loop.create_server(
                lambda: ClientConnection(self), wanted.host, wanted.port, backlog=1024
            )
            port = plain.sockets[0].getsockname()[1]
        self._watching = asyncio.create_task(self._watch.run())
        self._listening = Address(wanted.host, port)

    def _refused(self, reason: str) -> None:
        self.broker.metrics.rejected[reason] += 1

    @property
    def listening(self) -> Address:
        return self._listening

    @property
    def advertised(self) -> Address:
        """Address that clients should connect to."""
        told = self.broker.config.advertise
        return self._listening if told is None else Address(told.host, told.port or self._listening.port)

    @property
    def in_flight(self) -> int:
        """Number of requests in progress."""
        return sum(each.in_flight for each in self._connections)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of requests and responses in memory."""
        return sum(each.in_flight_bytes for each in self._connections)

    def opened(self, connection: ClientConnection) -> None:
        self._connections.add(connection)
        self._empty.clear()
        self.broker.metrics.connections += 1
        self.broker.metrics.connections_total += 1

    def closed(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        self.broker.metrics.connections -= 1
        if not self._connections:
            self._empty.set()

    def refuse_new(self) -> None:
        """Stop listening. Existing connections stay open."""
        if self._listener is not None:
            self._listener.close()

    async def stop(self, timeout_s: float) -> None:
        """Finish the requests in progress, then close all connections. Clients that stop reading their responses are
        dropped."""
        self.refuse_new()
        for connection in list(self._connections):
            connection.end()
        dropping = asyncio.create_task(self._drop_idle())
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            self.drop_all()
        finally:
            dropping.cancel()
            if self._watching is not None:
                self._watching.cancel()

    async def _drop_idle(self) -> None:
        """Drop connections that have not read any of their responses since the last check."""
        while True:
            before = {each: each.unread_bytes for each in self._connections}
            await asyncio.sleep(_READING_S)
            for connection, size in before.items():
                if size and connection.unread_bytes == size:
                    connection.abort()

    def drop_all(self) -> None:
        """Abort every connection, as a network failure would."""
        for connection in list(self._connections):
            connection.abort()


# --- running a broker


#: Called when the broker is ready, with the broker and the address of its metrics.
Ready = Callable[[Broker, Address | None], None]


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's if installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def serve(data: str | PathLike[str], config: BrokerConfig, ready: Ready) -> None:
    """Serve a store until SIGTERM or SIGINT; then finish the requests in progress and close the store."""
    allow_more_descriptors()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(data, config, ready))


async def _serve(data: str | PathLike[str], config: BrokerConfig, ready: Ready) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, ended.set)
    async with running(data, config, ready) as (broker, _):
        if broker.authenticator.tls is not None:
            loop.add_signal_handler(signal.SIGHUP, broker.reload)
        await ended.wait()


def _opened(data: str | PathLike[str], config: BrokerConfig) -> Store:
    """Open the store in a directory or at an address."""
    return open_store(data, maintenance_interval_s=config.maintenance_interval_s)


@asynccontextmanager
async def running(
    data: str | PathLike[str], config: BrokerConfig, ready: Ready = lambda broker, metrics: None
) -> AsyncIterator[tuple[Broker, Store]]:
    """Run a broker, and yield it with the store that it serves."""
    if config.metrics is not None:
        from .monitoring import HttpServer  # needs prometheus-client: fail before opening the store
    if config.tls_certificate is not None:
        await asyncio.to_thread(load_context, config)  # fail on invalid files before opening the store
    async with AsyncExitStack() as stack:
        store = await asyncio.to_thread(_opened, data, config)
        stack.push_async_callback(asyncio.to_thread, store.close)
        service = store._serve()
        stack.push_async_callback(asyncio.to_thread, service.close)
        broker = Broker(service, config)
        stack.push_async_callback(broker.stop)
        await broker.start()
        metrics = None
        if config.metrics is not None:
            http = HttpServer(broker, config.metrics)
            stack.push_async_callback(http.stop)
            await http.start()
            metrics = http.address
        ready(broker, metrics)
        yield broker, store
