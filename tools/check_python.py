"""Stop `make setup` early, with the command to type, if this Python cannot create the environment.

It must run on the Pythons that it rejects, so it uses no syntax newer than Python 3.0.
"""

import os
import subprocess
import sys

OLDEST = (3, 11)
NEWER_NAMES = ["python3.14", "python3.13", "python3.12", "python3.11"]

TOO_OLD = "sawlog needs Python 3.11 or newer, and {executable} is {version}."
TAKE_THIS = "This machine has a newer one. Type:\n\n    make setup PYTHON={name}"
INSTALL_ONE = """Install one, for example with one of

    apt install python3.11 python3.11-venv
    brew install python@3.13
    uv python install 3.13

then type:

    make setup PYTHON=/path/to/that/python"""
NO_VENV = """{executable} came without the module that makes virtual environments.
On Debian and Ubuntu type:

    apt install python{version}-venv"""


def works(name: str) -> bool:
    """Return whether `name` starts: the PATH may contain a version manager's stub without a Python behind it."""
    with open(os.devnull, "w") as nowhere:
        try:
            return subprocess.call([name, "-c", ""], stdout=nowhere, stderr=nowhere) == 0
        except OSError:
            return False


def advice() -> "str | None":
    """Return the problem with this Python and the command to type, or None if it is usable."""
    version = "{0}.{1}".format(*sys.version_info)
    if sys.version_info[:2] < OLDEST:
        newer = [name for name in NEWER_NAMES if works(name)]
        next_step = TAKE_THIS.format(name=newer[0]) if newer else INSTALL_ONE
        return TOO_OLD.format(executable=sys.executable, version=version) + "\n" + next_step
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return NO_VENV.format(executable=sys.executable, version=version)
    return None


if __name__ == "__main__":
    sys.exit(advice())
