"""TLS: accepting connections, reloading certificates, and naming the owner of a client certificate.

`TlsListener` completes the handshake before it creates a `ClientConnection`. asyncio's own server would keep one
context forever and offers no control over pending handshakes. Here each connection uses the context in force when it
arrives, and handshakes are limited in time, in number, and in number per address: a client that connects and stays
silent costs a socket for seconds and cannot lock out others.

`Tls.context` is the context for new connections. When a file changes, or on SIGHUP, all files are loaded into a new
context; existing connections keep the old one. If the new files are invalid (a key of another certificate, a truncated
file), the error is logged and the old context stays in use until the files change again.

`name_of` returns the owner of a certificate as Kafka names it: `CN=ann,OU=billing,O=example` (RFC 2253).

```
Certificate     SEQUENCE { tbs SEQUENCE { [0] version?, serial, algorithm, issuer, validity, subject, ... }, ... }
subject         SEQUENCE of SET of SEQUENCE { type OID, value string }
```

The last part comes first. Types that RFC 2253 does not name are written as numbers with hexadecimal values, as Java
does. TLS has verified these certificates already; one that cannot be parsed is an error nevertheless.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import AuthenticationFailed, InvalidConfig

if TYPE_CHECKING:
    from ..config import BrokerConfig

_logger = logging.getLogger("sawlog.broker")

_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0
_WORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
#: ASN.1 string types and their encodings.
_ENCODINGS: Final = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1C: "utf-32-be", 0x1E: "utf-16-be"}
_ESCAPED: Final = frozenset(',=+<>#;"\\')
#: Tag, content, and the whole element.
_Element = tuple[int, memoryview, memoryview]


def name_of(certificate: bytes) -> str:
    """Return the subject of a DER certificate."""
    try:
        [(_, whole, _)] = _elements(memoryview(certificate))
        (_, signed, _) = next(_elements(whole))
        fields = [each for each in _elements(signed) if each[0] != _VERSION]
        subject = fields[4]
        if subject[0] != _SEQUENCE:
            raise ValueError("the subject is not a sequence")
        parts = [
            "+".join(_part(pair) for _, pair, _ in _elements(group))
            for tag, group, _ in _elements(subject[1])
            if _is(tag, _SET)
        ]
    except (ValueError, IndexError, StopIteration) as error:
        raise AuthenticationFailed(f"the certificate of the client cannot be parsed: {error}") from error
    return ",".join(reversed(parts))


def _part(pair: memoryview) -> str:
    """`CN=ann`."""
    (kind, number, _), (tag, value, whole) = _elements(pair)
    _is(kind, _OID)
    name = _oid(number)
    word, encoding = _WORDS.get(name), _ENCODINGS.get(tag)
    if word is None or encoding is None:
        return f"{word or name}=#{whole.hex()}"
    return f"{word}={_escaped(str(value, encoding))}"


def _escaped(text: str) -> str:
    made = "".join(f"\\{each}" if each in _ESCAPED else "\\00" if each == "\0" else each for each in text)
    inner = made.strip(" ")
    if not inner:
        return "\\ " * len(made)
    before, after = len(made) - len(made.lstrip(" ")), len(made) - len(made.rstrip(" "))
    return "\\ " * before + inner + "\\ " * after


def _elements(data: memoryview) -> Iterator[_Element]:
    position = 0
    while position < len(data):
        tag, length, start = data[position], data[position + 1], position + 2
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4:
                raise ValueError("a length in an unknown form")
            length = int.from_bytes(data[start : start + count])
            start += count
        end = start + length
        if end > len(data):
            raise ValueError("an element extends beyond the certificate")
        yield tag, data[start:end], data[position:end]
        position = end


def _is(tag: int, wanted: int) -> bool:
    if tag != wanted:
        raise ValueError(f"an element of type {tag:#x} instead of {wanted:#x}")
    return True


def _oid(data: memoryview) -> str:
    numbers, number = list[int](), 0
    for each in data:
        number = number << 7 | each & 0x7F
        if not each & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


_VERIFY: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
#: Fingerprint of the files: inode, size and modification time of each.
_Stamp = tuple[tuple[int, int, int] | None, ...]


def load_context(config: BrokerConfig) -> ssl.SSLContext:
    """Load the files of a configuration with TLS. Raise `InvalidConfig` if they are invalid."""
    for setting, path in _files(config).items():
        if path.exists() and not path.is_file() and not path.is_dir():  # reading from a pipe would block forever
            raise InvalidConfig(f"{setting}: {path} cannot be read: it is not a regular file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    assert config.tls_certificate is not None
    load_chain(context, config.tls_certificate, config.tls_key, config.tls_key_password_file)
    context.verify_mode = _VERIFY[config.client_auth]
    if config.tls_client_ca is not None:
        load_authorities(context, config.tls_client_ca, "tls_client_ca")
    return context


def _files(config: BrokerConfig) -> dict[str, Path]:
    """Return the files of a configuration by their settings."""
    settings = ("tls_certificate", "tls_key", "tls_key_password_file", "tls_client_ca")
    return {setting: Path(path) for setting in settings if (path := getattr(config, setting))}


class Tls:
    """The current TLS context. Creating it and `refresh` read files and may block; one thread at a time."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._stamp = self._files_stamp()
        self.context = load_context(config)

    @property
    def requires_certificate(self) -> bool:
        """True if every client must present a certificate."""
        return self._config.client_auth == "required"

    def _files_stamp(self) -> _Stamp:
        return tuple(_stamp(each) for each in _files(self._config).values())

    def refresh(self, *, force: bool = False) -> bool:
        """Reload the files if one has changed; return whether a new context is in use."""
        stamp = self._files_stamp()
        if stamp == self._stamp and not force:
            return False
        self._stamp = stamp
        try:
            self.context = load_context(self._config)
        except InvalidConfig as error:
            _logger.error("the certificate was not reloaded, the previous one stays in use: %s", error)
            return False
        _logger.info("reloaded the certificate %s", self._config.tls_certificate)
        return True


