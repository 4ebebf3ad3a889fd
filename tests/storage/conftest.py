"""The tests of storages use files on the disk. The quick tests sample large matrices of cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from .. import matrices


def pytest_configure(config: pytest.Config) -> None:
    matrices.register(config)


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    matrices.mark_slow_cases(config, items, Path(__file__).parent)


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """On the disk, wherever the temporary directories of other tests are."""
    return disk_path
