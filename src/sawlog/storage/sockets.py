"""Unix domain sockets between processes of one machine, with names in a directory.

A name has mode 0600 once its process accepts connections. If the process dies, connecting to the name is refused, and
`remove_dead` removes it. Only processes of the same user connect: the directory has mode 0700, and the peer's user is
checked where the system reports it.

A socket address has at most 107 bytes on Linux, and a path may be longer. So the address goes through the directory's
descriptor in /proc; without /proc, a long path is an error.

Every blocking call has a deadline. Errors are `StorageError`: ETIMEDOUT after the deadline, ECONNRESET if the peer has
closed the connection, ECONNREFUSED or ENOENT if no process listens.

A `Channel` is for one thread at a time; a `Listener` is thread-safe. One selector thread per process watches all
sockets; it exits when there is nothing to watch. A forked child closes its copies immediately: a connection ends with
the process that opened it.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import selectors
import socket
import stat
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from ..clock import Deadline
from ..errors import StorageError
from .forking import forkable, notify_after_fork
from .interface import Buffer, Directory
from .locks import OpenDirectory
from .system import reporting

#: Limits on connections that wait to be accepted, and on open connections; more are refused.
_BACKLOG, _MOST = 128, 512
#: The selector thread exits after this long without a socket to watch.
_IDLE_S = 5.0
#: Pause after a failed `accept`, usually because the process is out of descriptors.
_SHORTAGE_S = 0.1
#: `remove_dead` leaves a name that does not accept connections yet alone for this long.
_BINDING_S = 60.0
#: Time limit of `remove_dead` for connecting to a name.
_PROBE_S = 1.0
#: The mode of a name that accepts connections: only its user may connect.
_LISTENING = stat.S_IRUSR | stat.S_IWUSR

_logger = logging.getLogger("sawlog")


class Channel:
    """A connection."""

    def __init__(self, connected: socket.socket, path: str) -> None:
        self._socket = connected
        self._path = path
        notify_after_fork(self)

    def fileno(self) -> int:
        """Return the descriptor; -1 once closed."""
        return self._socket.fileno()

    def send(self, *parts: Buffer, deadline: Deadline) -> None:
        """Send all bytes of all parts."""
        with _reporting("writing to", self._path):
            for part in parts:
                self._socket.settimeout(_rest(deadline))
                self._socket.sendall(part)

    def receive(self, size_bytes: int, deadline: Deadline) -> bytearray:
        """Receive exactly this many bytes."""
        data = bytearray(size_bytes)
        view, at = memoryview(data), 0
        with _reporting("reading from", self._path):
            while at < size_bytes:
                self._socket.settimeout(_rest(deadline))
                count = self._socket.recv_into(view[at:])
                if not count:
                    raise StorageError(errno.ECONNRESET, f"the other side of {self._path} has ended")
                at += count
        return data

    def has_more(self, seconds: float) -> bool:
        """Wait up to `seconds` and return whether there is data to read or the peer has closed the connection."""
        with _reporting("reading from", self._path):
            waiting = select.poll()
            waiting.register(self._socket, select.POLLIN)
            return bool(waiting.poll(seconds * 1000))

    def close(self) -> None:
        """Close the connection. Safe to call twice."""
        self._socket.close()

    after_fork = close


class _SelectorThread:
    """The process's selector and its thread, which runs as long as there are sockets to watch."""

    def __init__(self) -> None:
        self._lock = forkable(threading.RLock())
        self._selector: selectors.BaseSelector | None = None
        self._thread: threading.Thread | None = None
        notify_after_fork(self)

    def after_fork(self) -> None:
        """Start over in a forked child, which has no such thread. The parent's selector is not affected."""
        if self._selector is not None:
            self._selector.close()
        self._selector = self._thread = None

    def add(self, what: socket.socket | Channel, call: Callable[[], None]) -> None:
        """Call `call` in the selector thread whenever the socket is readable. A thread already waiting notices it."""
        with self._lock:
            if self._selector is None:
                self._selector = selectors.DefaultSelector()
            try:
                self._selector.register(what, selectors.EVENT_READ, call)
            except KeyError:  # an interrupted call closed a socket with the same descriptor without removing it
                self._remove_closed(self._selector)
                self._selector.register(what, selectors.EVENT_READ, call)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._wait, name="sawlog-sockets", daemon=True)
                self._thread.start()

    @staticmethod
    def _remove_closed(selector: selectors.BaseSelector) -> None:
        for key in list(selector.get_map().values()):
            if not isinstance(key.fileobj, int) and key.fileobj.fileno() < 0:
                selector.unregister(key.fileobj)

    def remove(self, what: socket.socket | Channel) -> bool:
        """Stop watching a socket. Return whether it was watched."""
        with self._lock:
            try:
                assert self._selector is not None
                self._selector.unregister(what)
            except (KeyError, ValueError, AssertionError):
                return False
            return True

    def _wait(self) -> None:
        while selector := self._selector:
            for key, _ in selector.select(None if selector.get_map() else _IDLE_S):
                try:
                    key.data()
                except Exception:  # for instance, no more threads can be started
                    _logger.exception("a connection was not served")
            with self._lock:
                if not selector.get_map() and self._thread is threading.current_thread():
                    selector.close()
                    self._selector = self._thread = None
                    return


