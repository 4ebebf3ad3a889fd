"""One client's connection: frames in, responses out, in order.

```
request     i32 length · header (api key, version, correlation id, client id) · body
response    i32 length · header (correlation id) · body
```

Requests are answered one after the other, as a client expects it: a fetch that waits holds up what comes after it on
the same connection. Only produce requests follow each other before they are acknowledged (`pipelined`); their responses
keep the order all the same.

Back-pressure: while `max_in_flight` requests are being answered, or the client does not take its responses, nothing is
read from the socket.

A frame of some size is read directly into its own buffer, out of which the log writes it: it is not copied.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from .handlers import Body, Context
from .trouble import code_of, refusal
from .wire import Malformed, Unencodable
from .wire.apis import BY_KEY, Key
from .wire.errors import ErrorCode
from .wire.frames import RequestHeader, decode_request, encode_response, parse_header

if TYPE_CHECKING:
    from .server import Server

_logger = logging.getLogger("sawlog.broker")

_SCRATCH_BYTES = 64 << 10
#: Responses that the client has not taken yet, above which nothing more is read.
_HIGH_WATER_BYTES = 4 << 20


class _Slot:
    """A request on its way, and its place among the responses."""

    __slots__ = ("began_s", "buffers", "header", "is_done", "request", "size_bytes", "task")

    def __init__(self, header: RequestHeader, began_s: float, size_bytes: int) -> None:
        self.header = header
        self.began_s = began_s
        self.size_bytes = size_bytes
        self.request: Body = {}
        self.buffers: list[Any] = []
        self.is_done = False
        self.task: asyncio.Future[Body | None] | None = None


class Connection(asyncio.BufferedProtocol):
    """The protocol of one connection, in the event loop's thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._broker = server.broker
        self._transport: asyncio.Transport | None = None
        self._host = ""
        #: What was read and is not a complete frame yet: in the scratch buffer, or in a frame of its own.
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._start = self._end = 0
        self._frame: bytearray | None = None
        self._filled = 0
        #: Frames that wait for earlier requests.
        self._queue: deque[memoryview] = deque()
        self._slots: deque[_Slot] = deque()
        #: The request that the next ones wait for.
        self._busy: _Slot | None = None
        self._is_paused = False
        self._is_choked = False
        self._is_ending = False
        #: Whether responses are there that the loop's next turn sends, with those that are there by then.
        self._is_sending = False

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is one without saying so
        transport.set_write_buffer_limits(_HIGH_WATER_BYTES)
        peer = transport.get_extra_info("peername")
        self._host = str(peer[0]) if peer else ""
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: nobody waits for what is being answered."""
        self._transport = None
        self._queue.clear()
        for slot in self._slots:
            if slot.task is not None:
                slot.task.cancel()
        self._slots.clear()
        self._server.closed(self)

    def pause_writing(self) -> None:
        """The client does not take its responses."""
        self._is_choked = True
        self._regulate()

    def resume_writing(self) -> None:
        """It does again."""
        self._is_choked = False
        self._pump()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        if self._frame is not None:
            return memoryview(self._frame)[self._filled :]
        if self._end == len(self._scratch):
            rest = self._scratch[self._start : self._end]
            self._scratch[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        return memoryview(self._scratch)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        if self._frame is not None:
            self._filled += nbytes
            if self._filled < len(self._frame):
                return
            whole, self._frame = self._frame, None
            self._queue.append(memoryview(whole))
        else:
            self._end += nbytes
            if not self._cut_frames():
                return
        self._pump()

    def _cut_frames(self) -> bool:
        """Take the frames out of the scratch buffer; whether to go on."""
        scratch, limit = self._scratch, self._broker.config.max_request_bytes
        while self._end - self._start >= 4:
            size = int.from_bytes(scratch[self._start : self._start + 4], "big", signed=True)
            if not 8 <= size <= limit:
                self._refuse("size", f"a request of {size} bytes; at most {limit} are taken")
                return False
            first = self._start + 4
            there = min(self._end - first, size)
            if there == size:
                self._queue.append(memoryview(scratch[first : first + size]))  # slicing a bytearray copies
                self._start = first + size
                continue
            if size > len(scratch) - 4:
                self._frame = bytearray(size)
                self._frame[:there] = scratch[first : first + there]
                self._filled = there
                self._start = self._end = 0
            break
        if self._start == self._end:
            self._start = self._end = 0
        return True

    def _refuse(self, reason: str, message: str) -> None:
        """This is no client of ours, or a broken one."""
        _logger.warning("the connection of %s was closed: %s", self._host, message)
        self._broker.metrics.rejected[reason] += 1
        self.abort()

    # --- requests

    def _pump(self) -> None:
        """Begin what can be begun, and send what is there."""
        self._flush()
        while self._may_begin():
            while self._may_begin():
                self._begin(self._queue.popleft())
            self._flush()  # which lets more begin
        self._regulate()

    def _may_begin(self) -> bool:
        return (
            bool(self._queue)
            and self._busy is None
            and len(self._slots) < self._broker.config.max_in_flight
            and self._transport is not None
        )

    def _regulate(self) -> None:
        """Read from the socket, or do not."""
        if self._transport is None:
            return
        pause = bool(self._queue) or self._is_choked or self._is_ending
        if pause == self._is_paused:
            return
        self._is_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _begin(self, frame: memoryview) -> None:
        loop = self._broker.loop
        try:
            header = parse_header(frame)
        except Malformed as error:
            self._refuse("malformed", str(error))
            return
        slot = _Slot(header, loop.time(), len(frame))
        handler = self._broker.handlers.get(header.api_key)
        versions = self._broker.versions.get(header.api_key, range(0))
        if handler is None or header.version not in versions:
            self._unsupported(slot)
            return
        self._slots.append(slot)
        try:
            slot.request = decode_request(header, frame)
            fault = self._server.fault_for(header, slot.request)
            context = Context(self._broker, header, self._host, self._server.advertised)
            answer = handler(context, slot.request) if fault is None else fault(self, context, handler, slot.request)
        except Malformed as error:
            self._refuse("malformed", f"{BY_KEY[header.api_key].name} version {header.version}: {error}")
            return
        except Exception as error:
            self._fail(slot, error)
            return
        if answer is None or isinstance(answer, dict):
            self._finish(slot, answer)
            return
        if not getattr(handler, "pipelined", False) or asyncio.iscoroutine(answer):
            self._busy = slot
        slot.task = asyncio.ensure_future(answer)
        slot.task.add_done_callback(lambda task: self._ended(slot, task))

    def _unsupported(self, slot: _Slot) -> None:
        """A version that is not known: only ApiVersions has an answer to that, in its first version."""
        header = slot.header
        if header.api_key != Key.API_VERSIONS:
            self._refuse("version", f"API {header.api_key} version {header.version} is not supported")
            return
        self._slots.append(slot)
        slot.header = RequestHeader(header.api_key, 0, header.correlation_id, header.client_id, header.body_at)
        body = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": self._broker.supported}
        self._finish(slot, body)

    def _ended(self, slot: _Slot, task: asyncio.Future[Body | None]) -> None:
        """What a request waited for is there."""
        was_alone = self._busy is slot
        if was_alone:
            self._busy = None
        if self._transport is None or task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._finish(slot, task.result())
        elif isinstance(error, Exception):
            self._fail(slot, error)
        else:
            raise error
        if was_alone:
            self._pump()
        elif not self._is_sending:  # one sync acknowledges many requests: one write for all of them
            self._is_sending = True
            self._broker.loop.call_soon(self._pump)

    def _fail(self, slot: _Slot, error: Exception) -> None:
        """A request failed as a whole."""
        name, code = BY_KEY[slot.header.api_key].name, code_of(error)
        self._broker.metrics.failed(name, code.name)
        if code is ErrorCode.UNKNOWN_SERVER_ERROR:
            _logger.error("%s failed", name, exc_info=error)
        if slot.header.api_key == Key.PRODUCE and slot.request.get("acks") == 0:
            self._refuse("acks", f"a request without acknowledgement failed: {error}")  # so that the client notices
            return
        self._finish(slot, refusal(slot.header.api_key, slot.request, error))

    def _finish(self, slot: _Slot, body: Body | None) -> None:
        """The response is there; it is sent when all before it are."""
        try:
            slot.buffers = [] if body is None else encode_response(slot.header, body)
        except Unencodable:
            _logger.exception("%s cannot be answered", BY_KEY[slot.header.api_key].name)
            self._refuse("unencodable", "a response could not be encoded")
            return
        slot.is_done = True
        slot.request = {}
        self._broker.metrics.answered(BY_KEY[slot.header.api_key].name, self._broker.loop.time() - slot.began_s)

    def _flush(self) -> None:
        """Send the responses that are there, in one write."""
        slots, transport = self._slots, self._transport
        self._is_sending = False
        if transport is None:
            return
        buffers: list[Any] = []
        while slots and slots[0].is_done:
            buffers += slots.popleft().buffers
        if buffers:
            transport.writelines(buffers)
        if self._is_ending and not slots:
            transport.close()

    # --- the server's side

    @property
    def in_flight(self) -> int:
        """How many requests are being answered."""
        return len(self._slots)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of requests that have come and are not answered, and of responses that the client has not taken."""
        answering = sum(slot.size_bytes for slot in self._slots)
        return answering + sum(map(len, self._queue)) + self._filled_bytes + self.untaken_bytes

    @property
    def _filled_bytes(self) -> int:
        """Bytes of a request that has not come completely."""
        return self._end - self._start if self._frame is None else self._filled

    @property
    def untaken_bytes(self) -> int:
        """Bytes of responses that the client has not taken, nor the system for it."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def end(self) -> None:
        """Answer what has begun, take nothing new, and close."""
        self._is_ending = True
        self._queue.clear()
        self._regulate()
        self._flush()
