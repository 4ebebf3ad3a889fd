"""Real limits: a file that must not grow, and a disk that is full. Nothing is lost, nothing torn, and it continues."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ...processes.launch import run
from ...processes.limited import FORMS
from ..sampling import some_of, some_or_all

#: Its own mount namespace, so that the mount goes when the process goes.
IN_NAMESPACE = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
MOUNT = 'mount -t tmpfs -o size=1m none "$0" && exec "$@"'


def on_tmpfs(directory: Path) -> list[str]:
    """A command before a command: with a disk of 1 MiB mounted at the directory. Skips where that is not allowed."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare here to mount a small disk with")
    tried = subprocess.run([*IN_NAMESPACE, MOUNT, str(directory), "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"mounting a small disk is not permitted here: {tried.stderr.strip()}")
    return [*IN_NAMESPACE, MOUNT, str(directory)]


@pytest.mark.alternating
@some_or_all(3)
def test_a_file_that_must_not_grow(tmp_path: Path, most: int | None) -> None:
    assert run("limited", "file", tmp_path, *some_of(FORMS, most)) == "good\n"


@pytest.mark.costly  # fills a disk of 1 MiB in small appends, three times for each form
@some_or_all(2)
def test_a_disk_that_is_full(tmp_path: Path, most: int | None) -> None:
    assert run("limited", "disk", tmp_path, *some_of(FORMS, most), preexec=on_tmpfs(tmp_path)) == "good\n"
