"""Append and read with the installed sawlog, in a temporary directory. `make dist` and the release workflow run it.

`--compiled`: fail unless the kernel is compiled.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import sawlog


def main() -> None:
    """Write a log, reopen it and read it back; raise if anything differs."""
    home = Path(str(sawlog.__file__)).resolve()
    if not home.is_relative_to(Path(sys.prefix).resolve()):
        raise SystemExit(f"not the installed sawlog: {home}")
    values = [b"one", b"two", b"three"]
    with tempfile.TemporaryDirectory() as directory:
        log = sawlog.Log.open(Path(directory) / "log")
        offsets = [log.append(value, key=b"key") for value in values]
        log.close()
        log = sawlog.Log.open(Path(directory) / "log", mode="r")
        read = [record.value for record in log.scan(0, len(values))]
        log.close()
    if (offsets, read) != ([0, 1, 2], values):
        raise SystemExit(f"appended {values} at {offsets}, read {read}")
    compiled = sawlog.kernel_info().compiled
    if "--compiled" in sys.argv and not compiled:
        raise SystemExit("the kernel is not compiled")
    kernel = "compiled" if compiled else "plain Python"
    print(f"sawlog {sawlog.__version__}: appended and read {len(values)} records, kernel: {kernel}")


if __name__ == "__main__":
    main()
