"""A store passes its suite on real servers of object storage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sawlog.store.objects.bucket import Bucket
from sawlog.store.objects.store import ObjectStore
from sawlog.testing import StoreSuite

from .servers import Server


class OnMoto:
    @pytest.fixture
    def store(self, moto: Server) -> Iterator[ObjectStore]:
        with ObjectStore.open(Bucket(moto.new_url(), moto.options)) as store:
            yield store


class TestStoreOnMoto(OnMoto):
    """One test of the suite for each use of a bucket: create, overwrite, list, read ranges, stage, delete."""

    test_a_broker_fetches_the_batches_it_appended = StoreSuite.test_a_broker_fetches_the_batches_it_appended
    test_an_append_is_at_the_expected_offset_or_not_at_all = (
        StoreSuite.test_an_append_is_at_the_expected_offset_or_not_at_all
    )
    test_a_document_changes_version_by_version = StoreSuite.test_a_document_changes_version_by_version
    test_members_share_the_partitions = StoreSuite.test_members_share_the_partitions
    test_a_transaction_is_in_all_partitions_or_in_none = StoreSuite.test_a_transaction_is_in_all_partitions_or_in_none
    test_a_repeated_job_is_recognised_and_its_files_are_removed = (
        StoreSuite.test_a_repeated_job_is_recognised_and_its_files_are_removed
    )
    test_a_partition_is_read_in_slices = StoreSuite.test_a_partition_is_read_in_slices
    test_expired_records_are_dropped = StoreSuite.test_expired_records_are_dropped


@pytest.mark.slow  # a third of all requests to moto; test_protocols.py runs the suite in memory and in a directory
class TestWholeStoreOnMoto(OnMoto, StoreSuite):
    pass


@pytest.mark.slow
@pytest.mark.group("seaweedfs")
class TestStoreOnSeaweedFS(StoreSuite):
    @pytest.fixture
    def store(self, seaweedfs: Server) -> Iterator[ObjectStore]:
        with ObjectStore.open(Bucket(seaweedfs.new_url(), seaweedfs.options)) as store:
            yield store
