"""Processes that serve a group like a broker, or try to join it.

python -m tests.processes.serving serve STORE GROUP ADDRESS     prints "ready", serves until the end of input
python -m tests.processes.serving join STORE GROUP              prints "joined" or the error
python -m tests.processes.serving broker STORE GROUP            a coordinator with one member that commits: see `broker`
"""

from __future__ import annotations

import asyncio
import sys

from sawlog.errors import GroupActive
from sawlog.store.directory.store import DirectoryStore

from .launch import say


def serve(store: str, group: str, address: str) -> None:
    with DirectoryStore.open(store, maintenance_interval_s=None) as opened:
        served = opened.groups._claim(group, address)
        served.take()
        say("ready")
        sys.stdin.read()
        served.release()


def join(store: str, group: str) -> None:
    with DirectoryStore.open(store, maintenance_interval_s=None) as opened:
        try:
            opened.consumer(group, ["orders"]).close()
            say("joined")
        except GroupActive as error:
            say(error)


def broker(store: str, group: str) -> None:
    """Print "ready" when the member has joined, then commit 1, 2, 3 ... and print each acknowledged number, until it is
    killed."""
    asyncio.run(_broker(store, group))


async def _broker(store: str, group: str) -> None:
    from ..broker.groups.asking import Asked

    with DirectoryStore.open(store, maintenance_interval_s=None) as opened:
        async with Asked(opened) as asked:
            joined = await asked.joined(group)
            await asked.synced(joined, group)
            say("ready")
            for offset in range(1, 100_000):
                codes = await asked.commit({("orders", 0): (offset, f"note {offset}", 0)}, joined, group=group)
                assert codes == {("orders", 0): 0}
                say(offset)


if __name__ == "__main__":
    {"serve": serve, "join": join, "broker": broker}[sys.argv[1]](*sys.argv[2:])
