"""Running the program as a person would.

`sawlog("topic", "list", ...)` runs a command line inside this process: quick, for the many cases of arguments.
`program` starts the real one, for pipes, signals and locks. Both know where the store is and see nothing of the
caller's settings.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sawlog.cli import run
from sawlog.store.directory.store import DirectoryStore

from .. import warm

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Result:
    """Exit code and output of a command."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def ok(self) -> Result:
        assert self.code == 0, f"ended with {self.code}: {self.err}\n{self.out[-2000:]}"
        return self

    def failed(self, code: int) -> str:
        """Assert the exit code, and that stderr ends with one line that starts with the program's name; return it."""
        assert self.code == code, f"ended with {self.code}: {self.err}\n{self.out[-2000:]}"
        last = self.err.splitlines()[-1]
        assert last.startswith("sawlog: "), self.err
        assert "Traceback" not in self.err
        return last


class Cli:
    """The program inside this process."""

    def __init__(self, data: Path) -> None:
        self.data = data

    def __call__(self, *arguments: object, stdin: bytes = b"") -> Result:
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        given, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run([str(each) for each in arguments])
        except SystemExit as ended:  # after completions for a shell
            code = int(ended.code or 0)
        finally:
            sys.stdin = given
        out.flush()
        return Result(code, out.buffer.getvalue(), err.getvalue())  # type: ignore[attr-defined]


class Program:
    """The program as a process of its own. It has the usual signals, whatever those of the caller are."""

    def __init__(self, data: Path) -> None:
        self.data = data

    def start(self, *arguments: object, **options: Any) -> subprocess.Popen[bytes]:
        return warm.start(
            ["-m", "sawlog.cli", *map(str, arguments)],
            environment={**os.environ, "SAWLOG_DATA": str(self.data), **options.pop("env", {})},
            stdin=options.pop("stdin", subprocess.PIPE),
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE),
            **options,
        )

    def __call__(self, *arguments: object, stdin: bytes = b"", **options: Any) -> Result:
        process = self.start(*arguments, **options)
        out, err = process.communicate(stdin, timeout=PATIENCE_S)
        return Result(process.returncode, out or b"", err.decode())


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory of the store, which may not exist yet."""
    path = tmp_path / "data"
    monkeypatch.setenv("SAWLOG_DATA", str(path))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return path


@pytest.fixture
def sawlog(data: Path) -> Cli:
    """The program, run inside this process."""
    return Cli(data)


@pytest.fixture
def program(data: Path) -> Program:
    """The program, started as a process."""
    return Program(data)


@pytest.fixture
def orders(data: Path) -> Path:
    """A store with a topic `orders`: two partitions, ten records with keys in the first, five in the second."""
    with DirectoryStore.open(data) as store:
        topic = store.create_topic("orders", 2, durability="os")
        for number in range(10):
            headers = [("n", b"%d" % number)] if number % 2 else []
            topic.append(b"a%d" % number, b"k%d" % number, headers, 1_700_000_000_000 + 1000 * number, partition=0)
        for number in range(5):
            topic.append(b"b%d" % number, None, (), 1_700_000_100_000 + 1000 * number, partition=1)
    return data
