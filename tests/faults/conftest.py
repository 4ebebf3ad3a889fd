"""The laboratory breaks things on purpose: what sawlog has to say about each of them is not kept. The seed is said."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from .seeds import repeat, seed_of_this_run


def pytest_configure() -> None:
    """Before other processes are started: they inherit the seed."""
    seed_of_this_run()


def pytest_report_header() -> str:
    """A failure can be repeated."""
    return f"fault laboratory: {repeat()}"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("sawlog")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(before)
