"""Durable and fast: tasks that append at the same time share a batch and one fdatasync."""

import asyncio
from tempfile import TemporaryDirectory

from sawlog import Log

TASKS, EACH = 200, 5


async def serve(log: Log, client: int) -> list[int]:
    """One client. Each record survives a power cut before the client sends the next one."""
    return [await log.append_async(b"client %d, request %d" % (client, number)) for number in range(EACH)]


async def main() -> None:
    with TemporaryDirectory() as directory, Log.open(directory) as log:
        offsets = await asyncio.gather(*(serve(log, client) for client in range(TASKS)))
        print("acknowledged:", sum(map(len, offsets)), "different offsets:", len(set().union(*offsets)))
        print("durable up to:", log.durable_offset)
        print("in order for each client:", all(of_client == sorted(of_client) for of_client in offsets))
        print("batches written and synced:", log.verify().batches)


asyncio.run(main())
