"""The faulty directory itself: it keeps the promises of a directory, and breaks them only as told."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from sawlog.errors import StorageError, StorageFull, SyncFailed
from sawlog.storage import FileDirectory, MemoryDirectory
from sawlog.testing import DirectorySuite, StorageSuite
from sawlog.testing.faulty import OPERATIONS, Call, Fault, FaultyDirectory


@pytest.fixture(params=["files", "memory"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> FaultyDirectory:
    return FaultyDirectory(FileDirectory(tmp_path) if request.param == "files" else MemoryDirectory())


class TestDirectoryPromises(DirectorySuite):
    """Without a fault it is the directory that it wraps."""


class TestStoragePromises(StorageSuite):
    """And its storages are the ones they wrap."""


def test_once_fails_one_call_and_for_ever_all_from_it_on(directory: FaultyDirectory) -> None:
    storage = directory.create("a")
    for forever, outcomes in ((False, "ok no ok ok"), (True, "ok no no no")):
        directory.arm(Fault(2, operations={"append"}, forever=forever))
        for outcome in outcomes.split():
            if outcome == "ok":
                storage.append(b"x")
            else:
                with pytest.raises(StorageError) as caught:
                    storage.append(b"x")
                assert caught.value.errno == errno.EIO
        directory.disarm()
        storage.append(b"x")


def test_only_the_chosen_operations_and_names_fail(directory: FaultyDirectory) -> None:
    one, two = directory.create("one.log"), directory.create("two.txt")
    directory.arm(Fault(operations={"sync"}, names="*.log", forever=True))
    two.sync()
    directory.sync()
    one.append(b"x")
    with pytest.raises(SyncFailed):
        one.sync()


def test_part_of_an_append_arrives_and_is_taken_back_or_not(directory: FaultyDirectory) -> None:
    storage = directory.create("a")
    storage.append(b"before")
    directory.arm(Fault(errno=errno.ENOSPC, operations={"append"}))
    with pytest.raises(StorageFull) as caught:
        storage.append(b"12345678")
    assert not caught.value.torn
    assert storage.read(0, storage.size) == b"before"
    directory.arm(Fault(errno=errno.ENOSPC, operations={"append"}, undo=False))
    with pytest.raises(StorageFull) as caught:
        storage.append(b"12345678")
    assert caught.value.torn
    assert storage.read(0, storage.size) == b"before1234"


@pytest.mark.parametrize("effect", ["nothing", "all"])
@pytest.mark.parametrize(
    ("operation", "call", "happened"),
    [
        ("create", lambda d: d.create("new"), lambda d: d.exists("new")),
        ("replace", lambda d: d.replace("a", b"2"), lambda d: d.read("a") == b"2"),
        ("rename", lambda d: d.rename("a", "b"), lambda d: d.exists("b") and not d.exists("a")),
        ("remove", lambda d: d.remove("a"), lambda d: not d.exists("a")),
    ],
)
def test_a_failed_call_has_taken_effect_or_not(
    directory: FaultyDirectory,
    operation: str,
    call: Callable[[FaultyDirectory], object],
    happened: Callable[[FaultyDirectory], bool],
    effect: str,
) -> None:
    directory.replace("a", b"1")
    directory.arm(Fault(operations={operation}, effect=effect))  # type: ignore[arg-type]
    with pytest.raises(StorageError) as caught:
        call(directory)
    assert happened(directory) == (effect == "all")
    ends_in_sync = effect == "all" and operation in {"create", "replace"}
    assert isinstance(caught.value, SyncFailed) == ends_in_sync


def test_every_call_is_listed_and_the_failed_ones_are_marked(directory: FaultyDirectory) -> None:
    directory.calls.clear()
    directory.arm(Fault(2, operations={"append"}))
    storage = directory.create("a")
    storage.append(b"x")
    with pytest.raises(StorageError):
        storage.append(b"y")
    storage.sync()
    directory.sync()
    assert directory.calls == [
        Call("create", "a"),
        Call("append", "a"),
        Call("append", "a"),
        Call("sync", "a"),
        Call("sync", ""),
    ]
    assert directory.failed == [2]


def test_each_operation_can_fail(directory: FaultyDirectory) -> None:
    """Every name in OPERATIONS stands for a call that is counted and can be refused."""
    storage = directory.create("a")
    storage.append(b"content")
    directory.child("below", create=True).close()
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: storage.append(b"x"),
        "child": lambda: directory.child("below"),
        "children": directory.children,
        "claim": lambda: storage.claim(1),
        "create": lambda: directory.create("b"),
        "dispose": directory.dispose,
        "exists": lambda: directory.exists("a"),
        "identity": lambda: directory.identity("a"),
        "lock": lambda: directory.lock("LOCK"),
        "make_child": lambda: directory.child("new", create=True),
        "move": lambda: directory.move("a", directory, "b"),
        "names": directory.names,
        "open": lambda: directory.open("a"),
        "open_sealed": lambda: directory.open_sealed("a"),
        "open_shared": lambda: directory.open_shared("a"),
        "published": lambda: directory.published("p", create=True),
        "read": lambda: storage.read(0, 1),
        "remove": lambda: directory.remove("a"),
        "remove_child": lambda: directory.remove_child("below"),
        "rename": lambda: directory.rename("a", "b"),
        "replace": lambda: directory.replace("a", b""),
        "size": lambda: directory.size("a"),
        "sync": storage.sync,
        "truncate": lambda: storage.truncate(0),
        "view": lambda: storage.view(0, 1),
        "write_at": lambda: storage.write_at(0, b"x"),
    }
    assert calls.keys() == OPERATIONS
    for operation, call in calls.items():
        directory.arm(Fault(operations={operation}, effect="nothing"))
        with pytest.raises(StorageError):
            call()
        directory.disarm()
    assert storage.read(0, storage.size) == b"content"
    assert not directory.exists("p")


def test_something_else_can_happen_before_a_call(directory: FaultyDirectory) -> None:
    seen: list[Call] = []
    directory.before = seen.append
    directory.create("a").append(b"x")
    assert seen == [Call("create", "a"), Call("append", "a")]


def test_a_fault_that_could_never_fire_is_refused() -> None:
    with pytest.raises(ValueError, match="fsync"):
        Fault(operations={"fsync"})
    with pytest.raises(ValueError, match="counted from 1"):
        Fault(0)
