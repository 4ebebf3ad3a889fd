"""Child process of the locking tests: hold a log, try to open one for writing, or fork with one open.

python -m tests.processes.locking hold DIRECTORY      open the log, append, print the process id, wait for a line
python -m tests.processes.locking try DIRECTORY       open it for writing; print "opened" or "locked by <holder>"
python -m tests.processes.locking fork DIRECTORY      open, fork, and check what the child may do (see `fork`)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from sawlog import Log, LogConfig
from sawlog.errors import DirectoryLocked, LogClosed

from .launch import say


def hold(directory: str) -> None:
    log = Log.open(directory)
    log.append(b"held")
    say("ready")
    say(os.getpid())
    sys.stdin.readline()
    try:
        say(log.append(b"and again"))
    except (LogClosed, DirectoryLocked) as error:
        say(f"refused: {error}")
    sys.stdin.readline()
    log.close()


def try_(directory: str) -> None:
    try:
        Log.open(directory).close()
        say("opened")
    except DirectoryLocked as error:
        say(f"locked by {error.holder}")


def in_child(check: Callable[[], None]) -> None:
    """Run something in a forked child, which must succeed."""
    pid = os.fork()
    if pid == 0:
        try:
            check()
        except BaseException as error:
            sys.stderr.write(f"in the child: {type(error).__name__}: {error}\n")
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the child did not come to a good end"


def refused(call: Callable[[], object]) -> None:
    try:
        call()
    except LogClosed:
        return
    raise AssertionError("a forked child was allowed to write")


def fork(directory: str) -> None:
    """The child cannot write or release the lock, may read, and changes nothing."""
    log = Log.open(directory, LogConfig(segment_bytes=1000, checkpoint_interval_ms=1))
    for number in range(50):
        log.append(b"%d" % number)
    writer = log.writer()
    writer.append(b"of the parent")

    def child() -> None:
        for call in (
            lambda: log.append(b"x"),
            lambda: log.append_many([b"x"]),
            lambda: log.append_stream([b"x"]),
            lambda: log.truncate(0),
            lambda: log.trim(10),
            log.sync,
            log.seal,
            log.remove,
            writer.flush,
        ):
            refused(call)
        assert [record.value for record in log.scan()] == [b"%d" % number for number in range(50)]
        assert log.read(7).value == b"7"
        assert log.verify()
        try:
            Log.open(directory)
        except DirectoryLocked:
            pass
        else:
            raise AssertionError("the child got the lock that its parent holds")
        reader = Log.open(directory, mode="r")
        assert len(reader) == 50
        reader.close()

    def closing_child() -> None:
        try:
            log.close()
        except LogClosed:
            pass  # its copy of the parent's writer still holds a record

    in_child(child)
    in_child(closing_child)
    in_child(lambda: None)
    checkpoint = open(f"{directory}/checkpoint", "rb").read()  # noqa: SIM115
    assert b'"clean": false' in checkpoint, "a child has marked the log as closed cleanly"
    assert log.append(b"50") == 50
    assert writer.flush() == range(51, 52)
    try:
        Log.open(directory)
    except DirectoryLocked:
        pass
    else:
        raise AssertionError("a child let go of the parent's lock")
    log.close()
    with Log.open(directory) as again:
        assert again.recovery.clean
        assert again.verify()
        assert len(again) == 52
    say("good")


if __name__ == "__main__":
    {"hold": hold, "try": try_, "fork": fork}[sys.argv[1]](sys.argv[2])
