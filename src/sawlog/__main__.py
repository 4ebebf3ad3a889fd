"""`python -m sawlog`: which sawlog this is, whether its kernel is compiled, and the versions of what it needs.

Uses nothing but the library, so it answers right after `pip install .`, whose own output hides what the build said.
The command line is `sawlog`, or `python -m sawlog.cli`.
"""

from __future__ import annotations

import platform
from importlib import metadata

from . import __version__, kernel_info

NEEDED = ("numpy", "pyarrow", "crc32c", "cramjam")


def main() -> None:
    """Print it, three lines."""
    print(
        f"sawlog {__version__}, {platform.python_implementation()} {platform.python_version()}, {platform.platform()}"
    )
    print(kernel_info())
    print(", ".join(f"{name} {metadata.version(name)}" for name in NEEDED))


if __name__ == "__main__":
    main()
