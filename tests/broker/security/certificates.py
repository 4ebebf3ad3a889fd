"""Certificates for tests, created on demand: an authority and its signed certificates, as files."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization


@dataclass(frozen=True)
class Files:
    """A certificate and its key."""

    certificate: str
    key: str


class Authority:
    """A certificate authority, and a directory for its certificates."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made = trustme.CA()
        self.file = str(directory / "ca.pem")
        directory.mkdir(parents=True, exist_ok=True)
        self._made.cert_pem.write_to_path(self.file)

    def server(self, name: str = "server") -> Files:
        """The certificate of a broker on this machine."""
        return self._files(name, self._made.issue_cert("localhost", "127.0.0.1"))

    def client(self, name: str, organization: str | None = None) -> Files:
        """The certificate of a client."""
        made = self._made.issue_cert(f"{name}@example.org", common_name=name, organization_name=organization)
        return self._files(name, made)

    def lock(self, files: Files, password: str) -> str:
        """The key, encrypted: the path of another file."""
        locked = _pkcs8(files, serialization.BestAvailableEncryption(password.encode()))
        Path(f"{files.key}.locked").write_bytes(locked)
        return f"{files.key}.locked"

    def together(self, files: Files) -> str:
        """Key and certificate in one file, as Java wants them."""
        both = _pkcs8(files, serialization.NoEncryption()) + Path(files.certificate).read_bytes()
        Path(f"{files.key}.both").write_bytes(both)
        return f"{files.key}.both"

    def trusting(self, files: Files | None = None) -> ssl.SSLContext:
        """A client's side: it trusts this authority, and may have a certificate."""
        context = ssl.create_default_context(cafile=self.file)
        if files is not None:
            context.load_cert_chain(files.certificate, files.key)
        return context

    def _files(self, name: str, made: trustme.LeafCert) -> Files:
        files = Files(str(self._directory / f"{name}.pem"), str(self._directory / f"{name}.key"))
        Path(files.certificate).write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
        made.private_key_pem.write_to_path(files.key)
        return files


def _pkcs8(files: Files, encryption: serialization.KeySerializationEncryption) -> bytes:
    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def serial_of(context: ssl.SSLContext, address: str) -> str:
    """The serial number of the certificate that a broker shows to a new connection."""

    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 20) as plain,
        context.wrap_socket(plain, server_hostname=host) as tls,
    ):
        found = tls.getpeercert()
        assert found is not None
        return str(found["serialNumber"])
