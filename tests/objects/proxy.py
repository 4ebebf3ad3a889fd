"""A proxy in front of an S3 server that is slow or busy, or loses requests and answers.

    with Proxy(server.endpoint, Faults(seed=7, lost_before=0.05, lost_after=0.05)) as proxy:
        bucket = Bucket(url, {**server.options, "endpoint": proxy.endpoint})

The seed, the method, the path and the number of earlier equal requests decide the fault of a request. So equal requests
have equal faults, in any order of threads and processes. Unique names in a path do not count.
`proxy.plan("PUT", "commits/", Fault.LATE)` sets the fault of the next request of that kind.

    lost_before   the connection breaks before the request was applied
    lost_after    the connection breaks after the request was applied, without an answer
    late          the connection breaks, and the request is applied `late_s` later
    failed        500, although it was applied
    busy          503, and it was not applied
    conflict      409, as S3 answers concurrent conditional writes, and it was not applied
    denied        403, and it was not applied
    slow          it is applied, and the answer comes `slow_s` later, perhaps too old to be believed
    flipped       the answer to a GET of a commit or a checkpoint has one wrong bit
    truncated     the answer to such a GET is cut in half, with a Content-Length that agrees

From a shell: `python -m tests.objects.proxy http://127.0.0.1:8333 --latency-ms 50` prints its endpoint and stays.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import re
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

_MOST_HEAD = 1 << 16
#: Names that differ in every run.
_UNIQUE = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Objects that are always read completely.
_CHECKED = re.compile(r"/(commits|checkpoints)/[^/?]+$")
_CONFLICT = b"<Error><Code>ConditionalRequestConflict</Code><Message>met another request</Message></Error>"
_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_FAILED = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"
_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


class Fault(StrEnum):
    """A fault of one request."""

    NONE = "none"
    LOST_BEFORE = "lost_before"
    LOST_AFTER = "lost_after"
    LATE = "late"
    FAILED = "failed"
    BUSY = "busy"
    CONFLICT = "conflict"
    DENIED = "denied"
    SLOW = "slow"
    FLIPPED = "flipped"
    TRUNCATED = "truncated"


#: Faults in the body of an answer. Drawn only if a checksum covers the whole object: a listing has none.
_IN_BODY = (Fault.FLIPPED, Fault.TRUNCATED)


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities of the faults, at most 1 together, and delays."""

    seed: int = 0
    lost_before: float = 0.0
    lost_after: float = 0.0
    late: float = 0.0
    failed: float = 0.0
    busy: float = 0.0
    #: For conditional writes only.
    conflict: float = 0.0
    denied: float = 0.0
    #: Half of the delay comes before the request is forwarded, half before its answer.
    latency_s: float = 0.0
    late_s: float = 1.0
    slow: float = 0.0
    slow_s: float = 1.0
    flipped: float = 0.0
    truncated: float = 0.0

    def of(self, method: str, path: str, seen: int, conditional: bool) -> Fault:
        """Return the fault of a request, given the number of earlier equal ones."""
        digest = hashlib.blake2b(f"{self.seed} {method} {path} {seen}".encode(), digest_size=8).digest()
        drawn = int.from_bytes(digest) / 2**64
        for each in list(Fault)[1:]:
            if each is Fault.CONFLICT and not conditional:
                continue
            if each in _IN_BODY and not (method == "GET" and _CHECKED.search(path)):
                continue
            drawn -= getattr(self, each.value)
            if drawn < 0:
                return each
        return Fault.NONE


@dataclass(slots=True)
class _Request:
    """A parsed request, with its bytes."""

    head: bytes
    body: bytes
    method: str = ""
    path: str = ""
    conditional: bool = False


@dataclass(slots=True)
class _Planned:
    method: str
    part: str
    faults: list[Fault] = field(default_factory=list)


