"""The writer's lock is free as soon as its holder has given it up, whoever has copies of its descriptors."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sawlog import DirectoryLocked, Log
from sawlog.storage import FileDirectory

_FORKED_BY_C = """
import ctypes, os, sys, time
from sawlog import DirectoryLocked, Log
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
from sawlog import DirectoryLocked, Log
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


def test_threads_that_start_programs_cause_no_false_alarm(tmp_path: Path) -> None:
    stop = threading.Event()

    def launch() -> None:
        while not stop.is_set():
            subprocess.run(["/bin/true"], check=True)

    threads = [threading.Thread(target=launch) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
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


def test_a_lock_is_held_also_if_nobody_has_the_object_any_more(tmp_path: Path) -> None:
    """The members of a group rest on that."""
    directory = FileDirectory(tmp_path)
    directory.lock("LOCK")
    gc.collect()
    with pytest.raises(DirectoryLocked):
        directory.lock("LOCK")
    directory.close()


def test_the_c_library_can_fork_here() -> None:
    """Else the first test would show nothing."""
    assert hasattr(ctypes.CDLL(None), "fork")
    assert hasattr(os, "fork")
