"""Look into the wheel of a directory, then install it into a new environment and use it there.

Checks what a build gets wrong without anybody noticing: a missing py.typed or kernel source, generated C that
came along, an extension that is not where the wheel's name says, a module that works only in the checkout.
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
    """True for a file that Python would load as a compiled module."""
    return name.endswith((".so", ".pyd"))


def is_universal(wheel: Path) -> bool:
    """True for a wheel that installs on any platform, as SAWLOG_PURE=1 makes it."""
    return wheel.name.endswith("-none-any.whl")


def problems(wheel: Path) -> list[str]:
    """What is wrong with the files in the wheel; an empty list if nothing is."""
    names = set(zipfile.ZipFile(wheel).namelist())
    found = [f"{name} is missing" for name in sorted(REQUIRED - names)]
    found += [f"{name} does not belong in a wheel" for name in sorted(names) if name.endswith((".c", ".pyc"))]
    if is_universal(wheel) and any(map(is_extension, names)):
        found.append("a wheel for any platform holds an extension for this one")
    return found


def try_in_new_environment(wheel: Path) -> None:
    """Install the wheel where nothing else is, and append and read with it."""
    with tempfile.TemporaryDirectory(prefix="sawlog-wheel-") as directory:
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        python = Path(directory) / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", wheel.resolve()], check=True)
        # -I: neither the checkout nor PYTHONPATH can lend it a module.
        subprocess.run([python, "-I", TRY_IT], check=True, cwd=directory)


def main(directory: Path) -> int:
    """Check the one wheel in `directory`."""
    wheel, *others = directory.glob("*.whl")
    assert not others, f"more than one wheel in {directory}: {others}"
    found = problems(wheel)
    for problem in found:
        print(f"{wheel.name}: {problem}", file=sys.stderr)
    if found:
        return 1
    try_in_new_environment(wheel)
    if not is_universal(wheel) and not any(map(is_extension, zipfile.ZipFile(wheel).namelist())):
        print(f"{wheel.name}: named for this platform but not compiled (no C compiler?); not one to publish")
    print(*(path.relative_to(directory.parent) for path in sorted(directory.iterdir())), sep="\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except subprocess.CalledProcessError as error:
        sys.exit(f"failed with {error.returncode}: {' '.join(map(str, error.cmd))}")
