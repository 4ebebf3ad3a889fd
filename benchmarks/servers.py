"""Redis Streams and NATS JetStream next to the broker, if `redis-server` and `nats-server` are installed.

Kafka clients do not speak their protocols, so a minimal client drives each: it builds the bytes of all requests before
the clock starts and parses only the necessary part of an answer. This flatters them, because a program would use a
client library.

*Not synced* is Redis with `appendfsync everysec` and JetStream with its default; *synced* is `appendfsync always` and
`sync_interval: always`.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from dataset import Dataset
from rounds import Sample, expect

#: Records that are sent before answers are waited for.
_WINDOW = 500
_PATIENCE_S = 60.0
#: The numbers of Redis' entries have one length, so that the length of an answer is known.
_FIRST = 10_000_000


class Server(ABC):
    """A process that listens on a port of this machine."""

    name = ""
    program = ""

    def __init__(self, directory: Path, *, synced: bool) -> None:
        self._directory = directory
        self._synced = synced
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start_s = 0.0

    @classmethod
    def is_installed(cls) -> bool:
        """True if the server's program is on the PATH."""
        return shutil.which(cls.program) is not None

    @abstractmethod
    def _command(self) -> list[str]:
        """Command line of the server."""

    @abstractmethod
    def produce(self, data: Dataset) -> float:
        """Store all records, acknowledged; seconds."""

    @abstractmethod
    def consume(self, data: Dataset) -> float:
        """Consume the most recent data; return seconds."""

    @abstractmethod
    def empty(self) -> None:
        """Delete the stored data."""

    def __enter__(self) -> Server:
        self._directory.mkdir(parents=True)
        began = time.perf_counter()
        self._process = subprocess.Popen(self._command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self._connected().close()
                break
            except OSError:
                expect(time.monotonic() < deadline and self._process.poll() is None, True, f"{self.name} has started")
                time.sleep(0.002)
        self.start_s = time.perf_counter() - began
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(_PATIENCE_S)

    @property
    def memory_bytes(self) -> int:
        """Resident memory now."""
        assert self._process is not None
        return int(psutil.Process(self._process.pid).memory_info().rss)

    def measured(self, work_s: float, before: psutil._common.pcputimes) -> Sample:
        """Wall time, and CPU time of the server since `before`."""
        after = self.cpu()
        return Sample(work_s, max(after.user + after.system - before.user - before.system, 1e-3))

    def cpu(self) -> psutil._common.pcputimes:
        """The CPU times of its process."""
        assert self._process is not None
        return psutil.Process(self._process.pid).cpu_times()

    def _connected(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), _PATIENCE_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made


class Redis(Server):
    """A stream of entries with one field."""

    name = "Redis Streams"
    program = "redis-server"

    def _command(self) -> list[str]:
        settings: dict[str, object]
        settings = {"port": self.port, "bind": "127.0.0.1", "dir": self._directory, "save": "", "appendonly": "yes"}
        settings["appendfsync"] = "always" if self._synced else "everysec"
        return [self.program, *(part for name, value in settings.items() for part in (f"--{name}", str(value)))]

    def produce(self, data: Dataset) -> float:
        values = [value for _, value in data.batch]
        windows = [
            b"".join(
                _resp(b"XADD", b"s", b"1-%d" % (_FIRST + number), b"v", values[number % len(values)])
                for number in range(first, min(first + _WINDOW, data.count))
            )
            for first in range(0, data.count, _WINDOW)
        ]
        answer_bytes = len(b"$10\r\n1-10000000\r\n")
        with closing(self._connected()) as connection:
            began = time.perf_counter()
            sent = 0
            for number, window in enumerate(windows):
                connection.sendall(window)
                if number:
                    _skip(connection, _WINDOW * answer_bytes)
                sent = number
            _skip(connection, (data.count - sent * _WINDOW) * answer_bytes)
            return time.perf_counter() - began

    def consume(self, data: Dataset) -> float:
        page = 5_000
        size = len(data.batch[0][1])
        entry = len(b"*2\r\n$10\r\n1-10000000\r\n*2\r\n$1\r\nv\r\n") + len(b"$%d\r\n" % size) + size + 2
        with closing(self._connected()) as connection:
            began = time.perf_counter()
            for first in range(0, data.count, page):
                count = min(page, data.count - first)
                last = b"1-%d" % (_FIRST + first - 1)
                connection.sendall(_resp(b"XREAD", b"COUNT", b"%d" % count, b"STREAMS", b"s", last))
                _skip(connection, len(b"*1\r\n*2\r\n$1\r\ns\r\n*%d\r\n" % count) + count * entry)
            return time.perf_counter() - began

    def empty(self) -> None:
        with closing(self._connected()) as connection:
            connection.sendall(_resp(b"DEL", b"s"))
            _skip(connection, len(b":1\r\n"))


class JetStream(Server):
    """A stream on one subject, in files; acknowledged messages in, and out in pages, without acknowledgement."""

    name = "NATS JetStream"
    program = "nats-server"

    def _command(self) -> list[str]:
        config = self._directory / "nats.conf"
        sync = ", sync_interval: always" if self._synced else ""  # known since 2.10
        config.write_text(
            f'host: "127.0.0.1"\nport: {self.port}\n'
            f'jetstream {{ store_dir: "{self._directory}/js"{sync}, max_file_store: 20G }}\n',
            encoding="ascii",
        )
        return [self.program, "-c", str(config)]

    @contextmanager
    def _speaking(self) -> Iterator[tuple[socket.socket, _Lines]]:
        with closing(self._connected()) as connection:
            lines = _Lines(connection)
            lines.line()  # INFO
            connection.sendall(b'CONNECT {"verbose":false}\r\nSUB in.* 1\r\nPING\r\n')
            expect(lines.line(), b"PONG", "the answer of NATS")
            yield connection, lines

    def _ask(self, connection: socket.socket, lines: _Lines, subject: bytes, body: bytes) -> bytes:
        connection.sendall(b"PUB %s in.a %d\r\n%s\r\n" % (subject, len(body), body))
        return lines.message()

    def produce(self, data: Dataset) -> float:
        with self._speaking() as (connection, lines):
            stream = b'{"name":"s","subjects":["s"],"storage":"file"}'
            answer = self._ask(connection, lines, b"$JS.API.STREAM.CREATE.s", stream)
            expect(b'"error"' in answer, False, "creating a stream")
            values = [value for _, value in data.batch]
            windows = [
                b"".join(
                    b"PUB s in.b %d\r\n%s\r\n" % (len(values[number % len(values)]), values[number % len(values)])
                    for number in range(first, min(first + _WINDOW, data.count))
                )
                for first in range(0, data.count, _WINDOW)
            ]
            began = time.perf_counter()
            for number, window in enumerate(windows):
                connection.sendall(window)
                if number:
                    lines.messages(_WINDOW)
            answer = lines.messages(data.count - (len(windows) - 1) * _WINDOW)
            expect(b'"seq":%d' % data.count in answer, True, "the number of the last message")
            return time.perf_counter() - began

    def consume(self, data: Dataset) -> float:
        page = 5_000
        with self._speaking() as (connection, lines):
            began = time.perf_counter()
            consumer = b'{"stream_name":"s","config":{"name":"c","deliver_policy":"all","ack_policy":"none"}}'
            answer = self._ask(connection, lines, b"$JS.API.CONSUMER.CREATE.s.c", consumer)
            expect(b'"error"' in answer, False, f"creating a consumer: {answer!r}")
            for first in range(0, data.count, page):
                count = min(page, data.count - first)
                wish = b'{"batch":%d}' % count
                connection.sendall(b"PUB $JS.API.CONSUMER.MSG.NEXT.s.c in.d %d\r\n%s\r\n" % (len(wish), wish))
                lines.messages(count)
            return time.perf_counter() - began

    def empty(self) -> None:
        with self._speaking() as (connection, lines):
            self._ask(connection, lines, b"$JS.API.STREAM.DELETE.s", b"")


@dataclass(slots=True)
class _Lines:
    """Reader of NATS's protocol: lines, and messages with a body."""

    connection: socket.socket
    rest: bytearray = field(default_factory=bytearray)

    def _more(self) -> None:
        got = self.connection.recv(1 << 20)
        expect(bool(got), True, "NATS goes on talking")
        self.rest += got

    def line(self) -> bytes:
        """The next line."""
        while (end := self.rest.find(b"\r\n")) < 0:
            self._more()
        found = bytes(self.rest[:end])
        del self.rest[: end + 2]
        return found

    def message(self) -> bytes:
        """The body of the next message."""
        return self.messages(1)

    def messages(self, count: int) -> bytes:
        """Skip `count` messages and return the body of the last one."""
        at, rest = 0, self.rest
        body = b""
        while count:
            end = rest.find(b"\r\n", at)
            if end < 0:
                del rest[:at]
                at = 0
                self._more()
                continue
            head = rest[at:end]
            if not head.startswith((b"MSG", b"HMSG")):
                expect(head[:4] != b"-ERR", True, f"no error of NATS: {bytes(head)!r}")
                at = end + 2
                continue
            size = int(head[head.rindex(b" ") :])
            if len(rest) < end + 2 + size + 2:
                del rest[:at]
                at = 0
                self._more()
                continue
            count -= 1
            if not count:
                body = bytes(rest[end + 2 : end + 2 + size])
            at = end + 2 + size + 2
        del rest[:at]
        return body


def _resp(*parts: bytes) -> bytes:
    """A command of Redis."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def _skip(connection: socket.socket, size: int) -> None:
    """Read a reply of `size` bytes; raise if it starts with a minus, Redis's mark of an error."""
    is_first = True
    while size:
        got = connection.recv(min(size, 1 << 20))
        expect(bool(got) and not (is_first and got.startswith(b"-")), True, f"Redis goes on answering: {got[:100]!r}")
        size -= len(got)
        is_first = False


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def running(kinds: tuple[type[Server], ...], directory: Path, stack: ExitStack, *, synced: bool) -> dict[str, Server]:
    """Start the installed servers; the stack stops them."""
    made = {}
    for kind in kinds:
        if kind.is_installed():
            folder = directory / f"{kind.program}-{'synced' if synced else 'plain'}"
            made[kind.name] = stack.enter_context(kind(folder, synced=synced))
    return made
