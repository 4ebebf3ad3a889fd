"""Self-describing values: each contains its name and a digest of itself."""

from __future__ import annotations

import hashlib
import random

_DIGEST_BYTES = 8


class Wrong(AssertionError):
    """Raised for a value that no process has written."""


def make(name: str, size: int = 0) -> bytes:
    """Return the value for a name, at least `size` bytes long. Its padding depends on the name alone."""
    head = f"{name}|".encode()
    body = head + random.Random(name).randbytes(max(size - len(head) - _DIGEST_BYTES, 0))
    return body + hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


def name_of(value: bytes | None) -> str:
    """Return the name in a value; `Wrong` if any of its bytes differs."""
    if value is None:
        raise Wrong("no value")
    body, digest = value[:-_DIGEST_BYTES], value[-_DIGEST_BYTES:]
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
        raise Wrong(f"a torn value: {value[:60]!r}")
    return body.partition(b"|")[0].decode()