_selector_thread = _SelectorThread()


class Listener:
    """A listening socket that reports which of its connections are readable.

    An interrupt may come after the socket is registered and before the caller has the listener. So the selector thread
    holds the listener weakly, and its finalizer deregisters the socket and removes the name.
    """

    def __init__(self, directory: OpenDirectory, name: str, ready: Callable[[Channel], None]) -> None:
        self._directory, self._name = directory, name
        self._path = f"{directory.path}/{name}"
        self._ready = weakref.WeakMethod(ready)
        self._lock = forkable(threading.RLock())
        self._closed = False
        self._channels: weakref.WeakSet[Channel] = weakref.WeakSet()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        end = partial(_end, self._socket, directory, name)
        self._end = weakref.finalize(self, end)
        notify_after_fork(self)
        try:
            self._bind()
            self._socket.setblocking(False)
            _selector_thread.add(self._socket, _weakly(self._accept, end))
        except BaseException:
            self._end()
            raise

    def _bind(self) -> None:
        """Bind the name. It gets its final mode only after `listen`: until then connections are refused, and another
        process would take this one for dead."""
        fd = self._directory.fd
        with _reporting("listening on", self._path):
            with suppress(OSError):  # only the owner can, and only the owner needs to
                os.fchmod(fd, stat.S_IRWXU)
            with suppress(OSError):  # on Linux the name then has this mode from the beginning
                os.fchmod(self._socket.fileno(), 0)
            self._socket.bind(_address(self._directory, self._name))
            self._socket.listen(_BACKLOG)
            os.chmod(self._name, _LISTENING, dir_fd=fd)

    def _accept(self) -> None:
        try:
            connected, _ = self._socket.accept()
        except BlockingIOError:
            return  # the client has gone away
        except OSError:
            if not self._closed:
                time.sleep(_SHORTAGE_S)
            return
        if len(self._channels) >= _MOST or not _is_ours(connected):
            connected.close()
            return
        channel = Channel(connected, self._path)
        self._channels.add(channel)
        self.watch(channel)

    def watch(self, channel: Channel) -> None:
        """Watch a connection until it is readable or closed by the peer, then call `ready` once. Call again to resume
        watching. If the listener is closed, this closes the connection."""
        with self._lock:
            if self._closed:
                channel.close()
            else:
                _selector_thread.add(channel, lambda: self._arrived(channel))

    def _arrived(self, channel: Channel) -> None:
        with self._lock:
            if self._closed or not _selector_thread.remove(channel):
                return
        ready = self._ready()
        if ready is None:
            channel.close()
        else:
            ready(channel)

    def close(self) -> None:
        """Remove the name, stop accepting, and close the watched connections. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._end()
            for channel in list(self._channels):
                if _selector_thread.remove(channel):
                    channel.close()

    def after_fork(self) -> None:
        """Close the copy in a forked child without removing the name, which is the parent's. Channels close their
        own copies."""
        self._closed = True
        self._end.detach()
        self._socket.close()


def _end(listening: socket.socket, directory: OpenDirectory, name: str) -> None:
    """Deregister a listening socket, remove its name if it is bound, and close it."""
    _selector_thread.remove(listening)
    with suppress(OSError):
        if listening.getsockname():
            os.unlink(name, dir_fd=directory.fd)
    listening.close()


def _weakly(method: Callable[[], None], gone: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls a bound method for as long as its object lives, and `gone` after that."""
    held = weakref.WeakMethod(method)

    def call() -> None:
        living = held()
        if living is None:
            gone()
        else:
            living()

    return call


