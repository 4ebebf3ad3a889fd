"""`python -m sawlog` prints the version, whether the kernel is compiled, and the versions of the dependencies.

It works right after `pip install .`, whose output hides the messages of the build. The command line interface is
`sawlog`, or `python -m sawlog.cli`.
"""

from __future__ import annotations

import platform
from importlib import metadata

from . import __version__, kernel_info

DEPENDENCIES = ("numpy", "pyarrow", "crc32c", "cramjam")


def main() -> None:
    """Print the three lines."""
    print(
        f"sawlog {__version__}, {platform.python_implementation()} {platform.python_version()}, {platform.platform()}"
    )
    print(kernel_info())
    print(", ".join(f"{name} {metadata.version(name)}" for name in DEPENDENCIES))


if __name__ == "__main__":
    main()
