"""A disk without room: said once, shown as long as it lasts, and over when there is room."""

from __future__ import annotations

import resource
import urllib.error
import urllib.request
import weakref
from pathlib import Path

import pytest

from sawlog.broker.metrics import DiskSpace
from sawlog.broker.wire import ErrorCode, Key
from sawlog.config import MIB
from sawlog.errors import StorageFull

from ..topics.nursery import PATIENCE_S
from .peers import Peer, batch, produce_body
from .serving import Serving, free_port


class Disk:
    """A simulated disk."""

    def __init__(self) -> None:
        self.free: int | None = 1000
        self.now = 0.0
        self.disk_space = DiskSpace(lambda: self.free, lambda: self.now)

    def fail(self, place: str) -> None:
        self.disk_space.lacks(place, StorageFull(28, "no space left"))


@pytest.fixture
def disk() -> Disk:
    return Disk()


def test_an_episode_is_over_when_all_who_failed_have_succeeded(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    assert disk.disk_space.reason() is None
    for place in ("orders/0", "orders/1", "orders/0"):
        disk.fail(place)
    assert disk.disk_space.reason() == "there is no room to append to orders/0, orders/1: [Errno 28] no space left"
    disk.disk_space.found("orders/0")
    disk.disk_space.found("clicks/0")
    assert disk.disk_space.failing
    disk.disk_space.found("orders/1")
    assert disk.disk_space.reason() is None
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert disk.disk_space.refused == 3
    disk.fail("orders/0")
    assert len(caplog.records) == 3


def test_an_episode_is_over_when_there_is_more_free_space(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    disk.fail("orders/0")
    disk.free = 500
    disk.fail("orders/1")
    disk.free = MIB
    assert disk.disk_space.reason() is not None
    disk.free = 500 + MIB
    assert disk.disk_space.reason() is None
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_free_space_says_nothing_if_there_was_plenty(disk: Disk) -> None:
    disk.free = 300 * MIB
    disk.fail("orders/0")
    disk.free = 400 * MIB
    assert disk.disk_space.reason() is not None
    disk.disk_space.found("orders/0")
    assert disk.disk_space.reason() is None


def test_a_failure_counts_for_a_minute(disk: Disk) -> None:
    disk.free = None  # a store in memory, or a quota
    disk.fail("orders/0")
    disk.now = 50.0
    disk.fail("orders/1")
    disk.now = 100.0
    reason = disk.disk_space.reason()
    assert reason is not None
    assert "orders/0" not in reason
    disk.now = 200.0
    assert disk.disk_space.reason() is None


def test_the_error_is_not_kept_and_with_it_the_files_that_are_to_be_deleted(disk: Disk) -> None:
    error = StorageFull(28, "no space left")
    kept = weakref.ref(error)
    disk.disk_space.lacks("orders/0", error)
    del error
    assert disk.disk_space.failing
    assert kept() is None


def produced(peer: Peer, value: bytes) -> ErrorCode:
    [answer] = peer.ask(Key.PRODUCE, 9, produce_body("orders", batch(value)))["responses"]
    return ErrorCode(answer["partition_responses"][0]["error_code"])


def committed(peer: Peer, metadata: str) -> ErrorCode:
    offset = {"partition_index": 0, "committed_offset": 1, "committed_metadata": metadata}
    body = {"group_id": "billing", "generation_id_or_member_epoch": -1, "member_id": ""}
    answer = peer.ask(Key.OFFSET_COMMIT, 7, {**body, "topics": [{"name": "orders", "partitions": [offset]}]})
    return ErrorCode(answer["topics"][0]["partitions"][0]["error_code"])


def test_a_full_disk_is_seen_and_everything_goes_on_when_there_is_room(tmp_path: Path) -> None:
    port = free_port()

    def page(name: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=PATIENCE_S) as found:
                return found.status, found.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    with Serving(tmp_path / "data", "--metrics", f"127.0.0.1:{port}") as broker:
        with Peer(broker.address) as peer:
            peer.ask(Key.METADATA, 9, {"topics": [{"name": "orders"}], "allow_auto_topic_creation": True})
            assert produced(peer, b"first") is ErrorCode.NONE
            assert page("readyz")[0] == 200
            for episode in (1, 2):
                resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (64 << 10, resource.RLIM_INFINITY))
                for _ in range(3):
                    assert produced(peer, bytes(900_000)) is ErrorCode.KAFKA_STORAGE_ERROR
                code, text = page("readyz")
                assert (code, "no room to append to orders/0" in text) == (503, True), text
                assert page("healthz")[0] == 200
                _, metrics = page("metrics")
                assert f"sawlog_no_room_total {3.0 * episode}\n" in metrics
                assert 'sawlog_state{state="readonly"} 1.0\n' in metrics
                assert 'sawlog_state{state="ok"} 0.0\n' in metrics
                assert broker.said.count("there is no room") == episode
                resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                assert produced(peer, bytes(900_000)) is ErrorCode.NONE
                assert page("readyz") == (200, "ready\n")
                assert 'sawlog_state{state="ok"} 1.0\n' in page("metrics")[1]
                assert broker.said.count("there is room") == episode
        assert broker.stop() == 0


@pytest.mark.slow
def test_commits_that_have_no_room_are_said_once_too(tmp_path: Path) -> None:
    with (
        Serving(tmp_path / "data", "--set", "offset_metadata_max_bytes=100000") as broker,
        Peer(broker.address) as peer,
    ):
        peer.ask(Key.METADATA, 9, {"topics": [{"name": "orders"}], "allow_auto_topic_creation": True})
        assert committed(peer, "") is ErrorCode.NONE
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (8 << 10, resource.RLIM_INFINITY))
        for _ in range(3):
            assert committed(peer, "x" * 30_000) is ErrorCode.KAFKA_STORAGE_ERROR
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert committed(peer, "x" * 30_000) is ErrorCode.NONE
        assert len([line for line in broker.said.splitlines() if " ERROR " in line]) == 1, broker.said
        assert broker.said.count("there is no room") == 1
