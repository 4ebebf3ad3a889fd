"""What the suites use to state a promise: bytes to write, and errors that must be raised."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

#: More than a page, more than any buffer that a storage may keep, and not a multiple of either.
LARGE_BYTES = (3 << 20) + 17


@contextmanager
def refused(kind: type[BaseException]) -> Iterator[None]:
    """The block must raise this kind of error."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def pattern(size_bytes: int, seed: int = 0) -> bytes:
    """Bytes without a pattern, the same for the same seed."""
    return random.Random(seed).randbytes(size_bytes)
