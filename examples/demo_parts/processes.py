"""The jobs of the demo: processes of their own, with Java and workers, which are killed with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def started(output: Path, program: Path, *given: object) -> Iterator[subprocess.Popen[str]]:
    """A program in a process group of its own, so that everything that it starts can be killed with it."""
    with (output / "job.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, str(program), *map(str, given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """All of it, now."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
