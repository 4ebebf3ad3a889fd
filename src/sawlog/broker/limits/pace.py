"""What the system knows of the other end of a connection.

How long one connection may take: for its first request, for the rest of a request, for its responses, for nothing.

Time is counted in looks, not by the clock, and only where the client is the one who is waited for: a connection that is
not read from for lack of room, or while the broker itself stands still, is not late.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

#: The state of a connection that both ends have open; the first byte of TCP_INFO.
_ESTABLISHED: Final = 1
_TCP_INFO: Final = getattr(socket, "TCP_INFO", None)  # Linux has it
#: What the system keeps for a client that does not take it, beyond what is on its way, and how that is said.
UNSENT_BYTES: Final = 1 << 20
_UNSENT: Final = getattr(socket, "TCP_NOTSENT_LOWAT", None)


class Socket(Protocol):
    """What is needed of a socket; those of an event loop are not quite sockets."""

    def getsockopt(self, level: int, name: int, size: int, /) -> bytes:
        """An option, as bytes."""

    def setsockopt(self, level: int, name: int, value: int, /) -> None:
        """Set an option."""


def prepare(found: Socket | None) -> None:
    """Let the system notice that a client's machine is gone; and let it keep little of what a client does not take: by
    itself it would take 4 MB for each of them, and be busy with that while others wait."""
    if found is not None:
        with suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if _UNSENT is not None:
            with suppress(OSError):
                found.setsockopt(socket.IPPROTO_TCP, _UNSENT, UNSENT_BYTES)


def is_closed(found: Socket) -> bool:
    """Whether the other end has closed or reset the connection, also if there is something to read before that."""
    if _TCP_INFO is None:
        return False
    try:
        return found.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0] != _ESTABLISHED
    except OSError:
        return False


#: Who moves less than this is slow: if there is no room for others, it may be dropped.
SLOW_BYTES_PER_S = 64 << 10


@dataclass(frozen=True, slots=True)
class Patience:
    """The time-outs."""

    first_frame_s: float
    frame_s: float
    idle_s: float
    #: A frame may take longer than `frame_s` if its bytes come as fast as this.
    frame_bytes_per_s: int


class Seen(NamedTuple):
    """A connection at one moment."""

    #: How many requests have come completely.
    requests: int
    #: The bytes of the next one that have come, and how many it will have, if that is known.
    partial_bytes: int
    expected_bytes: int
    #: Whether it is read from.
    is_reading: bool
    #: Whether a request is being answered.
    is_busy: bool
    #: Bytes of responses that it has taken, and not taken, so far.
    taken_bytes: int
    untaken_bytes: int


class Pace:
    """What one connection does with its time."""

    __slots__ = ("_late_s", "_moved_bytes", "_requests", "_still_s", "_taken_bytes", "is_slow")

    def __init__(self) -> None:
        self._requests = 0
        self._taken_bytes = 0
        self._moved_bytes = 0
        #: Whether nearly nothing has moved since the look before, though the client could have moved it.
        self.is_slow = False
        #: For how long a request has been coming, or was to come.
        self._late_s = 0.0
        #: For how long nothing has come and nothing was taken.
        self._still_s = 0.0

    def look(self, seen: Seen, elapsed_s: float, patience: Patience) -> tuple[str, str] | None:
        """Look again after a while. Why the connection should be closed, as a word and as a sentence, if it should."""
        moved_bytes = seen.taken_bytes + seen.partial_bytes
        self.is_slow = (
            seen.requests == self._requests
            and (seen.is_reading or seen.untaken_bytes > 0)
            and moved_bytes - self._moved_bytes < SLOW_BYTES_PER_S * elapsed_s
        )
        self._moved_bytes = moved_bytes
        if seen.requests != self._requests or seen.taken_bytes != self._taken_bytes:
            if seen.requests != self._requests:
                self._late_s = 0.0
            self._requests, self._taken_bytes, self._still_s = seen.requests, seen.taken_bytes, 0.0
        if seen.untaken_bytes:
            return self._unread(seen, elapsed_s, patience)
        if not seen.is_reading or seen.is_busy:
            self._still_s = 0.0
            return None
        if seen.partial_bytes or not seen.requests:
            return self._late(seen, elapsed_s, patience)
        self._still_s += elapsed_s
        return ("idle", f"nothing came for {self._still_s:.0f} s") if self._still_s >= patience.idle_s else None

    def _unread(self, seen: Seen, elapsed_s: float, patience: Patience) -> tuple[str, str] | None:
        self._still_s += elapsed_s
        if self._still_s < patience.idle_s:
            return None
        return "unread", f"{seen.untaken_bytes:,} bytes of responses were not taken for {self._still_s:.0f} s"

    def _late(self, seen: Seen, elapsed_s: float, patience: Patience) -> tuple[str, str] | None:
        self._late_s += elapsed_s
        allowed = patience.frame_s if seen.requests else patience.first_frame_s
        if self._late_s < max(allowed, seen.expected_bytes / patience.frame_bytes_per_s):
            return None
        if not seen.partial_bytes:
            return "silent", f"no request came for {self._late_s:.0f} s"
        expected = f" of {seen.expected_bytes:,}" if seen.expected_bytes else ""
        return "slow", f"{seen.partial_bytes:,}{expected} bytes of a request came in {self._late_s:.0f} s"
