"""Processes that start without importing the library again.

Importing the modules of `sawlog serve` takes most of a second of CPU. `start` forks a process that has imported them:

    with warm.start(["-m", "sawlog.cli", "serve", "-d", "data"], stdout=subprocess.PIPE) as broker: ...

The arguments are Python's own: `-m MODULE`, `-c CODE` or a file, then those of the program. The process has its own
working directory, environment and streams, receives signals, dies of SIGKILL and exits like any other. It is a child of
the process that asked for it, which waits for it and is charged for its CPU. Tests of how a program starts, of what it
imports, and of variables that Python itself reads, use `subprocess`.

The forking process ends with the one that started it. Off Linux, `start` is `subprocess.Popen`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
_PR_SET_CHILD_SUBREAPER = 36
_MESSAGE_BYTES = 1 << 20
_PATIENCE_S = 10.0

# The fork runs its program at the top level, after the loop, and so exits like any Python. Its parent exits at once;
# the operating system then hands it to the process that asked for it, which has declared itself a subreaper.
_FORKER = r"""
import contextlib, gc, io, json, os, runpy, signal, socket, sys, tempfile, warnings
import obstore, uvloop
import sawlog.broker.broker, sawlog.cli, sawlog.store.objects.store, sawlog.store.replica
with contextlib.redirect_stdout(io.StringIO()):
    sawlog.cli.run(["serve", "--help"])
gc.collect()
gc.freeze()
asked = socket.socket(fileno=int(sys.argv[1]))
while True:
    message, files, _, _ = socket.recv_fds(asked, 1 << 20, 3)
    if not message:
        sys.exit()
    between = os.fork()
    if between == 0:
        child = os.fork()
        if child == 0:
            break
        asked.send(b"%d" % child)
        os._exit(0)
    os.waitpid(between, 0)
    asked.send(b"ready")
    for file in files:
        os.close(file)
asked.close()
for number, file in enumerate(files):
    os.dup2(file, number)
    os.close(file)
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
job = json.loads(message)
os.chdir(job["cwd"])
os.environ.clear()
os.environ.update(job["environment"])
tempfile.tempdir = None
warnings._processoptions(job["warnings"])
sys.stdin = sys.__stdin__ = open(0, closefd=False)  # a terminal is buffered by lines
sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)
sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
program, *arguments = job["arguments"]
if program == "-m":
    program, *arguments = arguments
    sys.argv = [program, *arguments]
    del asked, between, child, files, job, arguments, message
    runpy.run_module(program, run_name="__main__", alter_sys=True)
elif program == "-c":
    program, *arguments = arguments
    sys.argv = ["-c", *arguments]
    exec(compile(program, "<string>", "exec", dont_inherit=True), {"__name__": "__main__"})
else:
    sys.argv = [program, *arguments]
    sys.path[0] = os.path.dirname(program)
    runpy.run_path(program, run_name="__main__")
"""


class Forker:
    """The process that has imported the library and forks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ours: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def start(self, job: dict[str, Any], files: Sequence[int]) -> int:
        """Fork a process with these streams and return its id."""
        message = json.dumps(job).encode()
        assert len(message) < _MESSAGE_BYTES
        with self._lock:
            if self._ours is None or self._owner != os.getpid():
                self._open()
            assert self._ours is not None
            _be_subreaper(True)
            try:
                socket.send_fds(self._ours, [message], list(files))
                pid = self._ours.recv(100)
                assert pid, "the forking process has ended"
                assert self._ours.recv(100) == b"ready"
            finally:
                _be_subreaper(False)
        return int(pid)

    def _open(self) -> None:
        self._owner = os.getpid()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-c", _FORKER, str(theirs.fileno())],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": _path()},  # a fork has one thread
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
            )
        atexit.register(self._close, self._owner)

    def _close(self, owner: int) -> None:
        if owner == os.getpid() and self._ours is not None and self._process is not None:
            self._ours.close()
            try:
                self._process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:  # a fork of this process has the socket open, too
                self._process.kill()
                self._process.wait()


