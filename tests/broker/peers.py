"""A client of the tests' own: single requests over a socket, as bytes, so that a test can do what no client does."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any

from sawlog.batch.build import NO_PRODUCER, Encoder, Producer
from sawlog.broker import wire
from sawlog.broker.wire import Key
from sawlog.config import LogConfig
from sawlog.log.writer import recipe_of


def batch(*values: bytes | tuple[Any, ...], producer: Producer = NO_PRODUCER, compression: str = "none") -> bytes:
    """One encoded batch."""
    recipe = recipe_of(LogConfig(compression=compression))
    return bytes(Encoder(recipe).many(list(values), producer).data)


def produce_body(topic: str, raw: bytes, *, acks: int = -1, partition: int = 0) -> dict[str, Any]:
    """The body of a Produce request with one batch."""
    data = [{"name": topic, "partition_data": [{"index": partition, "records": raw}]}]
    return {"acks": acks, "timeout_ms": 5000, "topic_data": data}


def fetch_body(topic: str, offset: int, *, wait_ms: int = 0, min_bytes: int = 1, **more: Any) -> dict[str, Any]:
    """The body of a Fetch request for partition 0."""
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": more.pop("partition_max_bytes", 1 << 20)}
    part.update({name: more.pop(name) for name in ("current_leader_epoch", "last_fetched_epoch") if name in more})
    return {
        "max_wait_ms": wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": 1 << 24,
        "topics": [{"topic": topic, "partitions": [part]}],
        **more,
    }


class Peer:
    """One connection."""

    def __init__(
        self, address: str, client_id: str = "peer", *, source: str = "", receive_bytes: int | None = None
    ) -> None:
        """From an address of this machine; with `receive_bytes` the system keeps no more than about that for it."""
        host, _, port = address.rpartition(":")
        self._client_id = client_id
        self.socket = socket.socket()
        self.socket.settimeout(60)
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.bind((source, 0))
        self.socket.connect((host, int(port)))
        self._sent: list[tuple[int, int]] = []
        self._number = 0

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, key: Key, version: int, body: dict[str, Any]) -> int:
        """Send a request, and return its correlation id."""
        self.socket.sendall(self.encoded(key, version, body))
        return self._number

    def encoded(self, key: Key, version: int, body: dict[str, Any]) -> bytes:
        """A request that is going to be sent, as bytes."""
        self._number += 1
        self._sent.append((key, version))
        return b"".join(wire.encode_request(key, version, self._number, self._client_id, body))

    def send_together(self, requests: list[tuple[Key, int, dict[str, Any]]]) -> list[int]:
        """Send requests in one write, and return their correlation ids."""
        sent, first = b"", self._number + 1
        for key, version, body in requests:
            self._number += 1
            sent += b"".join(wire.encode_request(key, version, self._number, self._client_id, body))
            if body.get("acks") != 0:
                self._sent.append((key, version))
        self.socket.sendall(sent)
        return list(range(first, self._number + 1))

    def receive(self) -> tuple[int, dict[str, Any]]:
        """The next response, of the oldest request that was not answered."""
        size = struct.unpack(">i", self.exactly(4))[0]
        return wire.decode_response(*self._sent.pop(0), memoryview(self.exactly(size)))

    def exactly(self, size: int) -> bytes:
        """That many bytes; EOFError if the connection ends before."""
        found = b""
        while len(found) < size:
            more = self.socket.recv(size - len(found))
            if not more:
                raise EOFError(f"the connection ended after {len(found)} of {size} bytes")
            found += more
        return found

    def ask(self, key: Key, version: int, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its response."""
        number = self.send(key, version, body)
        answered, found = self.receive()
        assert answered == number
        return found

    def is_closed(self) -> bool:
        """Return whether the broker has closed the connection."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True
