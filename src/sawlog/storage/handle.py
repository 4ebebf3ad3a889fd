"""`Handle`, a file descriptor with one owner, and the flags with which every name is opened."""

from __future__ import annotations

import os

from ..batch import kernel

#: Added to every `os.open` of a name: never follow a symbolic link, never leak the descriptor to a child program.
OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


class Handle(kernel.DescriptorFields):
    """A descriptor with one owner. Closed exactly once, at the latest with its last reference."""

    __slots__ = ()
    #: -1 once closed, or if an interrupt stopped the constructor.
    fd: int

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        """Close the descriptor. Safe to call twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


def identity_of(found: os.stat_result) -> tuple[int, int]:
    """Return device and inode, which tell a file from another one that replaces it under the same name."""
    return found.st_dev, found.st_ino
