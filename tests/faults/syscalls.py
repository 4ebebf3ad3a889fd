"""The system calls of a run on real files, recorded.

```python
with recording(top) as history:                       # every change below the directory `top` is noted
    with Log.open(f"{top}/data") as log:
        log.append(b"acknowledged")
tree = PowerCut(history, 17, "subset", "zeros", random.Random(1)).tree()   # see powercuts
lay_out("found", tree)                                # as the machine finds it if the power goes before call 17
```

**What is recorded.** All calls by which `sawlog.storage` changes a file or a name: open (which creates and cuts),
write, pwrite, ftruncate, rename, link, unlink, mkdir, rmdir, fsync, fdatasync. What is stored through a mapping is no
call: before each call, every writable mapping is compared with what is known, and a difference is noted as "store".
`fallocate` is not recorded: sawlog reserves blocks beyond the end of a file, which changes neither its size nor its
content. Calls that would change files and that nobody makes are refused (`_REFUSED`). So that nothing escapes,
`recording` ends with a comparison: the files that the noted calls make are those in the directory, byte for byte.

No fsync reaches the system while a run is recorded. What a power cut leaves is decided here, and runs are quick.

Threads: any may make calls; they are recorded one at a time. One recording at a time per process.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from .powercuts import File, Folder, History, Node, tree_of

_RECORDED = (
    "close",
    "fdatasync",
    "fsync",
    "ftruncate",
    "link",
    "mkdir",
    "open",
    "pwrite",
    "remove",
    "rename",
    "replace",
    "rmdir",
    "unlink",
    "write",
)
#: They change files as well, or give them another descriptor. If the storage begins to use one, it has to be recorded.
_REFUSED = (
    "copy_file_range",
    "dup",
    "dup2",
    "posix_fallocate",
    "pwritev",
    "sendfile",
    "splice",
    "symlink",
    "truncate",
    "writev",
)
_REAL = SimpleNamespace(**{name: getattr(os, name) for name in _RECORDED})


class _Recorder:
    """Stands in for some functions of `os`, and for `mmap.mmap`."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)
        self.history = History(self._folder_at(self.root, "."))
        self.history.folders = list(_folders(self.history.root))
        self.lock = threading.RLock()
        self._nodes: dict[int, Node] = {}
        self._mappings: dict[File, mmap.mmap] = {}

    def _folder_at(self, path: str, name: str) -> Folder:
        """Record the existing files, all of them durable."""
        made = Folder(name)
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                made.before[entry.name] = self._folder_at(entry.path, entry.name)
            else:
                made.before[entry.name] = File(entry.name, Path(entry.path).read_bytes())
        made.now = dict(made.before)
        return made

    def standing_in(self, name: str) -> Callable[..., Any]:
        """For the function of `os` that has this name."""
        method = getattr(self, name)

        def call(*given: Any, **named: Any) -> Any:
            with self.lock:
                self.look_at_mappings()
                return method(*given, **named)

        return call

    def _find(self, path: Any, dir_fd: int | None) -> tuple[Folder, str] | None:
        """The directory and the name in it that a path means; None if it is not below the root."""
        if not isinstance(path, str | os.PathLike):
            return None
        text, folder = str(os.fspath(path)), self.history.root
        if dir_fd is not None and not text.startswith("/"):
            found = self._nodes.get(dir_fd)
            if not isinstance(found, Folder):
                return None
            folder = found
        else:
            text = os.path.abspath(text)
            if text != self.root and not text.startswith(f"{self.root}/"):
                return None
            text = text[len(self.root) + 1 :] or "."
        *above, name = text.split("/")
        for each in above:
            found = folder.now[each]
            assert isinstance(found, Folder)
            folder = found
        return folder, name

    # --- descriptors

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        fd: int = _REAL.open(path, flags, mode, dir_fd=dir_fd)
        found = self._find(path, dir_fd)
        if found is None:
            return fd
        assert not flags & os.O_APPEND, "what is written with O_APPEND is not recorded"
        folder, name = found
        node = folder if name == "." else folder.now.get(name)
        if node is None:
            node = File(name)
            self.history.change("create", (folder, name, node))
        elif isinstance(node, File) and flags & os.O_TRUNC and node.now:
            self.history.write("truncate", node, 0, None)
        self._nodes[fd] = node
        return fd

    def close(self, fd: int) -> None:
        self._nodes.pop(fd, None)
        _REAL.close(fd)

    # --- content

    def write(self, fd: int, data: Any) -> int:
        file = self._nodes.get(fd)
        position = os.lseek(fd, 0, os.SEEK_CUR) if isinstance(file, File) else 0
        return self._written("write", fd, data, position, _REAL.write(fd, data))

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        return self._written("pwrite", fd, data, position, _REAL.pwrite(fd, data, position))

    def _written(self, call: str, fd: int, data: Any, position: int, count: int) -> int:
        file = self._nodes.get(fd)
        if isinstance(file, File) and count:
            self.history.write(call, file, position, bytes(memoryview(data).cast("B")[:count]))
        return count

    def ftruncate(self, fd: int, size: int) -> None:
        _REAL.ftruncate(fd, size)
        file = self._nodes.get(fd)
        if isinstance(file, File) and len(file.now) != size:
            self.history.write("ftruncate", file, size, None)

    def fsync(self, fd: int, call: str = "fsync") -> None:
        node = self._nodes.get(fd)
        if node is not None:
            self.history.sync(call, node)

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd, "fdatasync")

    def note_mapping(self, fd: int, mapping: mmap.mmap) -> None:
        """A file is mapped to be written. All mappings of a file show the same: one of them is enough."""
        file = self._nodes.get(fd)
        if isinstance(file, File):
            self._mappings[file] = mapping

    def look_at_mappings(self) -> None:
        """Record the changes made through mappings since the last call."""
        for file, mapping in self._mappings.items():
            found, known = mapping[:], file.now[: len(mapping)]
            if found != known:
                first = next(at for at in range(len(found)) if at >= len(known) or found[at] != known[at])
                last = next(at for at in range(len(found), 0, -1) if at > len(known) or found[at - 1] != known[at - 1])
                self.history.write("store", file, first, found[first:last])

    # --- names

    def rename(
        self, old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, call: str = "rename"
    ) -> None:
        source, target = self._find(old, src_dir_fd), self._find(new, dst_dir_fd)
        _REAL.rename(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        assert (source is None) == (target is None), f"{old} was moved out of, or into, what is recorded"
        if source is not None and target is not None and source != target:
            node = source[0].now[source[1]]
            self.history.change(call, (*source, None), (*target, node))

    replace = rename

    def link(
        self,
        old: Any,
        new: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        source, target = self._find(old, src_dir_fd), self._find(new, dst_dir_fd)
        _REAL.link(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=follow_symlinks)
        assert (source is None) == (target is None), f"{old} is linked out of, or into, what is recorded"
        if source is not None and target is not None:
            self.history.change("link", (*target, source[0].now[source[1]]))

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        _REAL.unlink(path, dir_fd=dir_fd)
        self._removed("unlink", path, dir_fd)

    remove = unlink

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        _REAL.rmdir(path, dir_fd=dir_fd)
        self._removed("rmdir", path, dir_fd)

    def _removed(self, call: str, path: Any, dir_fd: int | None) -> None:
        found = self._find(path, dir_fd)
        if found is not None:
            self.history.change(call, (*found, None))

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        _REAL.mkdir(path, mode, dir_fd=dir_fd)
        found = self._find(path, dir_fd)
        if found is not None:
            made = Folder(found[1])
            self.history.folders.append(made)
            self.history.change("mkdir", (*found, made))


def _folders(folder: Folder) -> Iterator[Folder]:
    yield folder
    for node in folder.before.values():
        if isinstance(node, Folder):
            yield from _folders(node)


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*given: Any, **named: Any) -> Any:
        raise AssertionError(f"os.{name} is not recorded: tests/faults/syscalls.py has to learn it")

    return refuse


def _mapping_with(recorder: _Recorder) -> type[mmap.mmap]:
    class Mapping(mmap.mmap):
        """A mapping that the recorder knows of, if it can be written."""

        def __new__(cls, fd: int, length: int, *more: Any, **named: Any) -> Mapping:
            made = super().__new__(cls, fd, length, *more, **named)
            if named.get("access") not in (mmap.ACCESS_READ, mmap.ACCESS_COPY):
                recorder.note_mapping(fd, made)
            return made

    return Mapping


@contextmanager
def recording(root: str | Path) -> Iterator[History]:
    """Note every change below an existing directory. In the end, raise if the directory holds anything else than the
    noted calls make: then something was changed in a way that is not recorded."""
    recorder = _Recorder(os.fspath(root))
    with ExitStack() as patches:
        for name in _RECORDED:
            patches.enter_context(mock.patch.object(os, name, recorder.standing_in(name)))
        for name in _REFUSED:
            if hasattr(os, name):
                patches.enter_context(mock.patch.object(os, name, _refusing(name)))
        patches.enter_context(mock.patch.object(mmap, "mmap", _mapping_with(recorder)))
        yield recorder.history
        recorder.look_at_mappings()
    known, found = recorder.history.tree(), tree_of(root)
    other = sorted(path for path in {*known, *found} if known.get(path) != found.get(path))
    assert not other, f"changed by calls that are not recorded: {other}"
