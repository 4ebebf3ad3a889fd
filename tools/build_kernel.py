"""Compile src/sawlog/batch/kernel in place if its extension is missing or older than one of its sources.

The extension is `__init__.*.so`. Python prefers it to `__init__.py`, so a stale one silently hides every edit. The old
extension is therefore removed before the new one is built: if the build fails, the current source runs.

Exits with an error if the source does not compile. Without a C compiler, prints what the machine lacks.
"""

from __future__ import annotations

import importlib.machinery
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src/sawlog/batch/kernel"
GENERATED = ROOT / "build/cython"


def extensions() -> list[Path]:
    """Return every compiled kernel that this Python would import instead of the source."""
    candidates = (PACKAGE / f"__init__{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    return [path for path in candidates if path.exists()]


def sources() -> list[Path]:
    """Return the sources of the extension."""
    return [ROOT / "setup.py", *(path for path in PACKAGE.iterdir() if path.suffix in {".py", ".pyx", ".pxi", ".h"})]


def fresh() -> bool:
    """Return whether there is one extension and it is newer than all its sources."""
    found = extensions()
    made_from = max(path.stat().st_mtime_ns for path in sources())
    return len(found) == 1 and found[0].stat().st_mtime_ns > made_from


def remove_extensions() -> None:
    """Remove all compiled kernels."""
    for path in extensions():
        path.unlink()


def can_compile() -> bool:
    """Return whether a C file that includes Python.h compiles here."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    include = "-I" + sysconfig.get_path("include")
    command = [*compiler, include, "-fsyntax-only", "-x", "c", "-"]
    try:
        done = subprocess.run(command, input=b"#include <Python.h>\n", capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def build() -> int:
    """Compile the kernel. Without a compiler, print a note; the source then runs uncompiled."""
    remove_extensions()
    if not can_compile():
        print(
            "no C compiler, or no Python.h: the kernel runs as plain Python, correct but far slower.\n"
            "To compile it: install gcc or clang and Python's headers, then `make kernel`."
        )
        return 0
    print("compiling the kernel", flush=True)
    shutil.rmtree(GENERATED, ignore_errors=True)  # Cython trusts the modification times of restored files
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--force", "--inplace"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode == 0 and fresh():
        return 0
    words, _, _ = done.stdout.partition("Traceback (most recent call last)")  # ours, of no further use
    print(words.strip() or done.stdout, "the kernel does not compile", sep="\n", file=sys.stderr)
    return 1


def main() -> int:
    """Update the compiled kernel, according to its sources and SAWLOG_PURE."""
    if os.environ.get("SAWLOG_PURE", "0") not in {"", "0"}:
        remove_extensions()
        print("SAWLOG_PURE is set: the kernel runs as plain Python")
        return 0
    return 0 if fresh() else build()


if __name__ == "__main__":
    sys.exit(main())
