"""A store does the same on real servers of object storage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sawlog.objects.bucket import Bucket
from sawlog.objects.store import ObjectStore
from sawlog.testing import StoreSuite

from .servers import Server


class TestStoreOnMoto(StoreSuite):
    @pytest.fixture
    def store(self, moto: Server) -> Iterator[ObjectStore]:
        with ObjectStore.open(Bucket(moto.new_url(), moto.options)) as store:
            yield store


@pytest.mark.slow
@pytest.mark.xdist_group("seaweedfs")
class TestStoreOnSeaweedFS(StoreSuite):
    @pytest.fixture
    def store(self, seaweedfs: Server) -> Iterator[ObjectStore]:
        with ObjectStore.open(Bucket(seaweedfs.new_url(), seaweedfs.options)) as store:
            yield store
