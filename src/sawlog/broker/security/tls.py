"""The certificate of a listener, and loading it again while the broker runs.

`Tls.context` is what new connections use. When one of the files changes, or on SIGHUP, all are read again into a new
context; existing connections go on with the old one. If the new files are wrong (a key of another certificate, half a
file), that is logged and the old context stays in use until they change again.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import InvalidConfig
from .rules import client_auth

if TYPE_CHECKING:
    from ..config import BrokerConfig

_logger = logging.getLogger("sawlog.broker")

_VERIFY: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
#: What shows that a file has changed: for each its inode, size and time.
_Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where certificate and key are, and who may connect."""

    certificate: str
    key: str | None
    key_password: str | None
    client_ca: str | None
    client_auth: str

    @classmethod
    def of(cls, config: BrokerConfig) -> TlsFiles | None:
        """As the settings say; None: no TLS."""
        if config.tls_certificate is None:
            return None
        return cls(
            config.tls_certificate,
            config.tls_key,
            config.tls_key_password_file,
            config.tls_client_ca,
            client_auth(config),
        )

    def load(self) -> ssl.SSLContext:
        """Read the files; `InvalidConfig` if they are wrong."""
        self._check_kinds()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        load_chain(context, self.certificate, self.key, self.key_password)
        context.verify_mode = _VERIFY[self.client_auth]
        if self.client_ca is not None:
            load_authorities(context, self.client_ca, "tls_client_ca")
        return context

    def _check_kinds(self) -> None:
        """Raise if something is no file: reading from a pipe would wait for ever."""
        given = {
            "tls_certificate": self.certificate,
            "tls_key": self.key,
            "tls_key_password_file": self.key_password,
            "tls_client_ca": self.client_ca,
        }
        for setting, each in given.items():
            if each and Path(each).exists() and not Path(each).is_file() and not Path(each).is_dir():
                raise InvalidConfig(f"{setting}: {each} cannot be read: it is not a regular file")

    def stamp(self) -> _Stamp:
        """What is different when a file was changed."""
        return tuple(_stamp(each) for each in (self.certificate, self.key, self.key_password, self.client_ca) if each)


class Tls:
    """The context that is in use. `load` and `refresh` may wait for the disk; one thread at a time."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamp: _Stamp = files.stamp()
        self.context = files.load()

    @property
    def requires_certificate(self) -> bool:
        """Whether every client has shown a certificate."""
        return self._files.client_auth == "required"

    def refresh(self, *, force: bool = False) -> bool:
        """Read the files again if one has changed; whether other ones are in use now."""
        stamp = self._files.stamp()
        if stamp == self._stamp and not force:
            return False
        self._stamp = stamp
        try:
            self.context = self._files.load()
        except InvalidConfig as error:
            _logger.error("the certificate was not reloaded, the previous one stays in use: %s", error)
            return False
        _logger.info("reloaded the certificate %s", self._files.certificate)
        return True


def load_chain(context: ssl.SSLContext, certificate: str, key: str | None, password_file: str | None) -> None:
    """Read a certificate with its chain, and its key, which may be in the same file; `InvalidConfig`."""

    was_asked = False

    def password() -> str:  # asked for only if the key is encrypted; without this OpenSSL would ask the terminal
        nonlocal was_asked
        was_asked = True
        if password_file is None:
            raise InvalidConfig(f"the key {key or certificate} is encrypted: set tls_key_password_file")
        return read_password(Path(password_file), "tls_key_password_file: ")

    try:
        context.load_cert_chain(certificate, key, password)
    except ssl.SSLError as error:
        where = certificate if key is None else f"{certificate} with tls_key: {key}"
        reason = error.reason or "no certificate or no key in it, or only a part of it"
        if was_asked:  # the certificate has been read, and the key begins as one should
            reason = f"the password in tls_key_password_file: {password_file} is not that of the key"
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
    """Read certificates of authorities; `InvalidConfig`."""
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        reason = error.reason or "it is damaged, or only a part of it"
        raise InvalidConfig(f"{setting}: {path} has no certificate: {reason}") from None
    except OSError as error:
        raise InvalidConfig(f"{setting}: {path} cannot be read: {error.strerror}") from error


def read_password(path: Path, setting: str = "") -> str:
    """The password in a file: all of it but the end of the line. No message contains any of it; they begin with
    `setting`."""
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


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
