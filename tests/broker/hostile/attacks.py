"""Hostile and broken clients, each as a process: `python -m tests.broker.hostile.attacks NAME ADDRESS [TOPIC]`.

An attack runs until it is stopped. It makes no more noise than a small machine can make besides serving good
clients: the question is whether limits hold, not how many packets a second an interpreter can take.
"""

from __future__ import annotations

import gzip
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import cramjam
import lz4.frame
import zstandard

from sawlog.batch.checksum import crc32c
from sawlog.broker.wire import Key, encode_request

from ..peers import batch, fetch_body, produce_body
from ..serving import ROOT

TOPIC = "records"
MIB = 1 << 20
#: Decompressed size of a bomb; snappy cannot compress one that far.
UNPACKED_MIB = 50
#: A client hello, as far as anybody looks.
HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(200)
HTTP = b"GET /metrics HTTP/1.1\r\nHost: logs.example\r\n\r\n"
#: A million elements in forty bytes.
MANY = struct.pack(">ihhih", 36, Key.METADATA, 8, 1, -1) + struct.pack(">i", 1_000_000) + bytes(22)

Attack = Callable[[tuple[str, int]], None]


def connected(address: tuple[str, int]) -> socket.socket:
    """A connection that never waits for long."""
    return socket.create_connection(address, timeout=10)


def request(key: Key, version: int, body: dict[str, object]) -> bytes:
    return b"".join(encode_request(key, version, 1, "stranger", body))


# --- attacks


def trickle(address: tuple[str, int]) -> None:
    """A byte per second on 500 connections."""
    whole = request(Key.METADATA, 9, {"topics": [{"name": "x" * 200}]})
    sockets: list[tuple[socket.socket, int]] = []
    while True:
        while len(sockets) < 500:
            sockets.append((connected(address), 0))
        alive = []
        for each, at in sockets:
            try:
                each.sendall(whole[at % len(whole) :][:1])
                alive.append((each, at + 1))
            except OSError:
                each.close()
        sockets = alive
        time.sleep(1)


def crowd(address: tuple[str, int]) -> None:
    """2,000 connections that have asked something once."""
    hello = request(Key.API_VERSIONS, 0, {})
    sockets = []
    for _ in range(2000):
        each = connected(address)
        each.sendall(hello)
        sockets.append(each)
    while True:
        time.sleep(10)


def deaf(address: tuple[str, int]) -> None:
    """Consumers that ask for everything and never read."""
    ask = request(Key.FETCH, 11, {**fetch_body(TOPIC, 0, partition_max_bytes=50 * MIB), "max_bytes": 55 * MIB}) * 20
    sockets = []
    while True:
        for _ in range(50 - len(sockets)):
            each = connected(address)
            each.sendall(ask)
            sockets.append(each)
        time.sleep(0.5)
        sockets = [each for each in sockets if not _is_dropped(each)]


def _is_dropped(each: socket.socket) -> bool:
    """Return whether the broker has reset the connection. Reads nothing."""
    gone = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != 1
    if gone:
        each.close()
    return gone


def announce(address: tuple[str, int]) -> None:
    """100 connections that announce a request of 90 MiB, and send little of it."""
    head = struct.pack(">ihhih", 90 * MIB, Key.PRODUCE, 9, 1, -1) + bytes(1000)
    sockets: list[socket.socket] = []
    while True:
        while len(sockets) < 100:
            sockets.append(connected(address))
            sockets[-1].sendall(head)
        time.sleep(0.5)
        sockets = [each for each in sockets if not _is_dropped(each)]


def strangers(address: tuple[str, int]) -> None:
    """Send garbage and incomplete requests, a hundred per second."""
    truncated = request(Key.PRODUCE, 9, produce_body(TOPIC, batch(b"x" * 1000)))
    rubbish = [
        HELLO,
        HTTP,
        MANY,
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", -1),
        bytes(100),
        truncated[:500],
        truncated[:2],
        random.Random(1).randbytes(5000),
    ]
    while True:
        for each in rubbish:
            with connected(address) as stranger, suppress(OSError):
                stranger.sendall(each)
            time.sleep(0.01)


