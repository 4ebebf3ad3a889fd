"""The version of this installation, which `sawlog --version` prints also without the extra `cli`."""

from __future__ import annotations

from .. import __version__
from .._kernel_info import kernel_info


def version_line() -> str:
    """Return the version, and whether the kernel is compiled."""
    return f"sawlog {__version__}, {'compiled' if kernel_info().compiled else 'interpreted'} kernel"
