"""The package with another kernel: a folder of links to the sources, and in it the kernel that one wants.

Python takes a compiled kernel before `kernel/__init__.py`. Where the interpreted one is to run (coverage can be seen
in it), or one with AddressSanitizer, this makes a second `sawlog` that differs in that alone. It is put first on the
path.
"""

from __future__ import annotations

import importlib.machinery
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"


def make(place: Path, kernel: Path | None = None) -> Path:
    """A folder for PYTHONPATH; without `kernel` the interpreted one runs."""
    shutil.rmtree(place, ignore_errors=True)
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    for path in sorted(SOURCE.rglob("*")):
        if path.is_dir() or "__pycache__" in path.parts or path.name.endswith(suffixes):
            continue
        link = place / path.relative_to(SOURCE)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    if kernel is not None:
        (place / "sawlog/batch/kernel" / kernel.name).symlink_to(kernel)
    return place
