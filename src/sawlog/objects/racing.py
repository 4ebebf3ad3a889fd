"""Racing for keys: several threads or processes create the same object at the same moment, and one of them may win.

Each racer stores its own content, so that what is read afterwards says who has won. A racer that got no answer, or
whose request was repeated on its way, may have won without knowing it: the content decides.

A process of a race is a program of its own (`main`), which is told on its input what to create and answers on its
output, one line of JSON each. It ends when its input ends.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..clock import Stopwatch
from ..errors import StorageError
from .bucket import Bucket, Unanswered
from .probing import FOLDER

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.readline()); from sawlog.objects.racing import main; main()"
)
_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One create: who, what, and what the server said. `created` is None if it said nothing."""

    key: str
    racer: str
    created: bool | None
    elapsed_ms: float

    @property
    def content(self) -> bytes:
        """What it has stored, if it has."""
        return content_of(self.key, self.racer)


def content_of(key: str, racer: str) -> bytes:
    """The content that a racer stores: its own, and it says of which key."""
    return f"{key} {racer}\n".encode()


def attempt(bucket: Bucket, key: str, racer: str) -> Attempt:
    """Create an object, and say what came of it."""
    watch = Stopwatch()
    created: bool | None = None
    with suppress(Unanswered):
        created = bucket.create(key, content_of(key, racer))
    return Attempt(key, racer, created, watch.elapsed_ms)


def in_threads(bucket: Bucket, key: str, count: int) -> list[Attempt]:
    """Let so many threads create the object at the same moment."""
    start = threading.Barrier(count)

    def run(number: int) -> Attempt:
        start.wait()
        return attempt(bucket, key, f"thread-{number}")

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


# --- processes


class Racers:
    """Processes that race. Use it as a context manager: they end with it."""

    def __init__(self, bucket: Bucket, count: int) -> None:
        self._names = [f"process-{number}" for number in range(count)]
        self._running: list[subprocess.Popen[str]] = []
        self._bucket = bucket

    def __enter__(self) -> Racers:
        try:
            for name in self._names:
                self._start(name)
            for each in self._running:
                self._hear(each)  # it is ready
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, name: str) -> None:
        command, pipe = [sys.executable, "-c", _PROGRAM], subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        self._running.append(process)
        # On its input, not on its command line, which everybody can see: options may be credentials.
        self._say(process, sys.path)
        self._say(process, {"url": self._bucket.url, "options": self._bucket.options, "racer": name})

    def __exit__(self, *_: object) -> None:
        for each in self._running:
            for stream in (each.stdin, each.stdout):
                with suppress(OSError):
                    assert stream is not None
                    stream.close()
        for each in self._running:
            try:
                each.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()

    def race(self, key: str) -> list[Attempt]:
        """Let all of them create the object at the same moment."""
        for each in self._running:
            self._say(each, key)
        return [Attempt(key, name, *self._hear(each)) for name, each in zip(self._names, self._running, strict=True)]

    @staticmethod
    def _say(process: subprocess.Popen[str], what: Any) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(what) + "\n")
        process.stdin.flush()

    @staticmethod
    def _hear(process: subprocess.Popen[str]) -> Any:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise StorageError(errno.ECHILD, f"a process of the race ended with code {process.wait(_PATIENCE_S)}")
        heard = json.loads(line)
        if isinstance(heard, str):
            raise StorageError(errno.EIO, heard)
        return heard


def main() -> None:
    """A process of a race."""
    try:
        given = json.loads(sys.stdin.readline())
        bucket = Bucket(given["url"], given["options"])
        bucket.get(f"{FOLDER}none")  # connect, so that the first race is one
        _answer(True)
        for line in sys.stdin:
            made = attempt(bucket, json.loads(line), given["racer"])
            _answer([made.created, made.elapsed_ms])
    except StorageError as error:
        _answer(error.strerror or str(error))


def _answer(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
