"""The jobs of the demo: separate processes, which are killed together with their Java and Python workers."""

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
    """A program in its own process group, so that everything it starts is killed with it."""
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
    """Kill the whole process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
