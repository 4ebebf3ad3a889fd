"""`Broker`: a store, served. What the handlers share: the store's partitions, the coordinators, threads, the loop.

The engine never waits in the event loop. What may wait for the disk (opening, locking, looking up, deleting) runs in a
few threads (`run`), what waits for another process in one of its own (`ask`); what is produced is written at once and
acknowledged by a callback (`later`).
"""

from __future__ import annotations

import asyncio
import base64
import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from ..display import counted
from ..errors import AmbiguousAppend, LogClosed, StorageFull
from ..storage.system import most_descriptors
from ..store.served import ServedTopic, StoreService
from .config import Address, BrokerConfig
from .coordinator import Coordinator
from .groups.settings import GroupConfig
from .handlers import (
    Handler,
    acls,
    admin,
    authentication,
    cluster,
    commits,
    consumer_groups,
    fetch,
    groups,
    metadata,
    offsets,
    produce,
    transactions,
)
from .limits.limits import Limits
from .metrics import Metrics
from .nodes import Nodes
from .partitions import Partitions
from .room import Room
from .security.api_requirements import guarded
from .security.authorizer import Authority, StoredAcls
from .security.guard import Guard
from .server import Server
from .transactions import TransactionCoordinator
from .wire.apis import BY_KEY, Key

_P = ParamSpec("_P")
_T = TypeVar("_T")

_logger = logging.getLogger("sawlog.broker")

_FAMILIES = (
    metadata,
    authentication,
    produce,
    fetch,
    offsets,
    admin,
    cluster,
    groups,
    commits,
    consumer_groups,
    transactions,
    acls,
)
#: How long a stop waits for another process, which may stand still.
_PATIENCE_S = 1.0
#: Versions that are understood but not offered: a client that knows them would expect what is not here.
_HIGHEST = {Key.END_TXN: 4}  # version 5 belongs to transactions of version 2


