"""Connections between processes: permissions, delivery, and cleanup after a process ends."""

from __future__ import annotations

import errno
import gc
import os
import queue
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sawlog.clock import Deadline
from sawlog.errors import StorageError
from sawlog.storage import FileDirectory, MemoryDirectory, sockets
from sawlog.storage.sockets import Channel, Listener, connect, listen, remove_dead

from ..faults.interrupts import Interrupter, Stop

LATE = 30.0


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[FileDirectory]:
    """A directory whose path is longer than the maximum address of a socket."""
    path = tmp_path / ("deep" * 30) / ("deeper" * 20)
    path.mkdir(parents=True)
    made = FileDirectory(path)
    yield made
    made.close()


class Door:
    """A listener with its name, and the connections that are readable."""

    def __init__(self, directory: FileDirectory) -> None:
        self._directory = directory
        self._ready: queue.SimpleQueue[Channel] = queue.SimpleQueue()
        self.listener: Listener = listen(directory, "name", self._arrived)

    def _arrived(self, channel: Channel) -> None:
        self._ready.put(channel)

    def wait(self) -> Channel:
        """Return the next readable connection."""
        return self._ready.get(timeout=LATE)

    def accepted(self) -> tuple[Channel, Channel]:
        """Return both ends of a connection on which a byte was sent."""
        ours = connect(self._directory, "name", Deadline(LATE))
        ours.send(b"!", deadline=Deadline(LATE))
        theirs = self.wait()
        assert theirs.receive(1, Deadline(LATE)) == b"!"
        return ours, theirs

    def close(self) -> None:
        """Close all connections, including those of peers that only checked that this process is alive."""
        self.listener.close()
        while not self._ready.empty():
            self._ready.get().close()


@pytest.fixture
def door(directory: FileDirectory) -> Iterator[Door]:
    made = Door(directory)
    yield made
    made.close()


def refused(number: int, call: object) -> None:
    with pytest.raises(StorageError) as caught:
        call()  # type: ignore[operator]
    assert caught.value.errno == number


def until_refused(directory: FileDirectory, name: str) -> None:
    """Wait until no process listens at an address."""
    deadline = Deadline(LATE)
    while True:
        try:
            connect(directory, name, deadline).close()
        except StorageError as error:
            assert error.errno == errno.ECONNREFUSED
            return
        assert not deadline.passed, "somebody still listens"


def test_bytes_arrive_in_both_directions_whatever_their_number(directory: FileDirectory, door: Door) -> None:
    ours, theirs = door.accepted()
    large = os.urandom(3 << 20)
    sending = threading.Thread(target=lambda: ours.send(b"head", large, deadline=Deadline(LATE)))
    sending.start()
    assert theirs.receive(4 + len(large), Deadline(LATE)) == b"head" + large
    sending.join()
    theirs.send(b"answer", deadline=Deadline(LATE))
    assert ours.receive(6, Deadline(LATE)) == b"answer"
    for each in (ours, theirs):
        each.close()


def test_a_connection_that_is_given_back_is_looked_at_again(directory: FileDirectory, door: Door) -> None:
    ours, theirs = door.accepted()
    assert not theirs.has_more(0)
    door.listener.watch(theirs)
    threading.Timer(0.02, lambda: ours.send(b"more", deadline=Deadline(LATE))).start()
    assert door.wait() is theirs
    assert theirs.has_more(0)
    assert theirs.receive(4, Deadline(LATE)) == b"more"
    ours.close()
    theirs.close()


def test_the_end_of_the_other_side_is_noticed(directory: FileDirectory, door: Door) -> None:
    ours, theirs = door.accepted()
    door.listener.watch(theirs)
    ours.close()
    assert door.wait() is theirs
    refused(errno.ECONNRESET, lambda: theirs.receive(1, Deadline(LATE)))
    theirs.close()


def test_no_caller_waits_longer_than_the_deadline(directory: FileDirectory, door: Door) -> None:
    ours, theirs = door.accepted()
    refused(errno.ETIMEDOUT, lambda: ours.receive(1, Deadline(0.01)))
    refused(errno.ETIMEDOUT, lambda: ours.send(bytes(64 << 20), deadline=Deadline(0.05)))
    refused(errno.ETIMEDOUT, lambda: connect(directory, "name", Deadline(0)))
    ours.close()
    theirs.close()


