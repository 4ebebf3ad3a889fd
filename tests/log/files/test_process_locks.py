"""One writer at a time, between processes, whatever happens to the processes or to the LOCK file."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from sawlog import Log
from sawlog.errors import DirectoryLocked

from ...processes.launch import finish, ready, run, start


def held(directory: Path) -> tuple[subprocess.Popen[str], int]:
    """A process that has the log open, and its id."""
    holder = ready(start("locking", "hold", directory))
    assert holder.stdout is not None
    return holder, int(holder.stdout.readline())


def tell(holder: subprocess.Popen[str]) -> str:
    """Let the holder append and return its output."""
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write("\n")
    holder.stdin.flush()
    return holder.stdout.readline()


def test_a_second_writer_learns_at_once_which_process_is_the_first(tmp_path: Path) -> None:
    holder, pid = held(tmp_path)
    with pytest.raises(DirectoryLocked) as caught:
        Log.open(tmp_path)
    assert str(pid) in caught.value.holder
    assert str(pid) in str(caught.value)
    assert f"{pid} " in run("locking", "try", tmp_path)
    with Log.open(tmp_path, mode="r") as reader:
        assert len(reader) == 1
    assert tell(holder) == "1\n"
    finish(holder)
    with Log.open(tmp_path) as log:
        assert log.recovery.clean
        assert len(log) == 2


def test_the_lock_is_free_after_kill_9(tmp_path: Path) -> None:
    holder, _ = held(tmp_path)
    holder.kill()
    holder.communicate()
    assert holder.returncode == -signal.SIGKILL
    with Log.open(tmp_path) as log:
        assert not log.recovery.clean
        assert log.recovery
        assert log.append(b"x") == 1
        assert "locked by" in run("locking", "try", tmp_path)


def test_the_lock_is_free_after_close_and_the_file_stays(tmp_path: Path) -> None:
    Log.open(tmp_path).close()
    inode = (tmp_path / "LOCK").stat().st_ino
    assert run("locking", "try", tmp_path) == "opened\n"
    Log.open(tmp_path).close()
    assert (tmp_path / "LOCK").stat().st_ino == inode


@pytest.mark.sampled(1)  # starts processes
@pytest.mark.parametrize("how", ["deleted", "replaced", pytest.param("renamed away", marks=pytest.mark.slow)])
def test_a_lost_lock_file_does_not_let_two_writers_in(tmp_path: Path, how: str) -> None:
    """Somebody tidies up while a writer runs. At most one of the two may write from then on."""
    holder, _ = held(tmp_path)
    if how == "renamed away":
        (tmp_path / "LOCK").rename(tmp_path / "LOCK.old")
    else:
        (tmp_path / "LOCK").unlink()
    if how == "replaced":
        (tmp_path / "LOCK").write_bytes(b"")
    try:
        second = Log.open(tmp_path)
    except DirectoryLocked:
        second = None
    said = tell(holder)
    if second is not None:
        assert second.append(b"of the second") == 1
        assert said.startswith("refused"), "two writers at once"
        second.close()
    finish(holder)
    with Log.open(tmp_path) as log:
        assert log.recovery
        assert log.verify()


def test_a_stale_lock_file_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "LOCK").write_text("process 1 on somewhere else\n")
    with Log.open(tmp_path) as log:
        log.append(b"x")
        assert str(os.getpid()) in (tmp_path / "LOCK").read_text()


def test_a_refused_writer_leaves_no_descriptor_open(tmp_path: Path) -> None:
    with Log.open(tmp_path) as log:
        log.append(b"x")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with pytest.raises(DirectoryLocked):
                Log.open(tmp_path)
        assert len(os.listdir("/proc/self/fd")) == before
        assert log.append(b"y") == 1


def test_a_forked_child_may_read_but_neither_write_nor_let_go(tmp_path: Path) -> None:
    assert run("locking", "fork", tmp_path) == "good\n"
