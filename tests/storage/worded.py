"""Words in a file that is mapped, with and without a futex."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sawlog.storage import words as words_module
from sawlog.storage.words import WORD_BYTES, Words

COUNT = 16
#: Words begin here, as they follow something else in a real file.
POSITION = 64
KINDS = ["futex", "polled"]


@contextmanager
def opened(kind: str, path: Path, *, writable: bool = True) -> Iterator[Words]:
    """Open the words of a file: with a futex, or polled."""
    size = POSITION + COUNT * WORD_BYTES
    if not path.exists():
        path.write_bytes(bytes(size))
    with path.open("r+b" if writable else "rb") as file:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        view = memoryview(mmap.mmap(file.fileno(), size, access=access))[POSITION:]
        with pytest.MonkeyPatch.context() as patch:
            if kind == "polled":
                patch.setattr(words_module, "_futex", None)
                patch.setattr(words_module, "_waitv", None)
            yield Words(view)
