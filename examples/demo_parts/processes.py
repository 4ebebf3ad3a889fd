"""The processes of the demo: a broker, and Spark jobs, which are killed together with their Java and Python workers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Process = subprocess.Popen[str]


@contextmanager
def started(output: Path, *arguments: object) -> Iterator[Process]:
    """Run Python with these arguments in a process group of its own, so that everything it starts is killed with it."""
    with (output / "job.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
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


def kill(process: Process) -> None:
    """Kill the whole process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


@contextmanager
def broker(output: Path, store: Path) -> Iterator[str]:
    """Serve the store to Kafka clients; yield the address."""
    with started(output, "-m", "sawlog.cli", "serve", "-d", store, "--listen", "127.0.0.1:0") as process:
        listening = re.match(r"listening on (\S+:\d+)", _line(process, output))
        assert listening is not None
        yield listening[1]
        process.terminate()
        process.wait()


def ask(process: Process, step: str) -> None:
    """Tell a job to run a step."""
    assert process.stdin is not None
    process.stdin.write(f"{step}\n")
    process.stdin.flush()


def answer(process: Process, output: Path) -> dict[str, Any]:
    """Wait for a job's step and return its result."""
    found: dict[str, Any] = json.loads(_line(process, output))
    return found


def _line(process: Process, output: Path) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        sys.exit(f"a process ended too early; {output / 'job.log'} says why")
    return line
