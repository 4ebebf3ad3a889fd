"""A descriptor with one owner, and how names are opened: never through a symbolic link, never left to a child."""

from __future__ import annotations

import os

from ..batch import kernel

#: Added to the flags of every `os.open` of a name.
OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


class Handle(kernel.DescriptorFields):
    """A descriptor with one owner: closed once, by the last user, and never twice."""

    __slots__ = ()
    #: -1 if it is closed, or an interrupt stopped the constructor.
    fd: int

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        """Close it if it is still open."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


def identity_of(found: os.stat_result) -> tuple[int, int]:
    """What tells a file from another that gets its name: device and inode."""
    return found.st_dev, found.st_ino
