"""Measure what it takes to install sawlog: `python tools/measure_install.py dist/*.whl [EXTRA ...]`.

Installs the wheel into new environments, alone and with each extra (by default all of them), without pip's cache, and
prints a table for docs/installation.md: packages, megabytes downloaded and installed, seconds.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAD = "| | packages | downloaded | installed | seconds |\n|---|---:|---:|---:|---:|"


def measure(wheel: Path, extra: str) -> str:
    """Install the wheel with one extra, or with none, and return a row of the table."""
    with tempfile.TemporaryDirectory(prefix="sawlog-measure-") as place:
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        before = installed_bytes(Path(place))
        python, wanted = Path(place, "bin", "python"), f"{wheel.resolve()}{f'[{extra}]' if extra else ''}"
        command: list[str | Path] = [python, ROOT / "tools" / "install.py", "--no-cache-dir", wanted]
        began = time.monotonic()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        seconds = time.monotonic() - began
        found = re.search(r"installed (\d+) packages? in [\d:]+(?:, (\d+) MB downloaded)?", done.stdout)
        assert found is not None, done.stdout
        installed = installed_bytes(Path(place)) - before
    name = f"`[{extra}]`" if extra else "the library alone"
    return f"| {name} | {found[1]} | {found[2] or 0} MB | {installed / 1e6:.0f} MB | {seconds:.0f} |"


def installed_bytes(place: Path) -> int:
    """Return the size of all files in an environment."""
    return sum(path.lstat().st_size for path in place.rglob("*") if path.is_file() and not path.is_symlink())


def main(wheel: Path, extras: list[str]) -> None:
    """Print the table, row by row."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    print(HEAD, flush=True)
    for extra in extras or ["", *project["optional-dependencies"]]:
        print(measure(wheel, extra), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
