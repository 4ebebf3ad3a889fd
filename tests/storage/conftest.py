"""The tests of storages use files on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """On the disk, wherever the temporary directories of other tests are."""
    return disk_path
