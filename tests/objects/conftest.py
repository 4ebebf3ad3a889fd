"""Servers that tests share: moto's starts once for all tests of a process that need it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import servers


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
