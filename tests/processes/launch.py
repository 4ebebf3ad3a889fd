"""Starting other Python processes that run one of the modules beside this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import sawlog

from .. import warm

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0


def start(module: str, *arguments: object, preexec: list[str] | None = None) -> subprocess.Popen[str]:
    """Start `python -m tests.processes.<module> arguments`, with its streams in pipes. Without `preexec`, fork it from
    a process that has imported the library."""
    path = os.pathsep.join([str(Path(sawlog.__file__).parents[1]), str(ROOT)])
    if preexec is None:
        pipe = subprocess.PIPE
        return warm.start(
            ["-m", f"tests.processes.{module}", *map(str, arguments)],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            environment={**os.environ, "PYTHONPATH": path},
            text=True,
        )
    return subprocess.Popen(
        [
            *preexec,
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            f"tests.processes.{module}",
            *map(str, arguments),
        ],
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a process that must succeed and return its output."""
    try:
        output, errors = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler shows where it hangs
        output, errors = process.communicate()
    said = f"{output[-2000:]}\n{errors[-6000:]}"
    assert process.returncode == 0, f"{process.args} ended with {process.returncode}:\n{said}"
    return output


def ready(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """Wait until a process says that it has opened its log."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if line != "ready\n":
        finish(process)
    assert line == "ready\n", line
    return process


def run(module: str, *arguments: object, preexec: list[str] | None = None) -> str:
    """Start a process, wait, and return its output."""
    return finish(start(module, *arguments, preexec=preexec))


def say(line: object) -> None:
    """Print one line to the parent at once, from a worker."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
