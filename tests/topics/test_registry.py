"""Documents of a store: one writer at a time, versions that grow, and never an empty one instead of a damaged one."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import sawlog
from sawlog.errors import CorruptFile, InvalidConfig, ReadOnlyLog, StorageError

from .. import warm

_COUNTING = """
import sys, sawlog
with sawlog.open(sys.argv[1]) as store:
    for _ in range(20):
        store._registry.change("users", lambda fields: {"count": fields.get("count", 0) + 1})
"""


def _count(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"count": fields.get("count", 0) + 1}


def test_a_document_that_was_never_stored_has_version_0(tmp_path: Path) -> None:
    with sawlog.open(tmp_path) as store:
        found = store._registry.read("users")
    assert (found.version, found.fields) == (0, {})


def test_a_change_is_there_for_who_opens_the_store_later(tmp_path: Path) -> None:
    with sawlog.open(tmp_path) as store:
        made = store._registry.change("users", lambda fields: {**fields, "ann": "x"})
    with sawlog.open(tmp_path, mode="r") as store:
        assert store._registry.read("users") == made
    assert made.version == 1


def test_the_same_fields_are_no_change(tmp_path: Path) -> None:
    with sawlog.open(tmp_path) as store:
        store._registry.change("users", _count)
        assert store._registry.change("users", lambda fields: dict(fields)).version == 1


def test_an_edit_that_fails_changes_nothing_and_lets_the_next_one_in(tmp_path: Path) -> None:
    def fail(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        raise KeyError("no such user")

    with sawlog.open(tmp_path) as store:
        with pytest.raises(KeyError):
            store._registry.change("users", fail)
        assert store._registry.change("users", _count).fields == {"count": 1}


@pytest.mark.alternating
def test_processes_that_change_a_document_lose_nothing(tmp_path: Path) -> None:
    with sawlog.open(tmp_path):
        pass
    processes = [warm.start(["-c", _COUNTING, str(tmp_path)]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    with sawlog.open(tmp_path) as store:
        found = store._registry.read("users")
    assert (found.version, found.fields) == (60, {"count": 60})


def test_a_damaged_document_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    with sawlog.open(tmp_path) as store:
        store._registry.change("acls", _count)
        file = tmp_path / "registry" / "acls.json"
        file.write_bytes(file.read_bytes().replace(b'"count": 1', b'"count": 2'))
        with pytest.raises(CorruptFile):
            store._registry.read("acls")
        with pytest.raises(CorruptFile):
            store._registry.change("acls", _count)


def test_only_the_owner_reads_the_directory(tmp_path: Path) -> None:
    with sawlog.open(tmp_path) as store:
        store._registry.change("users", _count)
    assert stat.S_IMODE((tmp_path / "registry").stat().st_mode) == 0o700


def test_a_store_that_is_read_only_refuses_changes(tmp_path: Path) -> None:
    with sawlog.open(tmp_path):
        pass
    with sawlog.open(tmp_path, mode="r") as store, pytest.raises(ReadOnlyLog):
        store._registry.change("users", _count)


@pytest.mark.parametrize("name", ["", "../sawlog", "Users", "a/b", "a" * 65])
def test_names_that_could_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    with sawlog.open(tmp_path) as store, pytest.raises(InvalidConfig):
        store._registry.read(name)


def test_a_pipe_in_its_place_is_an_error_and_is_not_waited_for(tmp_path: Path) -> None:
    with sawlog.open(tmp_path) as store:
        store._registry.change("acls", _count)
        (tmp_path / "registry/acls.json").unlink()
        os.mkfifo(tmp_path / "registry/acls.json")
        with pytest.raises(CorruptFile):
            store._registry.read("acls")


@pytest.mark.parametrize("what", ["registry", "registry/acls.json"])
@pytest.mark.parametrize("dangles", [True, False])
def test_a_link_in_its_place_is_an_error_and_not_an_empty_document(tmp_path: Path, what: str, dangles: bool) -> None:
    with sawlog.open(tmp_path / "data") as store:
        store._registry.change("acls", _count)
        place, moved = tmp_path / "data" / what, tmp_path / "elsewhere"
        place.rename(moved)
        place.symlink_to(tmp_path / "nowhere" if dangles else moved)
        with pytest.raises(StorageError):
            store._registry.read("acls")
        with pytest.raises(StorageError):
            store._registry.change("acls", _count)