def dying(address: tuple[str, int]) -> None:
    """Clients that are gone in the middle of everything."""
    rng = random.Random(2)
    waiting = request(Key.FETCH, 11, fetch_body(TOPIC, 0, wait_ms=60_000, min_bytes=1 << 30))
    produced = request(Key.PRODUCE, 9, produce_body(TOPIC, batch(b"x" * 1000)))
    joining = request(
        Key.JOIN_GROUP,
        2,
        {
            "group_id": f"g{rng.randrange(5)}",
            "session_timeout_ms": 6000,
            "rebalance_timeout_ms": 6000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
    )
    while True:
        with connected(address) as client, suppress(OSError):
            sent = b"".join(rng.choices([waiting, produced, joining], k=3))
            client.sendall(sent[: rng.randrange(1, len(sent))])
            if rng.random() < 0.5:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(0.01)


def bombs(address: tuple[str, int]) -> None:
    """Batches of each codec that unpack to far more than they are."""
    asked = [request(Key.PRODUCE, 9, produce_body(TOPIC, each)) for each in all_bombs().values()]
    while True:
        for each in asked:
            with connected(address) as client, suppress(OSError):
                client.sendall(each)
                client.recv(1000)
            time.sleep(0.2)


ATTACKS: dict[str, Attack] = {each.__name__: each for each in (trickle, crowd, deaf, announce, strangers, dying, bombs)}


# --- bombs


def bomb(codec: int, packed: bytes) -> bytes:
    """A batch of one record, it says, with these compressed records."""
    made = bytearray(batch(b"x"))[:61]
    made[8:12] = struct.pack(">i", len(made) - 12 + len(packed))
    made[21:23] = struct.pack(">h", codec)
    made += packed
    made[17:21] = struct.pack(">I", crc32c(made[21:]))
    return bytes(made)


def all_bombs() -> dict[str, bytes]:
    """Bombs by name, each small enough to be taken."""
    zeros = bytes(UNPACKED_MIB * MIB)
    xerial = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    block = bytes(cramjam.snappy.compress_raw(bytes(MIB)))
    return {
        "gzip": bomb(1, gzip.compress(zeros, 1)),
        "gzip, many members": bomb(1, gzip.compress(bytes(MIB), 9) * UNPACKED_MIB),
        "snappy, many blocks": bomb(2, xerial + (struct.pack(">i", len(block)) + block) * 20),
        "snappy, a lie": bomb(2, b"\x80\x80\x80\x80\x04" + bytes(1000)),
        "lz4": bomb(3, lz4.frame.compress(zeros, store_size=False)),
        "zstd": bomb(4, zstandard.ZstdCompressor().compress(zeros)),
        "zstd, many frames": bomb(4, zstandard.ZstdCompressor().compress(bytes(MIB)) * UNPACKED_MIB),
    }


# --- processes


@contextmanager
def attacking(address: str, *names: str) -> Iterator[None]:
    """Run attacks in processes of their own during a block."""
    command = [sys.executable, "-m", "tests.broker.hostile.attacks"]
    processes = [subprocess.Popen([*command, name, address], cwd=ROOT, stderr=subprocess.DEVNULL) for name in names]
    try:
        yield
        ended = [name for name, each in zip(names, processes, strict=True) if each.poll() is not None]
        assert not ended, f"the attack ended by itself: {ended}"
    finally:
        for each in processes:
            each.kill()
        for each in processes:
            each.wait()


if __name__ == "__main__":
    host, _, port = sys.argv[2].rpartition(":")
    while True:
        try:
            ATTACKS[sys.argv[1]]((host, int(port)))
        except OSError as error:  # refused or reset: again
            sys.stderr.write(f"{error}\n")
            time.sleep(0.1)
