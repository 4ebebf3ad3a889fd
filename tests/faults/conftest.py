"""The laboratory breaks things on purpose: what sawlog has to say about each of them is not kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("sawlog")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(before)


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """On the disk, wherever the temporary directories of other tests are."""
    return disk_path
