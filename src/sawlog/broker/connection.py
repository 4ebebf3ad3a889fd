"""`ClientConnection`: the protocol of one client connection. Frames in, responses out, in order.

```
request     i32 length · header (api key, version, correlation id, client id) · body
response    i32 length · header (correlation id) · body
```

After version 0 of SaslHandshake, frames are messages of the mechanism without a header until the client is
authenticated.

Requests are processed one at a time, as clients expect: a waiting fetch delays later requests of its connection. Only
produce requests start before earlier ones are acknowledged; their responses stay in order.

Back-pressure: the socket is not read while `max_in_flight` requests are in progress, while the client does not read its
responses, or while there is no room (`limits`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ..errors import AuthenticationFailed
from ..storage.mapped import copied_bytes
from .buffers import HIGH_WATER_BYTES, MIN_REQUEST_BYTES, FrameReader, InvalidFrameSize, SendQueue
from .handlers import Context, call_authorized, code_of, known_code_of, message_of, refusal
from .limits import ProgressSample, ProgressTracker, is_closed, prepare
from .security.authentication import BEFORE_AUTHENTICATION, LINGER_S, Session
from .wire import (
    BY_KEY,
    Body,
    ErrorCode,
    Key,
    Malformed,
    RequestHeader,
    Unencodable,
    decode_request,
    encode_response,
    encode_token,
    errors_in,
    parse_header,
)

if TYPE_CHECKING:
    from .broker import Server

_logger = logging.getLogger("sawlog.broker")

_FETCH = Key.FETCH.to_bytes(2, "big")
_AUTHENTICATION = (Key.SASL_HANDSHAKE, Key.SASL_AUTHENTICATE)
#: Stands in for the header of a message without one.
_TOKEN = RequestHeader(Key.SASL_AUTHENTICATE, 0, 0, None, 0)
#: Errors that clients cause and handle in normal operation, or that are logged elsewhere.
_ROUTINE = frozenset(
    {
        *(ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNSTABLE_OFFSET_COMMIT),
        *(ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        *(ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.ELECTION_NOT_NEEDED),
        *(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH, ErrorCode.UNSUPPORTED_VERSION),
        *(ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.UNKNOWN_SERVER_ERROR),
    }
)


@dataclass(slots=True)
class _Slot:
    """A request in progress, and its place in the order of responses."""

    header: RequestHeader
    began_s: float
    size_bytes: int
    request: Body = field(default_factory=dict)
    buffers: list[Any] = field(default_factory=list)
    #: Size of the response, and how much of it occupies memory.
    response_bytes: int = 0
    copied_bytes: int = 0
    is_done: bool = False
    task: asyncio.Future[Body | None] | None = None


class ClientConnection(asyncio.BufferedProtocol):
    """The protocol of one connection. Belongs to the event loop's thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._broker = server.broker
        self._transport: asyncio.Transport | None = None
        self._host = ""
        self._limits = limits = server.broker.limits
        self._budget = limits.budget
        self._session: Session | None = None
        #: Frames waiting for earlier requests.
        self._queue: deque[memoryview] = deque()
        self._reader = FrameReader(
            limits.read_buffer, limits.budget, self.resume, self._queue, limits.frame_bytes(True)
        )
        #: Bytes counted in the budget: requests in progress, responses waiting for earlier ones, and responses that the
        #: client has not read.
        self._held_bytes = self._unsent_bytes = self._unread_bytes = 0
        #: Bytes of waiting responses that are views of mapped files.
        self._unsent_view_bytes = 0
        self._send_queue = SendQueue(limits.budget, limits.write_scheduler, self._go_on)
        self._sent_bytes = 0
        self._is_admitted = False
        #: True if it waits for room.
        self._waits_for_room = False
        self.progress = ProgressTracker()
        self._slots: deque[_Slot] = deque()
        #: The request that later ones wait for.
        self._busy: _Slot | None = None
        self._is_paused = False
        self._is_choked = False
        self._is_ending = False
        #: True if a flush is scheduled for the next iteration of the event loop.
        self._is_sending = False

    # --- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        peer = transport.get_extra_info("peername")
        self._host = str(peer[0]) if peer else ""
        self._is_admitted = self._limits.admit(self._host)
        if not self._is_admitted:
            transport.abort()
            return
        prepare(transport.get_extra_info("socket"))
        self._server.opened(self)
        try:
            self._session = session = self._broker.authenticator.session(transport, self._host, self._late)
            self._reader.limit_bytes = self._limits.frame_bytes(session.is_authenticated)
        except AuthenticationFailed as error:
            self.refuse("authentication", str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the requests in progress and release their memory."""
        self._transport = None
        if not self._is_admitted:
            return
        if self._session is not None:
            self._session.close()
        self._queue.clear()
        for slot in self._slots:
            if slot.task is not None:
                slot.task.cancel()
        self._slots.clear()
        self._send_queue.clear()
        self._limits.leave(self._host)
        self._budget.leave(self.resume)
        self._budget.release(self._held_bytes + self._unsent_bytes + self._unread_bytes + self._reader.close())
        self._held_bytes = self._unsent_bytes = self._unread_bytes = 0
        self._server.closed(self)

    def pause_writing(self) -> None:
        """Stop reading requests: the client does not read its responses."""
        self._is_choked = True
        self._regulate()

    def resume_writing(self) -> None:
        self._is_choked = False
        self._go_on()

    def _go_on(self) -> None:
        """Send queued responses."""
        if self._transport is not None:
            self._send_queue.feed(self._transport)
            self._update_unread(self._transport)
        self._pump()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            complete = self._reader.received(nbytes)
        except InvalidFrameSize as error:
            self.refuse("size", str(error))
            return
        if complete:
            self._held_bytes += complete
            self._pump()
        elif self._reader.is_waiting:
            self._waits_for_room = True
            self._regulate()

    def refuse(self, reason: str, message: str) -> None:
        """Close the connection of a broken or foreign client without answering what else it sent."""
        if self._transport is None or self._transport.is_closing():
            return
        self._queue.clear()
        self._limits.refuse(reason, self._host, message)
        self.abort()

    @property
    def _known(self) -> Session:
        """The session. A connection without one is aborted before it reads anything."""
        assert self._session is not None
        return self._session

    def _late(self) -> None:
        self.refuse("authentication", f"not authenticated within {self._broker.authenticator.timeout_s:g} s")

    # --- requests

    def _pump(self) -> None:
        """Start requests that can start, and send finished responses."""
        self._flush()
        while self._may_begin():
            while self._may_begin():
                self._begin(self._queue.popleft())
            self._flush()  # may let more requests start
        self._regulate()

    def _may_begin(self) -> bool:
        return (
            bool(self._queue)
            and self._busy is None
            and len(self._slots) < self._broker.config.max_in_flight
            and self._transport is not None
            and not self._is_choked
            and not self._send_queue.is_waiting
            and self._unsent_bytes + self._unsent_view_bytes < self._limits.unread_bytes
            and (self._budget.used_bytes < self._budget.max_bytes or self._may_begin_in_full())
        )

    def _may_begin_in_full(self) -> bool:
        """Return whether the next request may start although the budget is used up. All requests but fetches end soon
        and release their memory."""
        if not self._budget.is_overdrawn or self._queue[0][:2] != _FETCH:
            return True
        self._wait_for_room()
        return False

    def _wait_for_room(self) -> None:
        self._waits_for_room = True
        self._budget.wait(self.resume)

    def resume(self) -> bool:
        """Continue after waiting for room."""
        if not self._reader.retry():
            return False
        self._waits_for_room = False
        self._pump()
        return True

    def _regulate(self) -> None:
        """Pause or resume reading from the socket."""
        if self._transport is None:
            return
        budget = self._budget
        pause = (
            bool(self._queue)
            or self._is_choked
            or self._send_queue.is_waiting
            or self._is_ending
            or self._waits_for_room
            or ((self._held_bytes > 0 or budget.used_bytes >= budget.max_bytes) and self._has_enough())
        )
        if pause == self._is_paused:
            return
        self._is_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _has_enough(self) -> bool:
        """Return whether there is no room to read another request."""
        if self._held_bytes + self._unread_bytes > self._broker.config.max_connection_buffered_bytes:
            return True
        budget = self._budget
        if self._reader.reserved_bytes:
            return False  # its room is reserved, and released when the request is complete
        if budget.used_bytes < budget.max_bytes or not (self._slots or budget.is_overdrawn):
            return False
        self._wait_for_room()
        return True

    def _begin(self, frame: memoryview) -> None:
        loop, known = self._broker.loop, self._known
        if known.takes_tokens:
            slot = _Slot(_TOKEN, loop.time(), len(frame))
            self._slots.append(slot)
            self._wait_for(slot, known.token(bytes(frame)))
            return
        try:
            header = parse_header(frame)
        except Malformed as error:
            self.refuse("malformed", str(error))
            return
        if not known.is_established and header.api_key not in BEFORE_AUTHENTICATION:
            self.refuse("unauthenticated", f"API {header.api_key} before authentication")
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
            context = Context(self._broker, header, self._host, known.principal, known)
            if not self._broker.authorizer.is_open:
                handler = partial(call_authorized, handler)
            answer = handler(context, slot.request) if fault is None else fault(self, context, handler, slot.request)
        except Malformed as error:
            self.refuse("malformed", f"{BY_KEY[header.api_key].name} version {header.version}: {error}")
            return
        except Exception as error:
            self._fail(slot, error)
            return
        if answer is None or isinstance(answer, dict):
            self._finish(slot, answer)
            return
        self._wait_for(slot, answer, alone=header.api_key != Key.PRODUCE or asyncio.iscoroutine(answer))

    def _wait_for(self, slot: _Slot, answer: Awaitable[Body | None], alone: bool = True) -> None:
        """Finish a request when its awaitable is done. If `alone`, later requests wait for it."""
        if alone:
            self._busy = slot
        slot.task = asyncio.ensure_future(answer)
        slot.task.add_done_callback(lambda task: self._ended(slot, task))

    def _unsupported(self, slot: _Slot) -> None:
        """Handle an unknown version. Only ApiVersions answers it, in its version 0."""
        header = slot.header
        if header.api_key != Key.API_VERSIONS:
            self.refuse("version", f"API {header.api_key} version {header.version} is not supported")
            return
        self._slots.append(slot)
        slot.header = RequestHeader(header.api_key, 0, header.correlation_id, header.client_id, header.body_at)
        body = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": self._broker.supported}
        self._finish(slot, body)

    def _ended(self, slot: _Slot, task: asyncio.Future[Body | None]) -> None:
        """Finish a request whose awaitable is done."""
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
        elif not self._is_sending:  # one sync acknowledges many requests: send them in one write
            self._is_sending = True
            self._broker.loop.call_soon(self._pump)

    def _fail(self, slot: _Slot, error: Exception) -> None:
        """Answer a request that failed as a whole."""
        name, code = BY_KEY[slot.header.api_key].name, code_of(error)
        if code is ErrorCode.UNKNOWN_SERVER_ERROR:
            self._limits.rate_limited_log.log(name, "%s failed", name, level=logging.ERROR, error=error)
        if slot.header.api_key == Key.PRODUCE and slot.request.get("acks") == 0:
            self._count_error(slot, code, None)
            # The client would not notice otherwise.
            self.refuse("acks", f"a request without acknowledgement failed: {error}")
            return
        body = refusal(slot.header.api_key, slot.request, known_code_of(error, slot.header), message_of(error))
        self._finish(slot, body, error)

    def _count_errors(self, slot: _Slot, body: Body, error: Exception | None) -> None:
        """Count every error code of a response, and log each kind once a minute. Some versions of a response have no
        field for the error of a whole request; that error is counted as well."""
        found = errors_in(slot.header, body)
        if not found and error is not None:
            found = [(code_of(error, slot.header.api_key), None)]
        for code, message in found:
            self._count_error(slot, code, message if error is None else message_of(error))

    def _count_error(self, slot: _Slot, code: int, message: str | None) -> None:
        header, known = slot.header, ErrorCode(code)
        api = BY_KEY[header.api_key].name
        self._broker.metrics.errors[api, known.name] += 1
        self._limits.rate_limited_log.log(
            f"{api}: {known.name}",
            "%s of %s (client id %r, from %s) was refused: %s%s",
            *(api, self._known.principal, header.client_id, self._host, known.name, f" ({message})" if message else ""),
            level=logging.INFO if known in _ROUTINE else logging.WARNING,
            max_lines=1,
        )

    def _finish(self, slot: _Slot, body: Body | None, failure: Exception | None = None) -> None:
        """Queue a response, to be sent after all earlier ones. `failure` is the error of a request that failed as a
        whole."""
        if body is not None and slot.header is not _TOKEN:
            self._count_errors(slot, body, failure)
        try:
            slot.buffers = [] if body is None else _encoded(slot.header, body)
        except Unencodable as error:
            name = BY_KEY[slot.header.api_key].name
            self._limits.rate_limited_log.log(
                "answer", "cannot encode the response to %s", name, level=logging.ERROR, error=error
            )
            self.refuse("unencodable", "a response could not be encoded")
            return
        slot.is_done = True
        slot.request = {}
        if slot.buffers:
            slot.response_bytes = sum(map(len, slot.buffers))
            slot.copied_bytes = size = copied_bytes(slot.buffers)
            self._unsent_bytes += size
            self._unsent_view_bytes += slot.response_bytes - size
            self._budget.used_bytes += size
        if slot.header.api_key in _AUTHENTICATION:
            self._reader.limit_bytes = self._limits.frame_bytes(self._known.is_authenticated)
            self._reader.min_bytes = 1 if self._known.takes_tokens else MIN_REQUEST_BYTES
        if self._known.has_failed:
            self._is_ending = True
            self._forget_queue()
        api, metrics = BY_KEY[slot.header.api_key].name, self._broker.metrics
        metrics.requests[api] += 1
        metrics.seconds[api].add(self._broker.loop.time() - slot.began_s)

    def _flush(self) -> None:
        """Send the finished responses in one write."""
        slots, transport = self._slots, self._transport
        self._is_sending = False
        if transport is None:
            return
        buffers: list[Any] = []
        answered = sent = copied = 0
        while slots and slots[0].is_done:
            slot = slots.popleft()
            buffers += slot.buffers
            answered += slot.size_bytes
            sent += slot.response_bytes
            copied += slot.copied_bytes
        if answered:
            self._held_bytes -= answered
            self._unsent_bytes -= copied
            self._unsent_view_bytes -= sent - copied
            self._sent_bytes += sent
            if buffers:
                self._send_queue.send(transport, buffers, sent)
            unread = transport.get_write_buffer_size() + self._send_queue.copied_bytes
            self._budget.release(answered + copied + self._unread_bytes - unread)
            self._unread_bytes = unread
        if self._is_ending and not slots and not self._send_queue.size_bytes:
            if self._known.has_failed:
                self._broker.loop.call_later(LINGER_S, transport.close)
            else:
                transport.close()

    def _update_unread(self, transport: asyncio.Transport) -> None:
        """Update the count of unread bytes."""
        size = transport.get_write_buffer_size() + self._send_queue.copied_bytes
        if size != self._unread_bytes:
            self._budget.release(self._unread_bytes - size)
            self._unread_bytes = size

    # --- used by the server

    @property
    def in_flight(self) -> int:
        return len(self._slots)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of requests in progress and of unread responses."""
        return self._held_bytes + self._reader.filled_bytes + self._unsent_bytes + self.unread_bytes

    @property
    def unread_bytes(self) -> int:
        """Bytes of responses that neither the client nor the kernel has accepted."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size() + self._send_queue.size_bytes

    @property
    def is_gone(self) -> bool:
        """True if the client has closed a connection that is not being read from, which nothing else would detect."""
        if not self._is_paused or self._transport is None:
            return False
        found = self._transport.get_extra_info("socket")
        return found is not None and is_closed(found)

    def sample(self) -> ProgressSample:
        """Return the current state for the monitor."""
        if self._transport is not None and self._unread_bytes:
            self._update_unread(self._transport)
        intake, unread = self._reader, self.unread_bytes
        is_reading, is_busy = not self._is_paused, bool(self._slots)
        read = self._sent_bytes - unread
        return ProgressSample(
            intake.count, intake.filled_bytes, intake.expected_bytes, is_reading, is_busy, read, unread
        )

    @property
    def pinned_bytes(self) -> int:
        """Bytes of the budget that the client's behaviour pins: a waiting request and those behind it; a stalled large
        request or stalled responses."""
        kept = self._held_bytes if self._busy is not None else 0
        if self.progress.is_slow:
            kept += self._reader.reserved_bytes + self._unsent_bytes + self._unread_bytes
        return kept

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def end(self) -> None:
        """Finish the requests in progress, accept no new ones, and close."""
        self._is_ending = True
        self._forget_queue()
        self._regulate()
        self._flush()

    def _forget_queue(self) -> None:
        """Drop the requests that have not started."""
        dropped = sum(map(len, self._queue))
        self._queue.clear()
        self._held_bytes -= dropped
        self._budget.release(dropped)


def _encoded(header: RequestHeader, body: Body) -> list[Any]:
    return encode_token(body["auth_bytes"]) if header is _TOKEN else encode_response(header, body)
