"""The client side of SCRAM and PLAIN, so that tests can do each step wrong."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from typing import Final

from sawlog.broker.security.authentication import new_nonce
from sawlog.broker.security.credentials import Mechanism
from sawlog.errors import AuthenticationFailed

#: RFC 7677 recommends more iterations than Kafka allows.
_CLIENT_MAX_ITERATIONS: Final = 1_000_000
_SERVER_FIRST: Final = re.compile(
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[^,]+),i=(?P<count>\d{1,9})(?:,[A-Za-z]+=[^,]*)*"
)


def plain(user: str, password: str) -> bytes:
    """Return the message of PLAIN."""
    return f"\0{user}\0{password}".encode()


class Client:
    """The client side of one exchange."""

    def __init__(
        self, mechanism: Mechanism, user: str, password: str, *, nonce: str | None = None, min_iterations: int = 4096
    ) -> None:
        self._mechanism = mechanism
        self._password = password
        self._min_iterations = min_iterations
        self._nonce = nonce or new_nonce()
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """Return the client's first message."""
        return f"n,,{self._bare}".encode()

    def final(self, message: bytes) -> bytes:
        """Answer the server's first message with the proof."""
        found = _SERVER_FIRST.fullmatch(_text(message))
        if found is None:
            raise AuthenticationFailed("the first message of the broker is malformed")
        if not found["nonce"].startswith(self._nonce) or found["nonce"] == self._nonce:
            raise AuthenticationFailed("the broker has not answered with the client's nonce and its own")
        count = int(found["count"])
        if not self._min_iterations <= count <= _CLIENT_MAX_ITERATIONS:
            raise AuthenticationFailed(f"the broker demands {count} iterations")
        salted = self._mechanism.salted(self._password, _bytes(found["salt"]), count)
        sign = self._mechanism.sign
        client_key = sign(salted, b"Client Key")
        unproved = f"c=biws,r={found['nonce']}"  # biws: n,,
        said = b",".join((self._bare.encode(), message, unproved.encode()))
        self._signature = sign(sign(salted, b"Server Key"), said)
        proof = _xor(client_key, sign(self._mechanism.digest(client_key), said))
        return f"{unproved},p={_base64(proof)}".encode()

    def verify(self, message: bytes) -> None:
        """Check the server's last message, which proves that the server knows the user."""
        text = _text(message)
        if not text.startswith("v=") or not hmac.compare_digest(_bytes(text[2:].partition(",")[0]), self._signature):
            raise AuthenticationFailed("the broker could not prove that it knows the user")


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed("a message is not UTF-8") from None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationFailed("a message has bytes that are not base64") from None


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