def open_private(root: Directory, name: str) -> Directory:
    """Open a subdirectory for socket names, created with mode 0700 if missing. Nothing in it is durable."""
    if not isinstance(root, OpenDirectory):
        raise StorageError(errno.ENOTSUP, f"{root.path} cannot contain a socket")
    with _reporting("creating", f"{root.path}/{name}"), suppress(FileExistsError):
        os.mkdir(name, stat.S_IRWXU, dir_fd=root.fd)
    return root.child(name)


def listen(directory: Directory, name: str, ready: Callable[[Channel], None]) -> Listener:
    """Accept connections under a name in a directory. The bound method `ready` is called with each connection that is
    readable or closed by its peer, in the process's selector thread: it must not raise or block. Its object is held
    weakly; once it is gone, connections are closed."""
    if not hasattr(socket, "AF_UNIX") or not isinstance(directory, OpenDirectory):
        raise StorageError(errno.ENOTSUP, f"{directory.path} cannot contain a socket")
    return Listener(directory, name, ready)


def connect(directory: Directory, name: str, deadline: Deadline) -> Channel:
    """Connect to the process that listens under a name."""
    if not hasattr(socket, "AF_UNIX") or not isinstance(directory, OpenDirectory):
        raise StorageError(errno.ENOTSUP, f"{directory.path} cannot contain a socket")
    path = f"{directory.path}/{name}"
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _reporting("connecting to", path):
            _connect(made, _address(directory, name), deadline)
    except BaseException:
        made.close()
        raise
    return Channel(made, path)


def _connect(made: socket.socket, address: str, deadline: Deadline) -> None:
    while True:
        made.settimeout(_rest(deadline))
        try:
            made.connect(address)
        except BlockingIOError as error:  # the listener's backlog is full
            deadline.pause(or_raise=error)
        else:
            return


def remove_dead(directory: Directory) -> None:
    """Remove the names left behind by dead processes."""
    if not isinstance(directory, OpenDirectory):
        return
    for name in directory.names():
        try:
            found = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
            if not stat.S_ISSOCK(found.st_mode):
                continue
            if stat.S_IMODE(found.st_mode) != _LISTENING and time.time() - found.st_mtime < _BINDING_S:
                continue
            connect(directory, name, Deadline(_PROBE_S)).close()
        except StorageError as error:
            if error.errno == errno.ECONNREFUSED:
                with suppress(OSError):
                    os.unlink(name, dir_fd=directory.fd)
        except OSError:
            continue  # removed meanwhile


def _address(directory: OpenDirectory, name: str) -> str:
    by_descriptor = f"/proc/self/fd/{directory.fd}"
    return f"{by_descriptor if os.path.isdir(by_descriptor) else directory.path}/{name}"


def _is_ours(connected: socket.socket) -> bool:
    """Return whether the peer runs as the same user or as root."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, user, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return user in (os.geteuid(), 0)


def _rest(deadline: Deadline) -> float | None:
    """Return the remaining time for a socket timeout; raise `TimeoutError` if there is none."""
    rest = deadline.rest_s
    if rest is not None and rest <= 0:
        raise TimeoutError
    return rest


@contextmanager
def _reporting(doing: str, path: str) -> Iterator[None]:
    """Convert OSErrors in the block to `StorageError`. Two of Python's have no errno: a timeout, and an address that is
    too long."""
    try:
        with reporting(doing, path):
            yield
    except StorageError as error:
        if error.errno is not None:
            raise
        late = isinstance(error.__cause__, TimeoutError)
        number = errno.ETIMEDOUT if late else errno.ENAMETOOLONG
        raise StorageError(number, f"{os.strerror(number)} while {doing} {path}") from error
