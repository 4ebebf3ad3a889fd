"""Servers that tests share, and a Spark: each starts once for all tests of a process that need it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..spark import sharing
from ..spark.sharing import spark as spark  # noqa: PLC0414
from . import servers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests with the session in one process."""
    sharing.group(items)


@pytest.fixture(scope="session")
def moto() -> Iterator[servers.Server]:
    """A server of S3's protocol, for quick tests."""
    with servers.moto() as server:
        yield server


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """A replicated server of S3's protocol."""
    with servers.seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server
