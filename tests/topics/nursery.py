"""Processes that write to the same partitions, for tests: see tests/processes/sharing.py."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any

from ..processes.launch import start

PATIENCE_S = 60.0


class Child:
    """A process that plays a role."""

    def __init__(self, nursery: Nursery, tag: str, pid: int) -> None:
        self._nursery = nursery
        self.tag, self.pid = tag, pid
        self.ended = False

    def hears(self) -> Any:
        """Return the child's next line."""
        return self._nursery.hears(self.tag)

    def heard(self) -> list[Any]:
        """Return the lines that were not read yet."""
        return self._nursery.heard(self.tag)

    def waits_for(self, *said: Any) -> Any:
        """Wait until the child prints one of these."""
        while (found := self.hears()) not in said:
            assert not str(found).startswith("failed"), found
        return found

    def signal(self, number: int) -> None:
        """Send a signal. After a stop signal, return when the child has stopped."""
        os.kill(self.pid, number)
        if number == signal.SIGSTOP:
            until(lambda: _state(self.pid) == "T", "the stop of a process")

    def kill(self) -> None:
        """Send SIGKILL and wait for the exit."""
        if not self.ended:
            self.signal(signal.SIGKILL)
            self.wait()

    def close(self) -> int:
        """Make the child close its store and exit."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait for the exit and return the exit code."""
        self.ended = True
        return self._nursery.reap(self.pid)


class Nursery:
    """Starts and ends the child processes."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] = start("sharing")
        self._lines: defaultdict[str, queue.SimpleQueue[Any]] = defaultdict(queue.SimpleQueue)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        self._children: list[Child] = []
        self._count = 0

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            self._lines[said["tag"]].put(said["said"])

    def _order(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def start(self, role: str, **arguments: Any) -> Child:
        """Start a child in a role."""
        self._count += 1
        tag = f"{role}{self._count}"
        self._lines[tag]
        self._order(start=tag, role=role, **{name: _plain(value) for name, value in arguments.items()})
        # The first line is its process id, which identifies the child.
        child = Child(self, tag, self._pid(tag))
        self._children.append(child)
        return child

    def _pid(self, tag: str) -> int:
        found = self.hears(tag)
        assert isinstance(found, list), found
        assert found[0] == "started"
        return int(found[1])

    def hears(self, tag: str) -> Any:
        return self._lines[tag].get(timeout=PATIENCE_S)

    def heard(self, tag: str) -> list[Any]:
        found = []
        while True:
            try:
                found.append(self._lines[tag].get_nowait())
            except queue.Empty:
                return found

    def reap(self, pid: int) -> int:
        self._order(reap=pid)
        while True:
            ended, code = self._lines[""].get(timeout=PATIENCE_S)
            if ended == pid:
                return int(code)

    def __enter__(self) -> Nursery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            child.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._thread.join()
        self._process.stdout.close()
        self._process.stderr.close()


def _state(pid: int) -> str:
    """Return the state of a process as the system reports it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, list, str, type(None))) else str(value)


def until(true: Any, what: str = "it") -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.002)
