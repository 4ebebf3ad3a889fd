"""A real `sawlog serve` process: started, killed, stopped and started again, on one port and one directory.

```python
with Serving(tmp_path / "data") as broker:
    client_of(broker.address)
    broker.kill()       # kill -9
    broker.start()      # the same port, the same directory
```

Whatever a test does, the process is gone when the block ends. What the broker wrote to stderr is in `said`.

`sawlog serve` itself is forked from a process that has imported it (`tests.warm`), which takes a tenth of the CPU;
`fresh=True` starts a Python of its own.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import sawlog

from .. import warm

#: Timeout of everything that takes less than a second on a quiet machine.
PATIENCE_S = 60.0
ROOT = Path(__file__).resolve().parents[2]
_LISTENING = re.compile(r"listening on (\S+):(\d+),")


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Serving:
    """A broker in a process of its own, which a test may end in any way and start again."""

    def __init__(
        self,
        data: Path,
        *options: str,
        port: int | None = None,
        module: tuple[str, ...] = ("sawlog.cli",),
        url: str | None = None,
        variables: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> None:
        self.data = data
        #: Address of the served store, and extra environment variables.
        self._served = str(data) if url is None else url
        self._variables = variables or {}
        self._module = module
        self._fresh = fresh or module != ("sawlog.cli",)
        self.port = free_port() if port is None else port
        self.starts = 0
        self._options = options
        self._log = data.parent / f"{data.name}-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    # --- life

    def __enter__(self) -> Serving:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            sys.stderr.write(f"--- what the broker on {self.address} said\n{self.said[-4000:]}\n")
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it says that it listens."""
        assert self._process is None, "it is running"
        self.data.parent.mkdir(parents=True, exist_ok=True)
        command = ["-m", *self._module, "serve", "-d", self._served]
        command += ["--listen", f"127.0.0.1:{self.port}"]
        command += ["--set", "group_min_session_timeout_ms=100"]  # tests see how members are given up
        command += self._options
        with self._log.open("ab") as errors:
            environment = {**_environment(), **self._variables}
            if self._fresh:
                self._process = subprocess.Popen(
                    [sys.executable, "-X", "faulthandler", *command],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                )
            else:
                self._process = warm.start(command, environment=environment, stdout=subprocess.PIPE, stderr=errors)
        self.starts += 1
        line = self._first_line(self._process)
        if _LISTENING.match(line) is None:
            self.kill()
            raise AssertionError(f"the broker did not start: {line!r}\n{self.said[-4000:]}")

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        return self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP: it stands still, and its connections stay."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Stop it cleanly, and start it again."""
        assert self.stop() == 0, self.said[-4000:]
        self.start()

    def abort(self) -> None:
        """SIGABRT: its stacks go to `said`."""
        self._end(signal.SIGABRT)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        try:
            code = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # faulthandler shows where it hangs
            process.wait()
            raise AssertionError(f"the broker did not end\n{self.said[-8000:]}") from None
        assert process.stdout is not None
        process.stdout.close()
        return code

    # --- what is known of it

    @property
    def address(self) -> str:
        """Address of the broker."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process that serves now."""
        assert self._process is not None, "it is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True if the process was started and has not exited."""
        return self._process is not None and self._process.poll() is None

    @property
    def said(self) -> str:
        """All that it wrote to stderr, in all its lives."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _first_line(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        deadline, line = time.monotonic() + PATIENCE_S, b""
        while not line.endswith(b"\n") and time.monotonic() < deadline:
            if select.select([process.stdout], [], [], 0.5)[0]:
                some = os.read(process.stdout.fileno(), 1)
                if not some:
                    break
                line += some
        return line.decode(errors="replace")


def _environment() -> dict[str, str]:
    """Environment with the sawlog of this process, and with the modules of the tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(sawlog.__file__).parents[1]), str(ROOT)])}
