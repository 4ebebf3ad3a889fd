"""A client that authenticates step by step, so that a test can do each step wrong."""

from __future__ import annotations

import ssl
from typing import Any

from sawlog.broker.security.credentials import MECHANISMS
from sawlog.broker.wire import ErrorCode, Key

from ..peers import Peer
from .scram_client import Client, plain

#: Before authentication nothing else is answered.
OPEN = {Key.API_VERSIONS, Key.SASL_HANDSHAKE, Key.SASL_AUTHENTICATE}


class Talker(Peer):
    """One connection, encrypted if there is a context."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(address)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")

    def handshake(self, mechanism: str) -> dict[str, Any]:
        return self.ask(Key.SASL_HANDSHAKE, 1, {"mechanism": mechanism})

    def say(self, message: bytes, version: int = 2) -> dict[str, Any]:
        return self.ask(Key.SASL_AUTHENTICATE, version, {"auth_bytes": message})

    def log_in(self, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> dict[str, Any]:
        """The whole exchange; the answer that ends it."""
        assert self.handshake(mechanism)["error_code"] == ErrorCode.NONE
        if mechanism == "PLAIN":
            return self.say(plain(user, password))
        client = Client(MECHANISMS[mechanism], user, password)
        first = self.say(client.first())
        if first["error_code"] != ErrorCode.NONE:
            return first
        final = self.say(client.final(bytes(first["auth_bytes"])))
        if final["error_code"] == ErrorCode.NONE:
            client.verify(bytes(final["auth_bytes"]))
        return final

    def works(self) -> bool:
        """Return whether a request is answered."""
        return bool(self.ask(Key.METADATA, 9, {"topics": []})["brokers"])
