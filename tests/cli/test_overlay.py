"""Planning on top of an overlay keeps a storage's promises and leaves the files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from sawlog import Log, LogConfig
from sawlog.cli.maintenance import Overlay
from sawlog.errors import StorageError
from sawlog.testing import StorageSuite


class TestScratchStorage(StorageSuite):
    """An overlay passes the storage suite."""

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Overlay:
        return Overlay(str(tmp_path))


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_writes_to_an_overlay_never_reach_the_disk(tmp_path: Path) -> None:
    with Log.open(tmp_path, LogConfig(segment_bytes=300)) as log:
        for number in range(20):
            log.append(b"value %d" % number)
    before = contents(tmp_path)
    with Log.open(Overlay(str(tmp_path))) as log:
        assert [record.value for record in log] == [b"value %d" % number for number in range(20)]
        log.append_many([b"more"] * 100)
        log.seal()
        log.trim(5)
        log.truncate(50)
        assert (log.lowest_offset, log.next_offset) == (5, 50)
        assert log.read(49).value == b"more"
    assert contents(tmp_path) == before


def test_removing_renaming_and_replacing_stay_in_memory(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(f"was {name}")
    overlay = Overlay(str(tmp_path))
    overlay.remove("a")
    overlay.rename("b", "d")
    overlay.replace("c", b"new")
    assert overlay.names() == ["c", "d"]
    assert [overlay.exists(name) for name in ("a", "b", "c", "d")] == [False, False, True, True]
    assert (overlay.read("c"), overlay.read("d")) == (b"new", b"was b")
    with pytest.raises(StorageError):
        overlay.read("a")
    with pytest.raises(StorageError):
        overlay.open("b")
    assert overlay.create("a").size == 0
    assert contents(tmp_path) == {name: f"was {name}".encode() for name in ("a", "b", "c")}


def test_truncating_and_appending_stay_in_memory(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    storage = Overlay(str(tmp_path)).open("a")
    storage.truncate(4)
    assert storage.append(b"new") == 4
    storage.write_at(2, b"XY")
    assert storage.read(0, storage.size) == b"01XYnew"
    assert bytes(storage.view(1, 5)) == b"1XYne"
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_an_overlay_opens_next_to_a_writer(tmp_path: Path) -> None:
    with Log.open(tmp_path) as writer:
        writer.append(b"one")
        with Log.open(Overlay(str(tmp_path))) as log:
            assert [record.value for record in log] == [b"one"]
        writer.append(b"two")
        assert len(writer) == 2


def test_recovery_on_an_overlay_decides_as_it_would_on_disk(tmp_path: Path) -> None:
    with Log.open(tmp_path) as log:
        log.append_many([b"x" * 50] * 5)
    (tmp_path / "checkpoint").unlink()
    segment = tmp_path / f"{0:020d}.log"
    segment.write_bytes(segment.read_bytes() + b"torn")
    before = contents(tmp_path)
    with Log.open(Overlay(str(tmp_path))) as log:
        planned = [(each.where, each.action) for each in log.recovery.findings]
        assert log.recovery.truncated_bytes == 4
    assert contents(tmp_path) == before
    with Log.open(tmp_path) as log:
        assert [(each.where, each.action) for each in log.recovery.findings] == planned
