"""Programs as processes of their own, without the time that each takes to import the library.

One process imports what they need and forks for each of them, one after the other. A program notices nothing of it: it
has its own working directory, arguments, environment and output, and ends as any Python does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE_S = 300.0

#: Reads a list of jobs, and writes the exit code of each. What a fork runs comes after the loop, at the top level.
_FORKER = r"""
import asyncio, concurrent.futures, json, os, runpy, subprocess, sys, tempfile, threading
import numpy
from sawlog import *
import sawlog.batch.arrow
jobs, codes = json.load(sys.stdin), []
for job in jobs:
    child = os.fork()
    if child == 0:
        break
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    print(json.dumps(codes))
    sys.exit()
for number, name, flags in ((0, os.devnull, os.O_RDONLY), (1, job["out"], os.O_WRONLY), (2, job["err"], os.O_WRONLY)):
    os.dup2(os.open(name, flags), number)
os.chdir(job["cwd"])
os.environ.update(job["environment"])
tempfile.tempdir = None
program = job["program"]
sys.argv = [program or "-c", *job["arguments"]]
sys.path[0] = os.path.dirname(program) if program else ""
names = {name: value for name, value in globals().items() if name == "__builtins__"}
if program:
    runpy.run_path(program, run_name="__main__")
else:
    exec(compile(job["code"], "<string>", "exec", dont_inherit=True), {**names, "__name__": "__main__"})
"""


@dataclass(frozen=True, slots=True)
class Job:
    """A program to run: a file, or code."""

    cwd: Path
    program: Path | None = None
    code: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()


def run_all(jobs: Sequence[Job], *flags: str, without: Sequence[str] = ()) -> list[subprocess.CompletedProcess[str]]:
    """Run the programs in their order; `flags` are Python's, variables `without` are taken from the environment."""
    with tempfile.TemporaryDirectory() as place:
        given = []
        for number, job in enumerate(jobs):
            out, err = Path(place, f"{number}.out"), Path(place, f"{number}.err")
            out.touch()
            err.touch()
            given.append(
                {
                    "cwd": str(job.cwd),
                    "program": None if job.program is None else str(job.program),
                    "code": job.code,
                    "environment": job.environment,
                    "arguments": list(job.arguments),
                    "out": str(out),
                    "err": str(err),
                }
            )
        environment = {name: value for name, value in os.environ.items() if name not in without}
        done = subprocess.run(
            [sys.executable, *flags, "-c", _FORKER],
            input=json.dumps(given),
            env={**environment, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [
            subprocess.CompletedProcess(
                [job["program"] or job["code"]],
                code,
                Path(job["out"] or "").read_text(encoding="utf-8"),
                Path(job["err"] or "").read_text(encoding="utf-8"),
            )
            for job, code in zip(given, json.loads(done.stdout), strict=True)
        ]
