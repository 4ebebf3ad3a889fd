"""What the system knows of the other end of a connection."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final, Protocol

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
