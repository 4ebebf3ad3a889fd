"""A disk without room, for every operation of a store that writes: nothing acknowledged is lost, and it continues.

The small disk is a tmpfs in a mount namespace of its own; where that is not permitted, a limit on the length of files
takes its place. `-m slow` has every kind, in the smallest steps.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ..processes.cramped import OPERATIONS
from ..processes.launch import run

IN_NAMESPACE = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
MOUNT = 'mount -t tmpfs -o size=1m,nr_inodes=300 none "$0" && exec "$@"'


def small_disk(directory: Path) -> list[str] | None:
    """A command before a command: with a small disk at the directory. None where that is not permitted."""
    if shutil.which("unshare") is None:
        return None
    command = [*IN_NAMESPACE, MOUNT, str(directory)]
    tried = subprocess.run([*command, "true"], capture_output=True, check=False)
    return None if tried.returncode else command


def met(output: str) -> dict[str, int]:
    """Return how often each operation met the limit."""
    *lines, last = output.splitlines()
    assert last == "good"
    return {operation: int(count) for operation, count in (line.split() for line in lines)}


@pytest.mark.costly  # every operation meets a full disk, each on a store of its own
def test_a_full_disk_costs_no_record_and_everything_goes_on_when_there_is_room(tmp_path: Path) -> None:
    disk = small_disk(tmp_path)
    found = met(run("cramped", "length" if disk is None else "bytes", tmp_path, "few", preexec=disk))
    assert list(found) == list(OPERATIONS)
    for operation in ("rotate", "create", "alter", "small_transaction", "large_transaction", "publish", "compact"):
        assert found[operation] > 0, f"{operation} had room enough with nothing left"


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_file_that_must_not_grow_costs_no_record(tmp_path: Path, operation: str) -> None:
    every = 0 if operation == "large_transaction" else 1  # it needs a thousand steps, and seconds for each
    found = met(run("cramped", "length", tmp_path, every, operation))
    # Sealing does without its caches.
    assert found[operation] > 0 or operation == "seal"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bytes", "files"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_disk_with_a_little_room_costs_no_record(tmp_path: Path, operation: str, kind: str) -> None:
    disk = small_disk(tmp_path)
    if disk is None:
        pytest.skip("mounting a small disk is not permitted here; the test above does without")
    met(run("cramped", kind, tmp_path, 1, operation, preexec=disk))
