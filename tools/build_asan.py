"""Compile the kernel with AddressSanitizer and UndefinedBehaviorSanitizer into build/asan and print its path.

`python -m tests.faults asan` uses it. The kernel in the package is not touched. Exits with 2 and names the missing part
if the compiler or its sanitizers are not installed.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/sawlog/batch/kernel/__init__.pyx"
PLACE = ROOT / "build/asan"
FLAGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


def library(name: str) -> Path | None:
    """Return the path of a sanitizer's runtime, which must be loaded before Python."""
    try:
        done = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    found = Path(done.stdout.strip())
    return found if found.is_absolute() and found.exists() else None


def missing() -> str | None:
    """Return a description of what this machine lacks, if anything."""
    try:
        subprocess.run(["gcc", "--version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "there is no gcc here"
    for name in ("libasan.so", "libubsan.so"):
        if library(name) is None:
            return f"{name} is missing: install gcc's sanitizers (libasan, libubsan; part of libgcc-dev on Debian)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python.h is missing: install Python's headers"
    return None


def target() -> Path:
    """Return the path of the extension."""
    return PLACE / f"__init__{sysconfig.get_config_var('EXT_SUFFIX')}"


def build() -> Path:
    """Return the extension; build it if it is missing or older than its source."""
    made = target()
    sources = [
        Path(__file__),
        *(path for path in SOURCE.parent.iterdir() if path.suffix in {".py", ".pyx", ".pxi", ".h"}),
    ]
    if made.exists() and made.stat().st_mtime_ns > max(path.stat().st_mtime_ns for path in sources):
        return made
    PLACE.mkdir(parents=True, exist_ok=True)
    made.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as work:
        generated = Path(work) / "kernel.c"
        # The module's full name, so that it can replace the package's own kernel.
        command = ["-m", "cython", "-3", "--module-name", "sawlog.batch.kernel", str(SOURCE), "-o", str(generated)]
        subprocess.run([sys.executable, *command], check=True)
        includes = [f"-I{folder}" for folder in (sysconfig.get_path("include"), SOURCE.parent)]
        subprocess.run(["gcc", "-shared", "-fPIC", *FLAGS, *includes, str(generated), "-o", str(made)], check=True)
    return made


def main() -> int:
    """Build the extension and print its path."""
    lacking = missing()
    if lacking is not None:
        print(f"cannot build with AddressSanitizer: {lacking}", file=sys.stderr)
        return 2
    print(build())
    return 0


if __name__ == "__main__":
    sys.exit(main())