def load_chain(context: ssl.SSLContext, certificate: str, key: str | None, password_file: str | None) -> None:
    """Load a certificate chain and its key, which may be in the same file. Raise `InvalidConfig` on failure."""

    was_asked = False

    def password() -> str:  # called only for an encrypted key; otherwise OpenSSL would prompt on the terminal
        nonlocal was_asked
        was_asked = True
        if password_file is None:
            raise InvalidConfig(f"the key {key or certificate} is encrypted: set tls_key_password_file")
        return read_password(Path(password_file), "tls_key_password_file: ")

    try:
        context.load_cert_chain(certificate, key, password)
    except ssl.SSLError as error:
        where = certificate if key is None else f"{certificate} with tls_key: {key}"
        reason = error.reason or "the certificate or the key is missing or truncated"
        if was_asked:  # the certificate was read, and the key has a valid header
            reason = f"the password in tls_key_password_file: {password_file} does not decrypt the key"
        raise InvalidConfig(f"tls_certificate: {where} cannot be used: {reason}") from None
    except OSError as error:
        missing = next(
            (
                f"{setting}: {each}"
                for setting, each in (("tls_certificate", certificate), ("tls_key", key))
                if each and not Path(each).is_file()
            ),
            f"tls_certificate: {certificate}",
        )
        raise InvalidConfig(f"{missing} cannot be read: {error.strerror}") from error


def load_authorities(context: ssl.SSLContext, path: str, setting: str) -> None:
    """Load CA certificates. Raise `InvalidConfig` on failure."""
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        reason = error.reason or "it is damaged or truncated"
        raise InvalidConfig(f"{setting}: {path} has no certificate: {reason}") from None
    except OSError as error:
        raise InvalidConfig(f"{setting}: {path} cannot be read: {error.strerror}") from error


def read_password(path: Path, setting: str = "") -> str:
    """Read a password from a file, without the line terminator. No error message contains any of it; messages begin
    with `setting`."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise InvalidConfig(f"{setting}{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InvalidConfig(f"{setting}{path} is not UTF-8") from None
    password = text.removesuffix("\n").removesuffix("\r")
    if not password:
        raise InvalidConfig(f"{setting}{path} contains no password")
    return password


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


_BACKLOG: Final = 1024
#: Maximum number of pending handshakes, in total and per address; more are dropped.
_MOST, _MOST_PER_HOST = 1024, 256
#: Timeout for the peer's close_notify.
_SHUTDOWN_S: Final = 1.0
#: Pause after a failed accept, for want of file descriptors for example.
_PAUSE_S: Final = 0.5


class TlsListener:
    """Listening sockets and pending handshakes."""

    def __init__(
        self, tls: Tls, make: Callable[[], asyncio.BaseProtocol], refused: Callable[[str], None], *, timeout_s: float
    ) -> None:
        """`make` creates the protocol of a connection; `refused` is called with the reason for a failed one."""
        self._tls = tls
        self._make = make
        self._refused = refused
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._by_host: Counter[str] = Counter()

    async def start(self, host: str, port: int) -> int:
        """Listen on all addresses of a host; return the port."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, *_, address in dict.fromkeys(found):
                self._sockets.append(made := _listening(family, (address[0], port, *address[2:])))
                port = port or int(made.getsockname()[1])
        except BaseException:
            self.close()
            raise
        self._accepting = [asyncio.create_task(self._accept(each)) for each in self._sockets]
        return port

    def close(self) -> None:
        """Stop listening and drop pending handshakes. Established connections stay open."""
        for task in (*self._accepting, *self._handshakes):
            task.cancel()
        for each in self._sockets:
            each.close()
        self._sockets.clear()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, peer = await self._loop.sock_accept(listening)
            except OSError as error:
                _logger.error("cannot accept a connection: %s", error.strerror or error)
                await asyncio.sleep(_PAUSE_S)
                continue
            host = str(peer[0])
            if len(self._handshakes) >= _MOST or self._by_host[host] >= _MOST_PER_HOST:
                accepted.close()
                self._refused("handshakes")
                continue
            task = self._loop.create_task(self._shake_hands(accepted, host))
            self._handshakes.add(task)
            self._by_host[host] += 1
            task.add_done_callback(lambda task, host=host: self._over(task, host))  # type: ignore[misc] # bind it now

    def _over(self, task: asyncio.Task[None], host: str) -> None:
        self._handshakes.discard(task)
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    async def _shake_hands(self, accepted: socket.socket, host: str) -> None:
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._make,
                accepted,
                ssl=self._tls.context,
                ssl_handshake_timeout=self._timeout_s,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
        except OSError as error:  # includes TLS errors and timeouts
            reason = getattr(error, "reason", None) or error.strerror or str(error) or type(error).__name__
            _logger.info("the TLS handshake with %s failed: %s", host, reason)
            self._refused("tls")
        except BaseException:
            accepted.close()
            raise


def _listening(family: int, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(_BACKLOG)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made
