"""The compiled kernel under AddressSanitizer and UBSan; `python -m tests.faults asan --executions N`.

Builds the kernel with both sanitizers into `build/asan` (tools/build_asan.py), puts a package with that kernel first on
the path, and runs with it, each in its own process with libasan preloaded:

1. the seeds and the corpus of every fuzz target,
2. mutated inputs for the kernel's functions and for both readers of batches,
3. tests/batch.

A read or write one byte outside a buffer, or a shift or overflow that C leaves undefined, ends the process with a
trace: a violation. If the compiler has no sanitizers the command says so and exits with 2: not run is not passed.

Leaks are not checked: Python keeps interned objects until it exits. Python's own allocator is off, so that the end of
every bytes object is guarded; the fuzz targets use arrays, which lack the spare byte of bytes objects.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from . import shadow
from .report import Tally, say

OPTIONS = "detect_leaks=0:abort_on_error=0:exitcode=99:allocator_may_return_null=1:handle_abort=1"
TRACE = "print_stacktrace=1:halt_on_error=1"


def builder() -> ModuleType:
    """tools/build_asan.py, which is a program and not in a package."""
    spec = importlib.util.spec_from_file_location("build_asan", shadow.ROOT / "tools/build_asan.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def environment(package: Path, libraries: list[Path]) -> dict[str, str]:
    """Return the environment for a process that uses that package under the sanitizers."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(package), str(shadow.ROOT)]),
        "LD_PRELOAD": " ".join(map(str, libraries)),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": OPTIONS,
        "UBSAN_OPTIONS": TRACE,
    }


#: Proves that the instrumented kernel is in use and that the sanitizer reports an error.
CHECK = """
import sawlog.batch.kernel as kernel
assert kernel.COMPILED, "the kernel is not compiled"
with open(kernel.__file__, "rb") as file:
    assert b"__asan_report_load1" in file.read(), f"{kernel.__file__} is not instrumented"
print(kernel.__file__)
"""


def steps(options: argparse.Namespace) -> list[tuple[str, list[str]]]:
    fuzz = ["-m", "tests.faults", "fuzz", f"--seed={options.seed}", f"--keep={options.keep}"]
    mutated = ["--target=kernel", "--target=batch", "--target=frames", f"--executions={options.executions}"]
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "tests/batch"]
    return [
        ("the instrumented kernel is the one that runs", ["-c", CHECK]),
        ("corpus", [*fuzz, "--replay"]),
        ("mutation", [*fuzz, *mutated, f"--processes={options.processes}"]),
        *([("tests/batch", tests)] if not options.without_tests else []),
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--executions", type=int, default=200_000, help="mutated inputs (default: 200,000)")
    parser.add_argument("--processes", type=int, default=1, help="how many at once for them (default: 1)")
    parser.add_argument("--keep", default="build/fuzz", help="where inputs go that break something")
    parser.add_argument("--without-tests", action="store_true", help="leave out tests/batch")


def run(options: argparse.Namespace) -> int:
    tools = builder()
    lacking = tools.missing()
    if lacking is not None:
        say(f"NOT RUN: {lacking}")
        return 2
    libraries = [tools.library(name) for name in ("libasan.so", "libubsan.so")]
    kernel = tools.build()
    tally = Tally("AddressSanitizer", None, "steps")
    with tempfile.TemporaryDirectory() as work:
        env = environment(shadow.make(Path(work), kernel), libraries)
        for what, command in steps(options):
            done = subprocess.run(
                [sys.executable, *command], env=env, cwd=shadow.ROOT, capture_output=True, text=True, check=False
            )
            tally.advance(what=what)
            say(f"{what}: {(done.stdout.strip().splitlines() or ['nothing said'])[-1]}")
            if done.returncode:
                tally.violation(f"{what} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}")
    return tally.finish()
