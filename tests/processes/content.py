"""Records that can be checked by looking at them: each says which one it is and carries a digest of itself."""

from __future__ import annotations

import hashlib
import random

_DIGEST_BYTES = 8


class Wrong(AssertionError):
    """A record that nobody wrote."""


def make(name: str, size: int = 0) -> bytes:
    """A value that names itself, at least `size` bytes long; what fills it depends on the name alone."""
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
