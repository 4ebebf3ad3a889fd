"""The process that act four kills: it appends durably and reports each record, until it dies within one.

It prints `ack OFFSET` once a record is acknowledged, and `stream` when a long one begins. The content of a record
follows from its offset, so a reader can check it afterwards.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from sawlog import Log

#: Short records between two streamed ones.
SHORT = 100
CHUNK = bytes(range(256)) * 256
CHUNKS = 64
#: Streamed records that it completes; the process is killed in the middle of the next one, which has this many chunks.
FINISHED, CHUNKS_OF_THE_LAST = 1, 4096


def is_streamed(offset: int) -> bool:
    """Return whether the record at this offset is a long one."""
    return offset % (SHORT + 1) == SHORT


def value_at(offset: int) -> bytes:
    """Return the content of the record at this offset."""
    return CHUNK * CHUNKS if is_streamed(offset) else b"receipt %d" % offset


def _upload(chunks: int) -> Iterator[bytes]:
    """Yield a large value slowly, as over a network."""
    for _ in range(chunks):
        yield CHUNK
        time.sleep(0.002)


def main(path: str) -> None:
    """Append until the process is killed."""
    streamed = 0
    with Log.open(path) as log:
        while True:
            if is_streamed(log.next_offset):
                print("stream", flush=True)
                offset = log.append_stream(_upload(CHUNKS if streamed < FINISHED else CHUNKS_OF_THE_LAST))
                streamed += 1
            else:
                offset = log.append(value_at(log.next_offset))
            print(f"ack {offset}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
