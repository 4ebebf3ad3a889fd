"""The tests of franz-go as a program, built by a process of its own while other tests run: the first time that takes a
minute of CPU. The program stays in the user's cache (`tools/suites/places.py`), whichever clone has built it."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
from typing import Any

from ...documents import ROOT

_TOOLS = str(ROOT / "tools")
_BUILD = "from suites.franz_go import FranzGo; FranzGo().prepare()"


def franz_go() -> Any:
    """The suite. `prepare` builds its program, or waits until another process has built it."""
    sys.path.insert(0, _TOOLS)
    try:
        return importlib.import_module("suites.franz_go").FranzGo()
    finally:
        sys.path.remove(_TOOLS)


def is_missing() -> bool:
    """Return True if the program can be built and has not been built."""
    return shutil.which("go") is not None and not franz_go().program.exists()


class Build:
    """The building process, if there is one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Build the program. What fails is reported by the test, which tries again."""
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BUILD], cwd=_TOOLS, stdin=null, stdout=null, stderr=null, start_new_session=True
        )

    def end(self) -> None:
        """Stop building; Go keeps the parts that are compiled."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
