"""Shared servers and a shared Spark session, each started once per test process, when first needed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..spark import sharing
from ..spark.sharing import spark as spark  # noqa: PLC0414
from . import servers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests that use the Spark session in one process."""
    sharing.group(items)


@pytest.fixture(scope="session")
def moto() -> Iterator[servers.Server]:
    """An S3 server for quick tests."""
    with servers.moto() as server:
        yield server


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """A replicated S3 server."""
    with servers.seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server
