"""An asyncio service: a TCP server stores every line that clients send, and a second task consumes the lines."""

import asyncio
from tempfile import TemporaryDirectory

import sawlog


async def send(port: int, client: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in range(20):
        writer.write(b"client %d, line %d\n" % (client, number))
        assert await reader.readline() == b"stored\n"
    writer.close()


async def main(directory: str) -> None:
    async with sawlog.open_async(directory) as store:
        lines = await store.create_topic("lines", partitions=2)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async for line in reader:
                await lines.append(line.rstrip())  # on disk; clients that wait at the same time share one fsync
                writer.write(b"stored\n")
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1") as server, asyncio.TaskGroup() as clients:
            for client in range(50):
                clients.create_task(send(server.sockets[0].getsockname()[1], client))
            seen = set()
            async with store.consumer("counting", "lines") as consumer:
                async for record in consumer:  # waits for more; leaving the block commits
                    seen.add(record.value)
                    if len(seen) == 50 * 20:
                        break
        print("lines consumed:", len(seen), "- stored:", sum(each.next for each in (await lines.offsets()).values()))


with TemporaryDirectory() as directory:
    asyncio.run(main(directory))
