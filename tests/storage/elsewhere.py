"""Another process that runs Python line by line: it reads and writes next to this one, and can be killed.

`Elsewhere` runs statements and returns the values of expressions; names are kept for later lines.
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

#: Program: reads a statement or an expression per line, as a literal, and answers with a literal or the error.
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
    """A Python process in which the name `place` is a given path."""

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
        """Send a line without waiting for the answer."""
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
        """Run a line and return its value, if it is an expression with a plain value."""
        self.begin(text)
        return self.end()

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()
        self.is_killed()

    def is_killed(self) -> bool:
        """Wait until the process has killed itself and return whether that was by SIGKILL."""
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
