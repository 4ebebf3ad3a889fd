"""One connection to a broker: requests and responses, one at a time, in the versions that both sides know.

With TLS everything is encrypted, and the broker's certificate and name are checked. The first request is ApiVersions;
then the client authenticates, if it has a user.

Time-outs are for one step of the network, not for a whole request: a broker that keeps sending is not late. After any
failure the connection is closed; the owner makes a new one.

Threads: any; they take turns.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Sequence
from struct import Struct
from typing import Final

from ...errors import AuthenticationFailed, BrokerRefused, BrokerTimeout, BrokerUnavailable, Malformed
from ..config import Address
from ..wire.apis import BY_KEY, Key
from ..wire.errors import ErrorCode
from ..wire.frames import decode_response, encode_request
from ..wire.schema import Body
from ..wire.writing import Buffer
from .access import Access, Login

_SIZE: Final = Struct(">i")
#: An answer that claims to be larger is not read. What a fetch returns is limited in the request.
_MAX_RESPONSE_BYTES = 1 << 30
#: Buffers below this size are sent as one.
_JOIN_BYTES = 64 << 10
#: From the next version on, topics have ids instead of names. A client with few requests does without them.
_HIGHEST: Final = {Key.PRODUCE: 12, Key.FETCH: 12, Key.OFFSET_COMMIT: 9, Key.OFFSET_FETCH: 9}
#: The ApiVersions request that is tried first. Every broker that does not know it answers in version 0.
_FIRST_VERSION = 3
_ANYBODY: Final = Access()


class Unanswered(BrokerUnavailable):
    """The broker has closed the connection instead of answering anything but which versions it knows."""


class Connection:
    """A socket, and the versions that the broker at its other end knows."""

    def __init__(self, address: Address, *, client_id: str, timeout_s: float, access: Access = _ANYBODY) -> None:
        self.address = address
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._correlation_id = 0
        self._closed = False
        self._was_answered = False
        try:
            self._socket = socket.create_connection((address.host, address.port), timeout_s)
        except TimeoutError as error:
            raise BrokerTimeout(f"no broker answers at {address} within {timeout_s:g} s") from error
        except OSError as error:
            raise BrokerUnavailable(f"no broker at {address}: {error.strerror or error}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if access.tls is not None:
                self._socket = self._encrypted(access.tls)
            self._ranges = self._negotiate()
            if access.login is not None:
                self._authenticate(access.login)
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        return not self._closed

    def close(self) -> None:
        """Close it. Safe to call twice."""
        self._closed = True
        self._socket.close()

    # --- requests

    def knows(self, key: Key) -> bool:
        """Whether there is a version of an API that both sides know."""
        return self._version(key) is not None

    def version(self, key: Key) -> int:
        """The newest version of an API that both sides know."""
        found = self._version(key)
        if found is None:
            raise BrokerRefused(
                f"the broker at {self.address} does not offer {BY_KEY[key].name} in a version that is known here",
                code=ErrorCode.UNSUPPORTED_VERSION,
                name=ErrorCode.UNSUPPORTED_VERSION.name,
            )
        return found

    def _version(self, key: Key) -> int | None:
        ours, (lowest, highest) = BY_KEY[key].versions, self._ranges.get(key, (0, -1))
        newest = min(highest, _HIGHEST.get(key, ours[-1]), ours[-1])
        return newest if newest >= max(lowest, ours[0]) else None

    def call(self, key: Key, body: Body, *, wait_s: float = 0.0) -> Body:
        """Send a request and return the answer. `wait_s` is how long the broker itself may wait before it answers."""
        version = self.version(key)
        with self._lock:
            answer = self._exchange(key, version, body, self._timeout_s + wait_s)
            self._was_answered = True
            return self._decoded(key, version, answer)

    def _negotiate(self) -> dict[int, tuple[int, int]]:
        """Ask for the broker's versions; one that does not know ours answers in version 0."""
        asked: Body = {"client_software_name": "sawlog", "client_software_version": "1"}
        answer = self._exchange(Key.API_VERSIONS, _FIRST_VERSION, asked, self._timeout_s)
        refused = len(answer) >= 6 and int.from_bytes(answer[4:6], signed=True) == ErrorCode.UNSUPPORTED_VERSION
        body = self._decoded(Key.API_VERSIONS, 0 if refused else _FIRST_VERSION, answer)
        if refused:
            answer = self._exchange(Key.API_VERSIONS, 0, {}, self._timeout_s)
            body = self._decoded(Key.API_VERSIONS, 0, answer)
        if body["error_code"] != ErrorCode.NONE:
            raise BrokerUnavailable(f"{self.address} does not say what it offers: error {body['error_code']}")
        return {each["api_key"]: (each["min_version"], each["max_version"]) for each in body["api_keys"]}

    # --- who is who

    def _encrypted(self, tls: ssl.SSLContext) -> ssl.SSLSocket:
        try:
            return tls.wrap_socket(self._socket, server_hostname=self.address.host)
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationFailed(
                f"the certificate of {self.address} is refused: {error.verify_message}"
            ) from error
        except ssl.SSLError as error:
            raise BrokerUnavailable(f"no TLS with {self.address}: {error.reason or error}") from error
        except TimeoutError as error:
            raise BrokerTimeout(f"{self.address} does not answer with TLS within {self._timeout_s:g} s") from error
        except OSError as error:
            raise BrokerUnavailable(f"no TLS with {self.address}: {error.strerror or error}") from error

    def _authenticate(self, login: Login) -> None:
        answer = self.call(Key.SASL_HANDSHAKE, {"mechanism": login.mechanism})
        if answer["error_code"] != ErrorCode.NONE:
            offered = ", ".join(map(str, answer["mechanisms"]))
            raise AuthenticationFailed(
                f"{self.address} does not offer {login.mechanism}" + (f", but {offered}" if offered else "")
            )

        def send(message: bytes) -> bytes:
            found = self.call(Key.SASL_AUTHENTICATE, {"auth_bytes": message})
            if found["error_code"] != ErrorCode.NONE:
                raise AuthenticationFailed(f"{self.address} does not accept {login.user!r} and the password")
            return bytes(found["auth_bytes"])

        login.authenticate(send)

    # --- bytes

    def _exchange(self, key: Key, version: int, body: Body, timeout_s: float) -> memoryview:
        self._send(key, version, body, timeout_s)
        try:
            (size,) = _SIZE.unpack(self._receive(4))
            if not 4 <= size <= _MAX_RESPONSE_BYTES:
                raise Malformed(f"an answer of {size} bytes")
            return memoryview(self._receive(size))
        except EOFError:
            self.close()
            kind = BrokerUnavailable if self._was_answered else Unanswered
            reason = "" if self._was_answered else ": it may want TLS, a user or a certificate"
            raise kind(f"{self.address} has closed the connection{reason}") from None
        except Malformed as error:
            self.close()
            raise BrokerUnavailable(f"what listens on {self.address} is not a Kafka broker: {error}") from error
        except TimeoutError as error:
            self.close()
            raise BrokerTimeout(f"{self.address} did not answer {BY_KEY[key].name} within {timeout_s:g} s") from error
        except OSError as error:
            self.close()
            raise BrokerUnavailable(f"the connection to {self.address} broke: {error.strerror or error}") from error

    def _send(self, key: Key, version: int, body: Body, timeout_s: float) -> None:
        if self._closed:
            raise BrokerUnavailable(f"the connection to {self.address} is closed")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        buffers = encode_request(key, version, self._correlation_id, self._client_id, body)
        try:
            self._socket.settimeout(timeout_s)
            for each in _joined(buffers):
                self._socket.sendall(each)
        except TimeoutError as error:
            self.close()
            raise BrokerTimeout(f"{self.address} did not accept a request within {timeout_s:g} s") from error
        except OSError as error:
            self.close()
            raise BrokerUnavailable(f"the connection to {self.address} broke: {error.strerror or error}") from error

    def _receive(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            if count == 0:
                raise EOFError
            view = view[count:]
        return data

    def _decoded(self, key: Key, version: int, answer: memoryview) -> Body:
        try:
            correlation_id, body = decode_response(key, version, answer)
            if correlation_id != self._correlation_id:
                raise Malformed(f"an answer to request {correlation_id}, not to {self._correlation_id}")
        except Malformed as error:
            self.close()
            raise BrokerUnavailable(f"what listens on {self.address} is not a Kafka broker: {error}") from error
        return body


def _joined(buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    """The same bytes in fewer buffers, if they are few."""
    return [b"".join(buffers)] if sum(map(len, buffers)) <= _JOIN_BYTES else buffers
