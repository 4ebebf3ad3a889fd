"""Parse and run the documents: fenced blocks, console sessions, whole pages.

A page is a list of steps, in order:

    ```python          a program, run in a fresh namespace; if its first line is `# name.py` it is saved as that file
    ```console         commands after `$ `, each followed by its output
    ```                directly after a program: its output; without this block it prints nothing

A program that ends with an exception prints the last line of the traceback. A command that is a single call of
`sawlog`, possibly after `echo TEXT |`, runs in this process, which takes a tenth of the time; other commands run in a
shell whose `sawlog` and `python` are those of this environment.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import stat
import subprocess
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import sawlog

from .cli.conftest import Cli

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 300.0
#: A program and its output.
_PAIR = re.compile(r"^```python\n(.*?)^```\n\n```\n(.*?)^```", re.DOTALL | re.MULTILINE)
_STEP = re.compile(r"^```(python|console)\n(.*?)^```\n(?:\n```\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# (\w+\.py)\n")
#: Environment variables that change the output of programs.
_LOUD = ("COLUMNS", "SAWLOG_DATA", "SAWLOG_BROKER", "FORCE_COLOR", "PYTHONWARNINGS")
#: Parts that vary from run to run: durations, rates, process and host names.
_TIMING = re.compile(r"( in|,) [\dN.]+ (ms|s|min)(: [\dN.]+ \S+/s, [\dN.]+k? records/s)?$", re.MULTILINE)
_PROCESS = re.compile(r"process (\d+|N) on [\w.-]+")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a page and its expected output."""

    kind: Literal["program", "file", "command"]
    text: str
    shown: str
    #: Of a file.
    name: str = ""


def blocks(text: str, kind: str) -> list[str]:
    """The fenced blocks of one kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def pairs(text: str) -> list[tuple[str, str]]:
    """Return each program with the output shown below it."""
    return _PAIR.findall(text)


def sessions(block: str) -> list[tuple[str, list[str]]]:
    """The commands of a console block with the lines that follow each."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def steps(text: str) -> list[Step]:
    """All programs, files and commands of a page, in order."""
    found: list[Step] = []
    for kind, block, shown in _STEP.findall(text):
        if kind == "console":
            found += [Step("command", command, "\n".join(lines)) for command, lines in sessions(block)]
        elif (named := _FILE.match(block)) is not None:
            found.append(Step("file", block, "", named[1]))
        else:
            found.append(Step("program", block, shown))
    return found


# --- running


def make_program(place: Path, name: str = "sawlog", module: str = "-m sawlog.cli") -> None:
    """A program in `bin` that runs this Python."""
    (place / "bin").mkdir(exist_ok=True)
    program = place / "bin" / name
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def shell_output(place: Path, command: str) -> str:
    """Run a command in a shell and return its stdout followed by its stderr."""
    environment = {
        **{name: value for name, value in os.environ.items() if name not in _LOUD},
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(sawlog.__file__).parents[1]),
    }
    done = subprocess.run(
        command, shell=True, cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def typed(command: str) -> list[str]:
    """Run a `sawlog` command in this process and return its output; `echo TEXT |` becomes its input."""
    given, _, rest = command.rpartition(" | ")
    text = " ".join(shlex.split(given)[1:]) + "\n" if given else ""
    name, *arguments = shlex.split(rest)
    assert name == "sawlog"
    done = Cli(Path("data"))(*arguments, stdin=text.encode())
    return (done.out + done.err).splitlines()


def run_program(code: str) -> str:
    """Run a program and return its output, followed by the last line of an uncaught exception."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "(open|read)_text is deprecated", DeprecationWarning
        )  # kafka-python uses them
        try:
            exec(compile(code, "snippet", "exec", dont_inherit=True), {"__name__": "__main__"})
        except Exception as error:
            printed.write("".join(traceback.format_exception_only(error)))
    return printed.getvalue()


def take(step: Step, place: Path) -> str:
    """Run one step in the current directory and return its output."""
    if step.kind == "file":
        (place / step.name).write_text(step.text)
        return ""
    if step.kind == "program":
        return run_program(step.text)
    if re.fullmatch(r"(echo [^|;&<>]* \| )?sawlog [^|;&<>$]*", step.text):
        return "\n".join(typed(step.text))
    return shell_output(place, step.text)


# --- comparing


def without_timing(lines: list[str]) -> list[str]:
    """The lines without how long it took, sorted."""
    return sorted(_TIMING.sub("", line) for line in lines if line)


def steady(printed: str) -> list[str]:
    """Return the lines without the parts that vary: times, process ids, the message about a killed process."""
    text = _TIMING.sub("", _PROCESS.sub("process N on HOST", printed))
    return [line.rstrip() for line in text.splitlines() if line.strip() and line != "Killed"]


def without_numbers(printed: str) -> list[str]:
    """Return the lines without numbers and widths, for a page that runs again in the same directory: offsets and counts
    continue, and topics exist already."""
    text = re.sub(r"\d+", "N", printed.replace(": already exists", ": created"))
    return [re.sub(r"\s+", " ", line) for line in steady(text)]
