"""Inspect a wheel, then install it into a new environment and use it there: `python tools/check_wheel.py WHEEL`.

Checks for silent build mistakes: a missing py.typed or kernel source, generated C files, an extension that contradicts
the wheel's name, a module that works only in the checkout.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

TRY_IT = Path(__file__).resolve().with_name("try_install.py")
REQUIRED = {"sawlog/__init__.py", "sawlog/py.typed", "sawlog/batch/kernel/__init__.py", "sawlog/batch/kernel/walk.py"}


def is_extension(name: str) -> bool:
    """Return True for a file that Python would load as a compiled module."""
    return name.endswith((".so", ".pyd"))


def is_universal(wheel: Path) -> bool:
    """Return True for a wheel that installs on any platform, as built with SAWLOG_PURE=1."""
    return wheel.name.endswith("-none-any.whl")


def is_compiled(wheel: Path) -> bool:
    """Return True for a wheel that holds the compiled kernel."""
    return any(map(is_extension, zipfile.ZipFile(wheel).namelist()))


def problems(wheel: Path) -> list[str]:
    """Return the problems with the files in the wheel."""
    names = set(zipfile.ZipFile(wheel).namelist())
    found = [f"{name} is missing" for name in sorted(REQUIRED - names)]
    found += [f"{name} does not belong in a wheel" for name in sorted(names) if name.endswith((".c", ".pyc"))]
    if is_universal(wheel) and is_compiled(wheel):
        found.append("a wheel for any platform holds an extension for this one")
    return found


def try_in_new_environment(wheel: Path, python: str | Path) -> None:
    """Install the wheel into an empty environment, and append and read with it."""
    with tempfile.TemporaryDirectory(prefix="sawlog-wheel-") as directory:
        subprocess.run([python, "-m", "venv", directory], check=True)
        own = Path(directory) / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        subprocess.run([own, "-m", "pip", "install", "--quiet", wheel.resolve()], check=True)
        # -I: no module comes from the checkout or from PYTHONPATH.
        subprocess.run([own, "-I", TRY_IT], check=True, cwd=directory)


def check(wheel: Path, python: str | Path) -> bool:
    """Inspect a wheel and try it with a Python. Print the problems and return False if there are any."""
    found = problems(wheel)
    for problem in found:
        print(f"{wheel.name}: {problem}", file=sys.stderr)
    if found:
        return False
    try_in_new_environment(wheel, python)
    if not is_universal(wheel) and not is_compiled(wheel):
        print(f"{wheel.name}: named for this platform but not compiled (no C compiler?); not one to publish")
    return True


if __name__ == "__main__":
    try:
        sys.exit(0 if check(Path(sys.argv[1]), sys.executable) else 1)
    except subprocess.CalledProcessError as error:
        sys.exit(f"failed with {error.returncode}: {' '.join(map(str, error.cmd))}")
