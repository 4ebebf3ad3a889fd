"""A separate process that runs one operation on a log and reports its peak memory.

    python peak.py WHAT LOG-DIRECTORY [MIB]

WHAT is records, arrow or views (scan the log to the end, as its writer and as a reader) or stream (append one record of
MIB mebibytes). The process prints JSON: the peak of resident memory above the interpreter's after its imports, and the
amount of work done. Mapped pages of the log count as resident.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

import sawlog

MIB = 1 << 20


def _status(field: str) -> int | None:
    """A field of /proc/self/status in bytes; None where there is no such file."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def peak() -> int:
    """The most memory that this process has had resident."""
    found = _status("VmHWM")
    if found is not None:
        return found
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _records(log: sawlog.Log) -> tuple[int, int]:
    count = size = 0
    for record in log.scan():
        count += 1
        size += len(record.key or b"") + len(record.value or b"")
    return count, size


def _arrow(log: sawlog.Log, *, views: bool = False) -> tuple[int, int]:
    count = size = 0
    for batch in log.scan_arrow(views=views):
        count += batch.num_rows
        for name in ("key", "value"):
            column: Any = batch.column(name)
            if not views:  # of a view the length is all that is asked for, so its bytes are touched by the CRC only
                size += pc.sum(pc.binary_length(column)).as_py()
            else:
                size += _view_bytes(column)
    return count, size


def _view_bytes(column: pa.Array) -> int:
    """The sum of the lengths in a binary_view array: the first of the four numbers that make up a view."""
    import numpy as np

    numbers = np.frombuffer(column.buffers()[1], np.int32).reshape(-1, 4)
    return int(numbers[column.offset : column.offset + len(column), 0].sum())


SCANS: dict[str, Callable[[sawlog.Log], tuple[int, int]]] = {
    "records": _records,
    "arrow": _arrow,
    "views": lambda log: _arrow(log, views=True),
}


def _scan(path: str, what: str, mode: Literal["r", "w"]) -> tuple[int, int]:
    with sawlog.Log.open(path, sawlog.LogConfig(durability="os"), mode=mode) as log:
        return SCANS[what](log)


def _stream(path: str, mib: int) -> tuple[int, int]:
    with sawlog.Log.open(path, sawlog.LogConfig(durability="os")) as log:
        log.append_stream(repeat(bytes(MIB), mib))
        return len(log), log.size_bytes // MIB * MIB


def main(what: str, path: str, mib: str = "0") -> None:
    """Do it and print the answer."""
    warm = pa.array([b""])  # the first array loads what every user of Arrow has loaded
    pc.sum(pc.binary_length(warm))
    baseline = _status("VmRSS") or peak()
    if what == "stream":
        done = [_stream(path, int(mib))]
    else:
        done = [_scan(path, what, "w"), _scan(path, what, "r")]
    print(json.dumps({"peak_bytes": peak() - baseline, "done": done}))


if __name__ == "__main__":
    main(*sys.argv[1:])
