"""Conformance suites to inherit, one per interface: `DirectorySuite`, `StorageSuite` and `StoreSuite`.

Subclass a suite and define the fixture it takes: `directory`, which returns a new, empty `Directory`, or, for
`StoreSuite`, `store`, which returns a new `sawlog.store.base.Store`. The suite then checks each guarantee of the
interface, using only the interface. The name of a test is the guarantee.

A directory need not have `published`: the log then uses `replace` and `read` instead, and its tests are skipped.

This module holds what the suites share.
"""

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