class Process(subprocess.Popen[Any]):
    """A forked process, with the methods of one that `subprocess` has started."""

    def __init__(
        self,
        arguments: Sequence[str],
        pid: int,
        stdin: IO[Any] | None,
        stdout: IO[Any] | None,
        stderr: IO[Any] | None,
        text: bool,
    ) -> None:
        self.args = list(arguments)
        self.pid = pid
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.returncode = None
        self.text_mode = text
        self._child_created = True
        self._input = None
        self._communication_started = False
        self._sigint_wait_secs = 0.25
        self._waitpid_lock = threading.Lock()
        self._readers: list[_Reader] = []

    def communicate(self, input: Any = None, timeout: float | None = None) -> Any:
        """As in `subprocess`, but with what `readline` has read ahead: the base class reads below the buffers of the
        streams, and so loses lines that arrived together."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._readers:  # after a timeout they continue
            self._readers = [_Reader(each) for each in (self.stdout, self.stderr) if each and not each.closed]
            if self.stdin is not None and not self.stdin.closed:
                with contextlib.suppress(BrokenPipeError):
                    if input:
                        self.stdin.write(input)
                    self.stdin.close()
        for reader in self._readers:
            reader.join(None if deadline is None else max(deadline - time.monotonic(), 0))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if deadline is None else max(deadline - time.monotonic(), 0))
        read: dict[Any, Any] = {reader.stream: reader.content for reader in self._readers}
        return read.get(self.stdout), read.get(self.stderr)


class _Reader(threading.Thread):
    """Reads a stream to its end."""

    def __init__(self, stream: IO[Any]) -> None:
        super().__init__(daemon=True)
        self.stream = stream
        self.content: Any = None
        self.start()

    def run(self) -> None:
        with self.stream:
            self.content = self.stream.read()


def start(
    arguments: Sequence[str],
    *,
    stdin: int | IO[Any] = subprocess.DEVNULL,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    text: bool = False,
    warnings: Sequence[str] = (),
) -> subprocess.Popen[Any]:
    """Start `python ARGUMENTS`; streams and `text` are those of `subprocess.Popen`, `warnings` are filters for `-W`."""
    environment = os.environ if environment is None else environment
    if sys.platform != "linux":
        streams: dict[str, Any] = {"stdin": stdin, "stdout": stdout, "stderr": stderr, "text": text}
        command = [sys.executable, *(f"-W{each}" for each in warnings), *arguments]
        return subprocess.Popen(command, cwd=cwd, env=environment, **streams)
    mode, ours = "" if text else "b", list[IO[Any] | None]()
    if stdin == subprocess.PIPE:
        reading, end = os.pipe()
        ours.append(os.fdopen(end, f"w{mode}"))
    else:
        reading = os.open(os.devnull, os.O_RDONLY) if stdin == subprocess.DEVNULL else os.dup(_number(stdin, 0))
        ours.append(None)
    if stdout == subprocess.PIPE:
        end, writing = os.pipe()
        ours.append(os.fdopen(end, f"r{mode}"))
    else:
        writing = os.dup(_number(stdout, 1))
        ours.append(None)
    if stderr == subprocess.PIPE:
        end, complaining = os.pipe()
        ours.append(os.fdopen(end, f"r{mode}"))
    else:
        complaining = os.dup(writing if stderr == subprocess.STDOUT else _number(stderr, 2))
        ours.append(None)
    try:
        job = {
            "arguments": list(arguments),
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(environment),
            "warnings": list(warnings),
        }
        pid = _forker.start(job, [reading, writing, complaining])
    finally:
        for file in (reading, writing, complaining):
            os.close(file)
    return Process(arguments, pid, *ours, text)


def run(
    arguments: Sequence[str],
    *,
    timeout: float,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    warnings: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Start `python ARGUMENTS`, wait for it to exit, and return its exit code and output."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = start(arguments, stdout=out, stderr=err, cwd=cwd, environment=environment, warnings=warnings)
        try:
            process.wait(timeout)
        finally:
            process.kill()
            process.wait()
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(process.args, process.returncode, out.read(), err.read())


def _number(file: int | IO[Any] | None, usual: int) -> int:
    return usual if file is None else file if isinstance(file, int) else file.fileno()


def _path() -> str:
    import sawlog

    return os.pathsep.join([str(Path(sawlog.__file__).parents[1]), str(ROOT)])


def _be_subreaper(yes: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


_forker = Forker()
