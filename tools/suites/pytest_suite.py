"""Shared code of the pytest suites: a virtual environment, a run, and outcomes from `recorder`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .outcomes import Outcome
from .suite import CannotRun, Job, build, matches

_PLUGINS = Path(__file__).parent / "inside"


def make_environment(home: Path, packages: Sequence[str], log: Path) -> Path:
    """Create a virtual environment with these packages unless it exists; return its Python."""
    python = home / "venv" / "bin" / "python"
    ready = home / "venv" / "ready"
    wanted = "\n".join(packages)
    if not ready.exists() or ready.read_text(encoding="utf-8") != wanted:
        build([sys.executable, "-m", "venv", "--clear", str(home / "venv")], home, log)
        build([str(python), "-m", "pip", "install", "--quiet", *packages], home, log)
        ready.write_text(wanted, encoding="utf-8")
    return python


def run_pytest(
    job: Job, python: Path, where: Path, arguments: Sequence[str], tests: str, environment: Mapping[str, str]
) -> None:
    """Run pytest on a directory of tests, and report each test as it ends."""
    record, log = job.directory / "outcomes.jsonl", job.directory / "pytest.log"
    record.write_text("", encoding="utf-8")
    command = [str(python), "-m", "pytest", "-v", "-p", "recorder", "-p", "no:cacheprovider", *arguments]
    command += job.again or [tests]
    if job.only and not job.again:
        command += ["-k", " or ".join(job.only)]
    given = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))},
        "SUITE_RECORD": str(record),
        "PYTHONPATH": str(_PLUGINS),
        **environment,
    }
    deadline = time.monotonic() + job.limit_s
    with log.open("wb") as output, record.open(encoding="utf-8") as lines:
        process = subprocess.Popen(
            command,
            cwd=where,
            env=given,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            ended = False
            while not ended:
                ended = process.poll() is not None or time.monotonic() > deadline
                told = _tell(job, lines.readlines())
                if not (ended or told):
                    time.sleep(0.5)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
    if code not in (0, 1):  # 1: tests failed
        end = log.read_text(encoding="utf-8", errors="replace")[-1500:]
        raise CannotRun(f"pytest ended with {code}; {log} ends with:\n{end}")


def _tell(job: Job, lines: Sequence[str]) -> int:
    for line in lines:
        kept = json.loads(line)
        name = kept.pop("test")
        if matches(name, job):
            job.told(name, Outcome(**kept))
    return len(lines)
