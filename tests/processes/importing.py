"""An import that kills itself during a write.

    python -m tests.processes.importing SOURCE TARGET [NTH]

Reads small chunks, which makes many appends. The process kills itself after half of the NTH write to a segment. Without
NTH it runs to the end and prints "done".
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from sawlog import Log, LogConfig, interop
from sawlog.interop import frames, importing, laminarmq, walking
from sawlog.storage.file import FileStorage

from .launch import say

SETTINGS = LogConfig(durability="os", segment_bytes=300_000)
CHUNK_BYTES = 20_000


def die_at(nth: int) -> None:
    """Kill the process in the middle of the nth write to a segment."""
    count = 0
    write = FileStorage.append

    def append(self: FileStorage, data: Any) -> int:
        nonlocal count
        count += self.name.endswith(".log")
        if count == nth:
            write(self, memoryview(data)[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(self, data)

    FileStorage.append = append  # type: ignore[method-assign]


def main(source: str, target: str, nth: int = 0) -> None:
    """Import, or get killed."""
    for module in (walking, frames, laminarmq):
        module.CHUNK_BYTES = CHUNK_BYTES  # type: ignore[attr-defined]
    importing.APPEND_BYTES = CHUNK_BYTES
    if nth:
        die_at(nth)
    with Log.open(target, SETTINGS) as log:
        say("ready")
        interop.import_log(source, log)
    say("done")


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
