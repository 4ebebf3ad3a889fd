"""The interface of a suite, and a function that runs build programs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .brokers import Wanted
from .outcomes import Outcome

#: Called with each test that ended.
Told = Callable[[str, Outcome], None]


class CannotRun(Exception):
    """A suite cannot be fetched or built here. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request to a suite: the broker's address, the tests, and the output directory."""

    address: str
    #: Only tests whose name contains one of these; none: all.
    only: tuple[str, ...]
    #: Only these tests, by their full names, one at a time; none: all.
    again: tuple[str, ...]
    #: Directory of the logs.
    directory: Path
    #: Time limit of the whole run.
    limit_s: float
    told: Told


class Suite(Protocol):
    """A third-party test suite."""

    name: str
    version: str
    #: Description and origin, on one line.
    about: str
    wanted: Wanted

    def prepare(self) -> None:
        """Fetch and build the suite, unless it is in the cache."""
        ...

    def run(self, job: Job) -> None:
        """Run the tests, and report each."""
        ...


def build(command: Sequence[str], where: Path, log: Path, env: Mapping[str, str] | None = None) -> None:
    """Run a program that fetches or builds something, with its output in a log; the error shows the end of the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        output.write(f"$ {' '.join(command)}\n".encode())
        output.flush()
        try:
            done = subprocess.run(
                command, cwd=where, env={**os.environ, **(env or {})}, stdout=output, stderr=output, check=False
            )
        except FileNotFoundError as error:
            raise CannotRun(f"{command[0]} is needed, and is not installed") from error
    if done.returncode != 0:
        end = log.read_text(encoding="utf-8", errors="replace")[-1500:]
        raise CannotRun(f"{' '.join(command)} failed; {log} has all it said, which ends with:\n{end}")


def matches(name: str, job: Job) -> bool:
    """Return whether a test was requested."""
    if job.again:
        return name in job.again
    return not job.only or any(each in name for each in job.only)
