"""A forked child reads the log that it inherited as any other process would, and does not write to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sawlog import Log, LogConfig
from sawlog.errors import LogClosed


def in_child(work: Callable[[], object]) -> str:
    """Return the result of `work` in a forked child, after the parent has continued."""
    read, write = os.pipe()
    go, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.read(go, 1)
            said = repr(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    in_child.wake = lambda: os.write(told, b"x")  # type: ignore[attr-defined]
    in_child.result = lambda: (os.waitpid(pid, 0), os.read(read, 1 << 16).decode())[1]  # type: ignore[attr-defined]
    return ""


@pytest.fixture
def log(tmp_path: Path) -> Log:
    made = Log.open(tmp_path / "log", LogConfig(segment_bytes=500, durability="os"))
    for number in range(100):
        made.append(b"%d" % number, b"k%d" % (number % 5))
    return made


def after(work: Callable[[], object], then: Callable[[], object]) -> str:
    """Return the result of `work` in a child that was forked before the parent ran `then`."""
    in_child(work)
    then()
    in_child.wake()  # type: ignore[attr-defined]
    return str(in_child.result())  # type: ignore[attr-defined]


def test_a_child_reads_what_the_parent_has_compacted_since(log: Log) -> None:
    found = after(lambda: len(list(log.scan())), log.compact)
    assert found == str(len(list(log.scan())))
    log.close()


def test_a_child_sees_what_the_parent_appends(log: Log) -> None:
    found = after(lambda: (log.next_offset, log.lowest_offset, log[-1].value, len(log)), lambda: log.append(b"newer"))
    assert found == repr((101, 0, b"newer", 101))
    log.close()


def test_a_child_sees_what_the_parent_has_trimmed_away(log: Log) -> None:
    found = after(lambda: (log.lowest_offset, next(iter(log)).offset), lambda: log.trim(60))
    assert found == repr((60, 60))
    log.close()


@pytest.mark.parametrize("what", ["append", "truncate", "seal", "writer"])
def test_a_child_is_told_that_it_cannot_write(log: Log, what: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: log.append(b"x"),
        "truncate": lambda: log.truncate(3),
        "seal": log.seal,
        "writer": log.writer,
    }
    found = after(calls[what], lambda: None)
    assert found.startswith(LogClosed.__name__)
    assert "before the fork" in found
    assert log.append(b"the parent can") == 100
    log.close()


def test_closing_in_the_child_changes_nothing_for_the_parent(log: Log) -> None:
    assert after(log.close, lambda: None) == "None"
    assert log.append(b"on") == 100
    assert log.verify()
    log.close()
