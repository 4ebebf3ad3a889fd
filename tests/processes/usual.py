"""Append through the compiled fast path to a file that may not grow beyond a limit, again and again.

    python -m tests.processes.usual DIRECTORY

Each byte of a record is the limit once: the system writes the part that fits, or nothing. Each time the append
raises, the previous records are intact, and without the limit the log continues. The output counts the batches that the
fast path placed, and the appends that met the limit.
"""

from __future__ import annotations

import resource
import signal
import sys

from sawlog import Log, LogConfig
from sawlog.batch import kernel
from sawlog.errors import StorageFull

from .launch import say


def main(directory: str) -> None:
    kernel.COMPILED = True  # also where it is not
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    expected: list[bytes] = []
    met = 0
    with Log.open(directory, LogConfig(durability="os", index_interval_bytes=300)) as log:
        assert log._access.appender is not None
        for number in range(250):
            value = b"%d " % number * (number % 40)
            room = number % 230
            end = log._access.appender.active.segment.tail[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (end + room, hard))
            try:
                log.append(value)
                expected.append(value)
            except StorageFull:
                met += 1
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            value = b"after %d" % number
            assert log.append(value) == len(expected)
            expected.append(value)
            assert log.visible_offset == log.next_offset == len(expected)
        assert [record.value for record in log.scan()] == expected
        assert log.verify()
        placed = log._access.appender.placer.placed
    with Log.open(directory) as log:
        assert log.recovery.clean
        assert [record.value for record in log.scan()] == expected
    say(f"good {placed} {met}")


if __name__ == "__main__":
    main(sys.argv[1])
