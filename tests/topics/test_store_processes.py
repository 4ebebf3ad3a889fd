"""Several processes and one store: concurrent writers, and the state that a killed process leaves."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sawlog.errors import DirectoryLocked, TopicNotFound
from sawlog.store.directory.store import DirectoryStore

from ..faults.seeds import repeat, some_of
from ..processes.launch import finish, ready, run, start
from .stores import values


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with two topics."""
    with DirectoryStore.open(tmp_path / "store") as store:
        store.create_topic("orders", partitions=3)
        store.create_topic("stock")
    return tmp_path / "store"


def ask(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.mark.alternating
@pytest.mark.costly  # two interpreters
def test_two_processes_write_different_topics_while_a_third_reads(path: Path) -> None:
    with DirectoryStore.open(path) as store:
        reader = ready(start("storing", "read", path, "orders"))
        assert ask(reader) == "0"
        writer = ready(start("storing", "hold", path, "orders"))
        assert ask(reader) == "3"
        assert store["stock"].append(b"ours").offset == 0
        with pytest.raises(DirectoryLocked, match=f"process {writer.pid}"):
            store["orders"].partition(1).append(b"ours")
        assert values(store["orders"].scan()) == [b"held"] * 3
        finish(writer)
        assert store["orders"].append(b"ours", partition=1).offset == 1
        assert ask(reader) == "4"
        finish(reader)


@pytest.mark.costly  # two interpreters
def test_a_partition_is_locked_during_a_turn_only(path: Path) -> None:
    with DirectoryStore.open(path) as store:
        assert values(store["orders"].scan()) == []
        store["stock"].append(b"ours")
        assert run("storing", "append", path, "orders") == "0\n"
        assert store["orders"].partition(0).append(b"ours") == 1
        assert run("storing", "append", path, "orders") == "2\n"


def test_the_locks_of_a_killed_process_are_free_and_its_records_are_there(path: Path) -> None:
    kill(ready(start("storing", "hold", path, "orders")))
    with DirectoryStore.open(path) as store:
        assert values(store["orders"].scan()) == [b"held"] * 3
        assert store["orders"].append(b"ours", partition=2).offset == 1


@pytest.mark.costly  # two interpreters
def test_a_topic_is_not_deleted_under_another_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sawlog.store.directory.catalog._PATIENCE_S", 0.2)
    writer = ready(start("storing", "hold", path, "orders"))
    with DirectoryStore.open(path) as store, pytest.raises(DirectoryLocked, match=f"process {writer.pid}"):
        store.delete_topic("orders")
    finish(writer)
    with DirectoryStore.open(path) as store:
        seen = store["orders"]
        assert len(values(seen.scan())) == 3
        assert run("storing", "delete", path, "orders") == "deleted\n"
        with pytest.raises(TopicNotFound):
            seen.append(b"into the void")
        assert store.topics() == ["stock"]


@pytest.mark.alternating
@pytest.mark.costly  # two interpreters
def test_processes_make_topics_at_once_and_none_is_made_twice(path: Path) -> None:
    processes = [ready(start("storing", "create", path, name, 15)) for name in ("a", "b")]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert sum(int(finish(process)) for process in processes) == 15
    with DirectoryStore.open(path, "r") as store:
        expected = {f"{name}{number}" for name in ("a", "b", "shared-") for number in range(15)}
        assert set(store.topics()) == {"orders", "stock", *expected}
        assert all(len(values(store[f"a{number}"].scan())) == 1 for number in range(15))


def test_a_forked_child_leaves_its_parents_store_alone(tmp_path: Path) -> None:
    assert run("storing", "fork", tmp_path / "store") == "good\n"


# An interpreter for every kill. The quick forms of the same guarantee: the work "transactions" in
# tests/faults/test_kills.py, which forks, and test_store_crashes.py, without processes.
@pytest.mark.slow
def test_a_transaction_that_is_killed_anywhere_is_there_as_a_whole_or_not_at_all(path: Path) -> None:
    """At a call near the beginning, at one near the end, and at some that the seed chooses."""
    total = int(run("storing", "commit", path, 0))
    assert total > 50
    outcomes = set()
    for round_, call in enumerate(some_of(range(3, total), 30, "killed")):
        with DirectoryStore.open(path.with_name(f"store-{round_}")) as store:
            store.create_topic("orders", partitions=3)
            store.create_topic("stock")
        kill(ready(start("storing", "commit", store.path, call)))
        with DirectoryStore.open(store.path) as store:
            found = [len(values(store["orders"].partition(number).scan())) for number in range(3)]
            found.append(len(values(store["stock"].scan())))
            assert found in ([0] * 4, [1] * 4), f"call {call}; {repeat()}"
            assert store.transaction("query", 1).replayed == (found[0] == 1)
            outcomes.add(found[0])
            left = [name for name in (Path(store.path) / "staging").iterdir() if not name.name.startswith("=")]
            assert left == []
    assert outcomes == {0, 1}
