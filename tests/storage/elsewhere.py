"""Another process that runs commands line by line: to read and write beside this one, and to be killed.

`Elsewhere` runs Python statements and gives the value of expressions; the names that it makes stay for the next line.
"""

from __future__ import annotations

import ast
import os
import select
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

import sawlog

from .. import warm

PATIENCE_S = 60.0

#: Reads a statement or an expression a line, as a literal; answers with a literal, or with the error.
_LOOP = """
import ast, sys, traceback
names = {"place": sys.argv[1]}
for line in sys.stdin:
    text = ast.literal_eval(line)
    try:
        try:
            code = compile(text, "<told>", "eval")
        except SyntaxError:
            exec(compile(text, "<told>", "exec"), names)
            answer = None
        else:
            answer = eval(code, names)
        print(repr(("did", answer)), flush=True)
    except BaseException:
        print(repr(("failed", traceback.format_exc())), flush=True)
"""


class Elsewhere:
    """A process of its own; `place` is a path that it knows under that name."""

    def __init__(self, place: Path) -> None:
        path = os.pathsep.join([str(Path(sawlog.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        self.process = warm.start(
            ["-c", _LOOP, str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            environment={**os.environ, "PYTHONPATH": path},
            text=True,
        )

    def begin(self, text: str) -> None:
        """Have it do something, and do not wait."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text!r}\n")
        self.process.stdin.flush()

    def has_answered(self) -> bool:
        """True if `end` would return at once."""
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def end(self) -> Any:
        """Wait for the answer of the command that was begun, and return it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the other process has ended: {self.process.wait(PATIENCE_S)}"
        how, answer = ast.literal_eval(line)
        assert how == "did", answer
        return answer

    def tell(self, text: str) -> Any:
        """Have it do something; the value, if it is an expression of plain values."""
        self.begin(text)
        return self.end()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.is_killed()

    def is_killed(self) -> bool:
        """Wait for its end, which it brings about itself; whether that was kill -9."""
        return self.process.wait(PATIENCE_S) == -signal.SIGKILL

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
