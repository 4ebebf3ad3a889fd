"""The limits of this machine: copying memory, checksums, writing, syncing. And a description of the machine."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from crc32c import crc32c
from rounds import Candidate, Trial, expect, timed

#: From some KiB on glibc copies with `rep movsb`, which on some processors (AMD Zen 3) runs at a tenth of the speed
#: whenever source and destination lie unluckily within their pages. That is a lottery, not a measurement.
STEADY_COPIES = "glibc.cpu.x86_rep_movsb_threshold=1000000000"


def with_steady_copies() -> None:
    """Start this process again with `rep movsb` of the C library switched off, unless that is already configured."""
    if sys.platform == "linux" and platform.machine() == "x86_64" and "GLIBC_TUNABLES" not in os.environ:
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "GLIBC_TUNABLES": STEADY_COPIES})


def memory_copy(size_bytes: int) -> Candidate:
    """Copy `size_bytes` from one buffer to another; both have been touched before."""
    source, target = np.ones(size_bytes, np.uint8), np.zeros(size_bytes, np.uint8)

    @contextmanager
    def trial() -> Iterator[Trial]:
        target[-1] = 0
        yield Trial(lambda: timed(lambda: np.copyto(target, source)), lambda: expect(int(target[-1]), 1, "copy"))

    return Candidate("memory copy", trial)


def checksum(size_bytes: int) -> Candidate:
    """Compute the CRC-32C of `size_bytes`."""
    source = np.ones(size_bytes, np.uint8)
    wanted = crc32c(source)

    @contextmanager
    def trial() -> Iterator[Trial]:
        found: list[int] = []
        yield Trial(lambda: timed(lambda: found.append(crc32c(source))), lambda: expect(found, [wanted], "CRC-32C"))

    return Candidate("CRC-32C", trial)


def plain_write(directory: Path, chunk: bytes, count: int) -> Candidate:
    """`os.write` of the same chunk again and again into a new file."""

    @contextmanager
    def trial() -> Iterator[Trial]:
        path = directory / "plain-write"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

        def work() -> None:
            for _ in range(count):
                os.write(fd, chunk)

        try:
            yield Trial(
                lambda: timed(work),
                lambda: expect(os.fstat(fd).st_size, count * len(chunk), "bytes in the plain file"),
            )
        finally:
            os.close(fd)
            path.unlink()

    return Candidate("write", trial)


def description(directory: Path) -> dict[str, str]:
    """Describe the machine and the versions of the candidates."""
    import lmdb
    import pyarrow as pa

    import sawlog

    return {
        "system": f"{platform.system()} {platform.release()}, {os.cpu_count()} x {_processor()}",
        "python": f"{platform.python_version()} ({sys.implementation.name})",
        "versions": f"sawlog {sawlog.__version__}, pyarrow {pa.__version__}, numpy {np.__version__}, "
        f"lmdb {lmdb.__version__}",
        "kernel": str(sawlog.kernel_info()).split(":", 1)[0],
        "directory": f"{directory} ({_file_system(directory)}, {shutil.disk_usage(directory).free >> 30} GiB free)",
        "load": f"{load():.1f} when it started",
        "tunables": os.environ.get("GLIBC_TUNABLES", "none"),
    }


def load() -> float:
    """Load average. Above the number of processors, wall times are unreliable."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _file_system(directory: Path) -> str:
    """Its kind, from the longest mount point above the directory."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown file system"
    inside = [(len(point), kind) for point, kind in mounts if directory.is_relative_to(point)]
    return max(inside)[1] if inside else "unknown file system"
