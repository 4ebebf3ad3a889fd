"""Running a broker: open the store, listen, and serve until a signal arrives."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from os import PathLike

from ..addresses import is_address
from ..storage.system import allow_more_descriptors
from ..store.base import Store
from ..store.opening import open_store
from .broker import Broker
from .config import Address, BrokerConfig
from .security.tls import load_context

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
    if is_address(data):
        return open_store(data, maintenance_interval_s=config.maintenance_interval_s)
    # Clients retry: a request does not wait for a process that holds the lock.
    return open_store(data, maintenance_interval_s=config.maintenance_interval_s, lock_timeout=0)


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
            metrics = http.listening
        ready(broker, metrics)
        yield broker, store
