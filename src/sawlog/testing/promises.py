"""Helpers of the suites: bytes to write, and errors that must be raised."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

#: Larger than a page and than any buffer of a storage, and not a multiple of either.
LARGE_BYTES = (3 << 20) + 17


@contextmanager
def refused(kind: type[BaseException]) -> Iterator[None]:
    """Fail unless the block raises this kind of error."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def pattern(size_bytes: int, seed: int = 0) -> bytes:
    """Return pseudo-random bytes, the same for the same seed."""
    return random.Random(seed).randbytes(size_bytes)
