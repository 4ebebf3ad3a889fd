"""Large matrices of cases are sampled in the quick tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from .. import matrices


def pytest_configure(config: pytest.Config) -> None:
    matrices.register(config)


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    matrices.mark_slow_cases(config, items, Path(__file__).parent)