class Proxy:
    """Runs in a thread. Counts requests, faults and the server's answers: `counts["PUT"]`, `counts[Fault.LATE]`,
    `counts["412"]`."""

    def __init__(self, to: str, faults: Faults | None = None) -> None:
        target = urlsplit(to)
        assert target.hostname is not None
        self._host, self._port = target.hostname, target.port or 80
        self.faults = faults or Faults()
        self.counts: Counter[str] = Counter()
        self.endpoint = ""
        self._seen: Counter[tuple[str, str]] = Counter()
        self._planned: list[_Planned] = []
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._late: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.Task[Any]] = set()
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def plan(self, method: str, part: str, *faults: Fault) -> None:
        """Set the faults of the next requests with this method whose path contains `part`."""
        with self._lock:
            self._planned.append(_Planned(method, part, list(faults)))

    def settle(self) -> None:
        """Wait until late requests are applied."""
        while self._late:
            asyncio.run_coroutine_threadsafe(asyncio.wait(set(self._late)), self._loop).result(60)

    # --- the loop

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._client, "127.0.0.1", 0, limit=_MOST_HEAD)
        self.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stop.wait()
        server.close()
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for _, writer in self._idle:
            writer.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)  # asyncio keeps only weak references to waiting tasks
        task.add_done_callback(self._clients.discard)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while (request := await _read_request(reader)) is not None:
                answer = await self._treat(request)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        writer.transport.abort()  # resets the connection instead of closing it

    async def _treat(self, request: _Request) -> bytes | None:
        """Return the answer to a request; None if the connection breaks."""
        fault = self._fault(request)
        self.counts[request.method] += 1
        self.counts[fault] += 1
        if self.faults.latency_s:
            await asyncio.sleep(self.faults.latency_s / 2)
        refusals = {
            Fault.BUSY: (b"503 Slow Down", _BUSY),
            Fault.CONFLICT: (b"409 Conflict", _CONFLICT),
            Fault.DENIED: (b"403 Forbidden", _DENIED),
        }
        if fault is Fault.LATE:
            task = self._loop.create_task(self._apply_late(request))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        if fault in (Fault.LOST_BEFORE, Fault.LATE):
            return None
        if fault in refusals:
            return _answer(*refusals[fault])
        answer = await self._forward(request)
        self.counts[answer.split(b" ", 2)[1].decode()] += 1
        if self.faults.latency_s:
            await asyncio.sleep(self.faults.latency_s / 2)
        if fault in _IN_BODY:
            return _damaged(answer, fault)
        if fault is Fault.SLOW:
            await asyncio.sleep(self.faults.slow_s)
        if fault is Fault.LOST_AFTER:
            return None
        return _answer(b"500 Internal Server Error", _FAILED) if fault is Fault.FAILED else answer

    def _fault(self, request: _Request) -> Fault:
        with self._lock:
            for each in self._planned:
                if each.method == request.method and each.part in request.path and each.faults:
                    return each.faults.pop(0)
            path = _UNIQUE.sub("*", request.path)
            self._seen[request.method, path] += 1
            seen = self._seen[request.method, path]
        return self.faults.of(request.method, path, seen, request.conditional)

    async def _apply_late(self, request: _Request) -> None:
        await asyncio.sleep(self.faults.late_s)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._forward(request)

    # --- the server

    async def _forward(self, request: _Request) -> bytes:
        """Return the server's answer. Opens a new connection if the server has closed the idle one."""
        while self._idle:
            reader, writer = self._idle.pop()
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                return await self._ask(request, reader, writer)
        return await self._ask(request, *await asyncio.open_connection(self._host, self._port, limit=_MOST_HEAD))

    async def _ask(self, request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        try:
            writer.write(request.head + request.body)
            await writer.drain()
            answer, keeps = await _read_answer(reader, request.method)
        except BaseException:
            writer.transport.abort()
            raise
        if keeps:
            self._idle.append((reader, writer))
        else:
            writer.close()
        return answer


# --- HTTP


async def _read_request(reader: asyncio.StreamReader) -> _Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    names = _headers(head)
    assert names.get("transfer-encoding") is None, "a request in chunks"
    body = await reader.readexactly(int(names.get("content-length", "0")))
    method, path, _ = head.partition(b"\r\n")[0].decode("latin-1").split(" ", 2)
    return _Request(head, body, method, path, "if-none-match" in names)


async def _read_answer(reader: asyncio.StreamReader, method: str) -> tuple[bytes, bool]:
    """Return an answer, and True if the connection can be reused."""
    head = await reader.readuntil(b"\r\n\r\n")
    names, status = _headers(head), int(head.split(b" ", 2)[1])
    if 100 <= status < 200:
        return await _read_answer(reader, method)
    keeps = names.get("connection", "").lower() != "close" and head.startswith(b"HTTP/1.1")
    if method == "HEAD" or status in (204, 304):
        return head, keeps
    if names.get("transfer-encoding", "").lower() == "chunked":
        return head + b"".join([part async for part in _chunks(reader)]), keeps
    if "content-length" in names:
        return head + await reader.readexactly(int(names["content-length"])), keeps
    body = await reader.read(-1)
    return head[:-2] + b"Content-Length: %d\r\n\r\n" % len(body) + body, False


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        line = await reader.readline()
        size = int(line.partition(b";")[0], 16)
        yield line
        yield await reader.readexactly(size + 2)
        if not size:
            return


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}


def _damaged(answer: bytes, fault: Fault) -> bytes:
    """Return an answer with a flipped bit in the middle of its body, or with the first half of it."""
    head, _, body = answer.partition(b"\r\n\r\n")
    half = len(body) // 2
    if fault is Fault.TRUNCATED:
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length:")]
        return b"\r\n".join([*lines, b"Content-Length: %d" % half, b"", body[:half]])
    return head + b"\r\n\r\n" + body[:half] + bytes([body[half] ^ 1]) + body[half + 1 :]


def _answer(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


# --- the program


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a proxy until the input ends or the program is interrupted."""
    parser = argparse.ArgumentParser(description="A proxy that is slow, busy, or loses requests and answers.")
    parser.add_argument("to", help="the endpoint of the server")
    parser.add_argument("--latency-ms", type=float, default=0.0)
    for each in fields(Faults):
        if each.name != "latency_s":
            kind = int if each.name == "seed" else float
            parser.add_argument(f"--{each.name.replace('_', '-')}", type=kind, default=each.default)
    given = vars(parser.parse_args(arguments))
    to, latency_s = given.pop("to"), given.pop("latency_ms") / 1000
    with Proxy(to, Faults(latency_s=latency_s, **given)) as proxy:
        sys.stdout.write(f"{proxy.endpoint}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
