"""Directories for the stores of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory for one store."""
    return tmp_path / "store"