class Broker:
    """A store and its clients. All methods belong to the event loop's thread, unless they say otherwise."""

    def __init__(self, store: StoreService, config: BrokerConfig) -> None:
        self.store = store
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.cluster_id = config.cluster_id or base64.urlsafe_b64encode(uuid.UUID(store.id).bytes).decode().rstrip("=")
        self.metrics = Metrics()
        self.limits = Limits(config, self.metrics, self.loop, most_descriptors())
        self.room = Room(store.free_bytes, self.loop.time)
        self.partitions = Partitions(self)
        self._handlers: dict[int, Handler] = {
            key: each for family in _FAMILIES for key, each in family.HANDLERS.items()
        }
        #: The same, each behind a check of what the client may do.
        self._guarded = {key: guarded(key, each) for key, each in self._handlers.items()}
        self.authority = Authority(
            StoredAcls(store.registry),
            self.run,
            config.super_users,
            open_without=config.allow_everyone_if_no_acl_found,
        )
        self.versions = {key: _offered(key) for key in self._handlers}
        #: The same, as ApiVersions lists them.
        self.supported = [
            {"api_key": key, "min_version": versions[0], "max_version": versions[-1]}
            for key, versions in sorted(self.versions.items())
        ]
        self.guard = Guard(self)
        self.server = Server(self)
        self.nodes = Nodes(self)
        self.groups = Coordinator(
            store,
            self.loop,
            GroupConfig.of(config),
            run=self.run,
            address=lambda: str(self.server.advertised),
            coordinates=self.nodes.coordinates_group,
        )
        self.transactions = TransactionCoordinator(self)
        self.is_stopping = False
        #: How many logs had not been closed cleanly when it started.
        self.recovered = 0
        self._threads = ThreadPoolExecutor(config.threads, thread_name_prefix="sawlog-broker")
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_called = False
        #: What other processes were asked for.
        self._asked: set[asyncio.Future[Any]] = set()
        self._has_given_up = False
        self._refreshing: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None

    # --- life

    async def start(self) -> None:
        """Recover what was not closed cleanly, then listen, and answer."""
        self.recovered = await self.run(self._recover)
        await self.transactions.start()
        await self.authority.refresh()
        await self.guard.start()
        await self.nodes.join()
        await self.server.start()
        await self.nodes.start()
        self._refreshing = asyncio.create_task(self._refresh())

    async def stop(self) -> None:
        """Answer what has begun, then end. The store stays open."""
        self.is_stopping = True
        self.server.refuse_new()
        await self.nodes.stop()
        if self._refreshing is not None:
            self._refreshing.cancel()
            with suppress(asyncio.CancelledError):
                await self._refreshing
        self.limits.budget.lift()
        self.partitions.wake()  # fetches that wait are answered with what there is
        self.groups.stop()  # and members that wait for others, with an error
        giving_up = self.loop.call_later(_PATIENCE_S, self._give_up)
        await self.server.stop(self.config.stop_timeout_s)
        giving_up.cancel()
        await self.transactions.close()
        await self.groups.close()
        self.partitions.close()
        self.limits.notices.end()
        self._threads.shutdown(wait=True)

    def _recover(self) -> int:
        """Lock and recover the logs that a killed process has left; how many. In a thread."""
        count = 0
        for topic, number, report in self.store.recover():
            count += 1
            _logger.log(logging.INFO if report else logging.ERROR, "recovered %s/%s: %s", topic, number, report)
        return count

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """What answers each API now: with checks from the first access control rule on."""
        return self._handlers if self.authority.is_open else self._guarded

    @property
    def listening(self) -> Address:
        """Where it listens."""
        return self.server.listening

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(self.config.refresh_s)
            await self.authority.refresh()
            await self.partitions.refresh()
            await self.guard.refresh()

    @property
    def node_id(self) -> int:
        """The id of this broker."""
        return self.nodes.id

    async def catch_up(self) -> None:
        """Learn what other processes have written until now, where that is not seen at once."""
        if not self.store.is_current:
            await self.run(self.store.catch_up)

    def reload(self) -> None:
        """Read the certificate again, soon."""
        self._reloading = asyncio.create_task(self.guard.refresh(force=True))

    # --- threads

    def run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_T]:
        """Call something that may wait for the disk, in a thread."""
        made = self.loop.run_in_executor(self._threads, lambda: call(*args, **kwargs))
        made.add_done_callback(self._look_at)
        return made

    def _look_at(self, done: asyncio.Future[Any]) -> None:
        """Notice that there was no room, whatever the caller makes of the error."""
        error = None if done.cancelled() else done.exception()
        if isinstance(error, StorageFull):
            self.room.lacks("the store", error)

    def ask(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_T]:
        """Call something that may wait for another process, in a thread of its own: however long that process stands
        still, nothing else waits for it, nor does a stop, after a short while (`_give_up`)."""
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
        """Answer those who still wait for another process: nobody knows what that will do."""
        self._has_given_up = True
        for each in list(self._asked):
            _end(each, None, AmbiguousAppend("the broker stops, and the process that holds the partition is silent"))

    def later(self, call: Callable[..., None], *args: Any) -> None:
        """Call something in the event loop, soon; from any thread. Many calls take one wake-up."""
        self._calls.append((call, args))
        if not self._is_called:
            self._is_called = True
            try:
                self.loop.call_soon_threadsafe(self._call_all)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

    def _call_all(self) -> None:
        self._is_called = False
        while self._calls:
            call, args = self._calls.popleft()
            call(*args)

    # --- topics

    async def create_topic(
        self, name: str, partitions: int | None = None, given: Mapping[str, object] | None = None
    ) -> ServedTopic:
        """Create a topic, with this broker's defaults where nothing is given."""
        count = self.config.default_partitions if partitions is None else partitions
        made = {**(self.config.topic_defaults or {}), **(given or {})}
        topic = await self.run(self.store.create_topic, name, count, made)
        _logger.info("created topic %s with %s", name, counted(count, "partition"))
        self.partitions.remember(topic)
        return topic

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its records."""
        self.partitions.drop(name)
        await self.run(self.store.delete_topic, name)
        _logger.info("deleted topic %s", name)

    async def alter_topic(self, name: str, changes: Mapping[str, object]) -> None:
        """Change settings; None resets one. Logs that are open are opened again if it concerns them."""
        before = (await self.partitions.topic(name)).config
        topic = await self.run(self.store.alter_topic, name, None, changes)
        if topic.config != before:
            self.partitions.close_logs(name)
            await self.run(self.store.reopen, name)
        await self.partitions.refresh(name)


def _end(future: asyncio.Future[Any], found: Any, error: BaseException | None) -> None:
    """Give a result to who waits for it, if somebody does."""
    if future.done():
        return
    if error is None:
        future.set_result(found)
    else:
        future.set_exception(error)


def _offered(key: int) -> range:
    known = BY_KEY[key].versions
    return range(known[0], min(known[-1], _HIGHEST.get(Key(key), known[-1])) + 1)
