"""`sawlog.open` picks the kind of store by its place, and never takes one kind for the other."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

import sawlog
from sawlog.addresses import is_address
from sawlog.errors import InvalidConfig, MissingPackage, StoreNotFound
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.objects.store import ObjectStore


def _memory() -> str:
    return f"memory://{uuid.uuid4().hex}"


def test_a_path_is_a_directory_and_an_address_is_object_storage(tmp_path: Path) -> None:
    places: list[tuple[str | Path, type]] = [
        (tmp_path / "a", DirectoryStore),
        (str(tmp_path / "b"), DirectoryStore),
        (_memory(), ObjectStore),
        (f"file://{tmp_path}/c", ObjectStore),
    ]
    for place, kind in places:
        with sawlog.open(place) as store:
            assert type(store) is kind
            store.create_topic("orders").append(b"one")
            assert [record.value for record in store.topic("orders").scan()] == [b"one"]


def test_a_name_in_memory_is_one_store_within_the_process() -> None:
    url = _memory()
    with sawlog.open(url) as first, sawlog.open(url + "/", "r") as second:
        first.create_topic("orders").append(b"one")
        assert second.id == first.id
        assert [record.value for record in second.topic("orders").scan()] == [b"one"]
    with sawlog.open(url) as again, sawlog.open(_memory()) as other:
        assert again.topics() == ["orders"]
        assert other.topics() == []


def test_a_store_at_an_address_is_not_created_by_a_reader() -> None:
    with pytest.raises(StoreNotFound):
        sawlog.open(_memory(), "r")


@pytest.mark.parametrize("place", ["s3://bucket/store", "gs://bucket/store", "ftp://host/x", Path("s3://bucket/store")])
def test_no_command_creates_a_directory_for_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str | Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for attempt in (
        lambda: DirectoryStore.open(place),
        lambda: DirectoryStore.open(place, "r"),
        lambda: sawlog.Log.open(place),
        lambda: sawlog.Log.open(place, mode="r"),
        lambda: sawlog.Log._create(place),
    ):
        with pytest.raises(InvalidConfig, match=r"address of object storage.*sawlog\.open"):
            attempt()
    assert not list(tmp_path.iterdir())


def test_an_address_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="s3://"):
        sawlog.open("ftp://host/store")


def test_a_path_with_a_colon_is_a_path() -> None:
    assert not is_address("C:/data")
    assert not is_address("data:old")
    assert not is_address(Path("data"))
    assert is_address("s3://bucket")


def test_a_store_of_one_kind_is_refused_as_the_other(tmp_path: Path) -> None:
    objects, plain = tmp_path / "objects", tmp_path / "plain"
    sawlog.open(f"file://{objects}").close()
    sawlog.open(plain).close()
    before = sorted(objects.rglob("*")), sorted(plain.rglob("*"))
    for mode in ("w", "r"):
        with pytest.raises(InvalidConfig, match=f"file://{objects}"):
            sawlog.open(objects, mode)
        with pytest.raises(InvalidConfig, match="by its path"):
            sawlog.open(f"file://{plain}", mode)
    assert (sorted(objects.rglob("*")), sorted(plain.rglob("*"))) == before


def test_no_store_is_created_among_the_files_of_others(tmp_path: Path) -> None:
    sawlog.Log.open(tmp_path).close()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidConfig, match="neither empty nor a store"):
        sawlog.open(f"file://{tmp_path}")
    assert sorted(tmp_path.rglob("*")) == before


def test_options_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="options has no meaning for a store in a directory"):
        sawlog.open(str(tmp_path), options={"region": "eu-central-1"})
    with pytest.raises(InvalidConfig, match="lock_timeout has no meaning for a store on object storage"):
        sawlog.open(_memory(), lock_timeout=1.0)
    with pytest.raises(InvalidConfig, match="lock_timeout has no meaning for a store on object storage"):
        sawlog.open(_memory(), lock_timeout=1.0)


def test_a_commit_waits_for_others_as_long_as_an_option_says() -> None:
    with sawlog.open(_memory(), options={"linger_ms": "300"}) as store:
        topic = store.create_topic("orders")
        began = time.monotonic()
        topic.append(b"one")
        assert time.monotonic() - began >= 0.3
    for wrong in ("-1", "soon", "60000"):
        with pytest.raises(InvalidConfig, match="linger_ms"):
            sawlog.open(_memory(), options={"linger_ms": wrong})


def test_without_obstore_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(MissingPackage, match=r"sawlog\[objects\]"):
        sawlog.open(_memory())


def test_a_program_that_uses_directories_only_does_not_import_object_storage() -> None:
    code = (
        "import sys, sawlog; assert not [m for m in sys.modules if m.startswith(('sawlog.store.objects', 'obstore'))]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
