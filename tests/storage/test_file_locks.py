"""The writer's lock is free as soon as its holder releases it, even if other processes have copied descriptors."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sawlog import Log
from sawlog.errors import DirectoryLocked
from sawlog.storage import FileDirectory

_FORKED_BY_C = """
import ctypes, os, sys, time
from sawlog import Log
from sawlog.errors import DirectoryLocked
log = Log.open(sys.argv[1])
pid = ctypes.CDLL(None).fork()  # as a C library does it: Python's own hooks do not run
if pid == 0:
    time.sleep(30)
    os._exit(0)
log.close()
try:
    Log.open(sys.argv[1]).close()
    print("opened")
except DirectoryLocked as error:
    print("locked", error)
finally:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
"""


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_a_lock_that_was_given_up_is_free_although_a_child_has_copies(tmp_path: Path) -> None:
    assert run(_FORKED_BY_C, str(tmp_path / "log")) == "opened"


_FORKED_BY_PYTHON = """
import os, sys, time
from sawlog import Log
from sawlog.errors import DirectoryLocked
log = Log.open(sys.argv[1])
pid = os.fork()
if pid == 0:
    log.close()
    time.sleep(30)
    os._exit(0)
time.sleep(0.2)
try:
    Log.open(sys.argv[1])
    print("a child has let others in")
except DirectoryLocked:
    print("locked")
log.append(b"the parent writes on")
log.close()
Log.open(sys.argv[1]).close()
os.kill(pid, 9)
os.waitpid(pid, 0)
"""


def test_a_forked_child_neither_keeps_the_lock_of_its_parent_nor_gives_it_up(tmp_path: Path) -> None:
    assert run(_FORKED_BY_PYTHON, str(tmp_path / "log")) == "locked"


@pytest.mark.costly  # starts programs
def test_threads_that_start_programs_cause_no_false_alarm(tmp_path: Path) -> None:
    stop = threading.Event()

    def launch() -> None:
        while not stop.is_set():
            subprocess.run(["/bin/true"], check=True)

    threads = [threading.Thread(target=launch) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(40):
            Log.open(tmp_path / "log").close()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_log_that_is_forgotten_gives_up_its_lock(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "log")
    log.append(b"acknowledged")
    with pytest.raises(DirectoryLocked):
        Log.open(tmp_path / "log")
    del log
    gc.collect()
    with Log.open(tmp_path / "log") as again:
        assert [record.value for record in again] == [b"acknowledged"]


def test_a_lock_without_owner_is_free(tmp_path: Path) -> None:
    """An interrupt may come after the lock was created and before the caller receives it."""
    directory = FileDirectory(tmp_path)
    held = directory.lock("LOCK")
    with pytest.raises(DirectoryLocked):
        directory.lock("LOCK")
    del held
    gc.collect()
    directory.lock("LOCK").release()
    directory.close()


@pytest.mark.usefixtures("quick_collections")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_anywhere_in_locking_and_releasing_leaves_the_lock_free(tmp_path: Path) -> None:
    """Interrupts come at each place where the interpreter handles signals. Then the lock is released again, as a second
    `close` does."""
    directory = FileDirectory(tmp_path)

    def work() -> None:
        held = directory.lock("LOCK")
        try:
            held.leave(b"note")
        finally:
            try:
                held.release()
            except Stop:
                held.release()
                raise

    stopped = 0
    for number in range(10_000):
        if not interrupted(work, number):
            break
        stopped += 1
        gc.collect()
        directory.lock("LOCK").release()
    assert stopped > 20
    directory.close()


class Stop(BaseException):
    """Exception raised by a signal handler."""


def interrupted(work: Callable[[], None], number: int) -> bool:
    """Run with an interrupt before the instruction of that number in the storage. Return whether it was reached."""
    passed = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal passed
        if not frame.f_code.co_filename.endswith(("storage/file.py", "storage/system.py", "storage/locks.py")):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            passed += 1
            if passed == number + 1:
                sys.settrace(None)
                raise Stop
        return trace

    sys.settrace(trace)
    try:
        work()
    except Stop:
        return True
    finally:
        sys.settrace(None)
    return False


def test_the_c_library_can_fork_here() -> None:
    """Otherwise the first test would prove nothing."""
    assert hasattr(ctypes.CDLL(None), "fork")
    assert hasattr(os, "fork")
