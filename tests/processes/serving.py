"""Processes that serve a group as a broker does, or want to read it themselves.

python -m tests.processes.serving serve STORE GROUP ADDRESS     says "ready" when it serves the group, until input ends
python -m tests.processes.serving join STORE GROUP              says "joined", or why it may not
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
    """Says "ready" when its member has joined, then commits 1, 2, 3 ... and says each number when it is acknowledged,
    until it is killed."""
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
