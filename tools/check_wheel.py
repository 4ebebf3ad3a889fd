"""Inspect a wheel or source archive; use a wheel in new environments: `python tools/check_wheel.py WHEEL`.

Checks for silent build mistakes: a missing py.typed, licence or kernel source, generated C files, tests in a wheel, an
extension that contradicts the wheel's name, a description whose links lead nowhere on a package index, a module that
works only in the checkout, a command that needs an extra.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

TRY_IT = Path(__file__).resolve().with_name("try_install.py")
PACKAGES = {"sawlog", "pytest_sawlog", "pyspark_sawlog"}
IN_WHEEL = {"sawlog/__init__.py", "sawlog/py.typed", "sawlog/batch/kernel/__init__.py", "sawlog/batch/kernel/walk.py"}
IN_ARCHIVE = {
    *(f"src/{name}" for name in IN_WHEEL),
    "src/sawlog/batch/kernel/__init__.pyx",
    "src/sawlog/batch/kernel/declarations.pxi",
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "constraints.txt",
    "pyproject.toml",
    "setup.py",
    "tests/conftest.py",
}
_RELATIVE_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s]+)\)")


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
    """Return the problems with the files and the description in the wheel."""
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        [information] = {name.partition("/")[0] for name in names if ".dist-info/" in name}
        metadata = file.read(f"{information}/METADATA").decode()
    required = IN_WHEEL | {f"{information}/licenses/LICENSE", f"{information}/entry_points.txt"}
    found = [f"{name} is missing" for name in sorted(required - names)]
    found += [f"{name} does not belong in a wheel" for name in sorted(names) if _is_stray(name, information)]
    found += [f"the description links to {link}, which is relative" for link in _RELATIVE_LINK.findall(metadata)]
    if is_universal(wheel) and is_compiled(wheel):
        found.append("a wheel for any platform holds an extension for this one")
    return found


def _is_stray(name: str, information: str) -> bool:
    return name.endswith((".c", ".pyc")) or name.partition("/")[0] not in {*PACKAGES, information}


def archive_problems(archive: Path) -> list[str]:
    """Return the problems with the files in a source archive."""
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    made = (".c", ".pyc", ".so", ".pyd")
    found = [f"{name} is missing" for name in sorted(IN_ARCHIVE - names)]
    return found + [f"{name} does not belong in a source archive" for name in sorted(names) if name.endswith(made)]


def try_in_new_environment(wheel: Path, python: str | Path) -> None:
    """Install the wheel into an empty environment and use the library, then add the extra `cli` and use the command."""
    with tempfile.TemporaryDirectory(prefix="sawlog-wheel-") as directory:
        subprocess.run([python, "-m", "venv", directory], check=True)
        programs = Path(directory) / ("Scripts" if sys.platform == "win32" else "bin")
        own, sawlog = programs / "python", programs / "sawlog"
        subprocess.run([own, "-m", "pip", "install", "--quiet", wheel.resolve()], check=True)
        # -I: no module comes from the checkout or from PYTHONPATH.
        subprocess.run([own, "-I", TRY_IT], check=True, cwd=directory)
        _expect("pip install '.[cli]'", [sawlog, "--version"], directory)
        subprocess.run([own, "-m", "pip", "install", "--quiet", f"{wheel.resolve()}[cli]"], check=True)
        store: list[str | Path] = ["-d", Path(directory, "data")]
        _expect("", [sawlog, "produce", "greetings", "--create", *store], directory, b"hello\nworld\n")
        _expect("hello\nworld\n", [sawlog, "read", "greetings", *store], directory)


def _expect(text: str, command: list[str | Path], directory: str, given: bytes = b"") -> None:
    done = subprocess.run(command, cwd=directory, input=given, stdout=subprocess.PIPE, check=True)
    if text not in done.stdout.decode():
        raise SystemExit(f"{' '.join(map(str, command))} printed {done.stdout!r}, without {text!r}")


def check(wheel: Path, python: str | Path) -> bool:
    """Inspect a wheel and try it with a Python. Print the problems and return False if there are any."""
    if not report(wheel, problems(wheel)):
        return False
    try_in_new_environment(wheel, python)
    if not is_universal(wheel) and not is_compiled(wheel):
        print(f"{wheel.name}: named for this platform but not compiled (no C compiler?); not one to publish")
    return True


def report(file: Path, found: list[str]) -> bool:
    """Print the problems with a file. Return True if there are none."""
    for problem in found:
        print(f"{file.name}: {problem}", file=sys.stderr)
    return not found


if __name__ == "__main__":
    try:
        sys.exit(0 if check(Path(sys.argv[1]), sys.executable) else 1)
    except subprocess.CalledProcessError as error:
        sys.exit(f"failed with {error.returncode}: {' '.join(map(str, error.cmd))}")