def test_only_the_same_user_may_connect(directory: FileDirectory, door: Door) -> None:
    path = Path(directory.path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((path / "name").lstat().st_mode) == 0o600


def test_a_listener_that_is_closed_ends_its_connections_and_leaves_no_name(
    directory: FileDirectory, door: Door
) -> None:
    ours, theirs = door.accepted()
    door.listener.watch(theirs)
    busy, read_from = door.accepted()
    door.listener.close()
    door.listener.close()
    refused(errno.ECONNRESET, lambda: ours.receive(1, Deadline(LATE)))
    read_from.send(b"answer", deadline=Deadline(LATE))  # a thread reads from this one and closes it afterwards
    assert busy.receive(6, Deadline(LATE)) == b"answer"
    door.listener.watch(read_from)
    refused(errno.ECONNRESET, lambda: busy.receive(1, Deadline(LATE)))
    refused(errno.ENOENT, lambda: connect(directory, "name", Deadline(LATE)))
    assert directory.names() == []
    ours.close()
    busy.close()


def test_connections_end_when_their_owner_is_gone(directory: FileDirectory) -> None:
    door = Door(directory)
    listener, (ours, theirs) = door.listener, door.accepted()
    listener.watch(theirs)
    del door
    gc.collect()
    ours.send(b"?", deadline=Deadline(LATE))
    refused(errno.ECONNRESET, lambda: ours.receive(1, Deadline(LATE)))
    ours.close()
    listener.close()


def test_the_name_of_a_killed_process_is_refused_and_removed_and_that_of_a_stopped_one_is_not(
    directory: FileDirectory, door: Door
) -> None:
    code = (
        "import sys, time; from sawlog.storage import FileDirectory; from sawlog.storage.sockets import listen\n"
        "class Deaf:\n    def heard(self, channel): pass\n"
        "deaf = Deaf(); made = listen(FileDirectory(sys.argv[1]), sys.argv[2], deaf.heard)\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    processes = []
    for name in ("killed", "stopped"):
        made = subprocess.Popen([sys.executable, "-c", code, directory.path, name], stdout=subprocess.PIPE)
        assert made.stdout is not None
        assert made.stdout.readline() == b"ready\n"
        processes.append(made)
    killed, stopped = processes
    killed.kill()
    killed.wait()
    stopped.send_signal(signal.SIGSTOP)
    try:
        refused(errno.ECONNREFUSED, lambda: connect(directory, "killed", Deadline(LATE)))
        remove_dead(directory)
        assert directory.names() == ["name", "stopped"]
    finally:
        for each in processes:
            each.kill()
            each.wait()
            assert each.stdout is not None
            each.stdout.close()
    remove_dead(directory)
    assert directory.names() == ["name"]


def test_a_name_that_is_about_to_accept_connections_is_not_taken_for_dead(
    directory: FileDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(directory.path)
    (path / "file").write_bytes(b"of somebody else")
    seen: list[list[str]] = []

    class Late(socket.socket):
        def listen(self, backlog: int = 0, /) -> None:
            remove_dead(directory)
            seen.append(directory.names())
            os.utime(path / "name", (0, 0))  # no progress for a long time: the process is dead
            remove_dead(directory)
            seen.append(directory.names())
            raise OSError(errno.ENOBUFS, "enough seen")

    monkeypatch.setattr(sockets.socket, "socket", Late)
    refused(errno.ENOBUFS, lambda: Door(directory))
    assert seen == [["file", "name"], ["file"]]


def test_a_forked_child_does_not_keep_its_parents_connections_alive(directory: FileDirectory) -> None:
    code = (
        "import os, sys, time; from sawlog.storage import FileDirectory\n"
        "from sawlog.clock import Deadline; from sawlog.storage.sockets import listen, connect\n"
        "class Deaf:\n    def heard(self, channel): pass\n"
        "deaf = Deaf(); listener = listen(FileDirectory(sys.argv[1]), 'parent', deaf.heard)\n"
        "mine = connect(FileDirectory(sys.argv[1]), 'name', Deadline(30)); mine.send(b'!', deadline=Deadline(30))\n"
        "child = os.fork()\n"
        "if not child: time.sleep(600)\n"
        "print(child, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, directory.path], stdout=subprocess.PIPE
    ) as parent:
        door = Door(directory)
        try:
            theirs = door.wait()
            theirs.receive(1, Deadline(LATE))
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            parent.kill()
            parent.wait()
            refused(errno.ECONNRESET, lambda: theirs.receive(1, Deadline(LATE)))
            until_refused(directory, "parent")  # the child may not have run since the fork
            os.kill(child, signal.SIGKILL)
            theirs.close()
        finally:
            door.close()


def test_where_there_are_no_sockets_an_error_says_so() -> None:
    directory = MemoryDirectory()
    refused(errno.ENOTSUP, lambda: listen(directory, "name", print))
    refused(errno.ENOTSUP, lambda: connect(directory, "name", Deadline(1)))
    remove_dead(directory)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_an_interrupt_anywhere_in_listen_leaves_nothing_registered(directory: FileDirectory) -> None:
    """Even before the caller has the listener: the name and the descriptor can be used again."""
    fired = 0
    for number in range(1, 50):
        interrupter, door = Interrupter(number), None
        try:
            with interrupter.on():
                door = Door(directory)
        except Stop:
            fired += 1
        del interrupter
        gc.collect()  # the trace function keeps frames that a signal would not
        if door is not None:
            door.listener.close()
        door = Door(directory)
        for end in door.accepted():
            end.close()
        door.listener.close()
        assert directory.names() == [], number
    assert fired > 10


def test_a_socket_that_was_closed_without_being_removed_does_not_block_its_descriptor() -> None:
    ours, theirs = socket.socketpair()
    sockets._selector_thread.add(ours, lambda: None)
    descriptor = ours.fileno()
    ours.close()
    again = socket.socket(fileno=os.dup2(theirs.fileno(), descriptor))
    sockets._selector_thread.add(again, lambda: None)
    assert sockets._selector_thread.remove(again)
    again.close()
    theirs.close()
