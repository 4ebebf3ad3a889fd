"""The notes of named transactions are small, contain no records, and expire."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sawlog.clock import now_ms
from sawlog.errors import CorruptFile
from sawlog.storage import Directory, FileDirectory, MemoryDirectory, checksummed
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.directory.transactions import pending
from sawlog.store.directory.transactions.intent import Intent

SECRET = b"a secret that is long enough to be found"


@pytest.fixture
def root(medium: str, tmp_path: Path) -> Directory:
    return MemoryDirectory() if medium == "memory" else FileDirectory(tmp_path)


def opened(root: Directory) -> DirectoryStore:
    return DirectoryStore.open(root, maintenance_interval_s=None)


def commit(store: DirectoryStore, name: str, sequence: int, topic: str = "orders", value: bytes = SECRET) -> bool:
    """Return whether the transaction was stored now rather than before."""
    with store.transaction(name, sequence) as tx:
        tx.append(topic, value)
    return not tx.replayed


def staged(root: Directory) -> list[str]:
    return sorted(root.child("staging").names())


def test_a_note_is_there_without_the_records_and_no_lock_stays(root: Directory) -> None:
    with opened(root) as store:
        store.create_topic("orders")
        assert commit(store, "query", 1)
        assert staged(root) == ["=query.committed"]
        note = root.child("staging").read("=query.committed")
        assert SECRET not in note
        assert checksummed.decode(note, "note")["sequence"] == 1
        assert not commit(store, "query", 1)
        assert commit(store, "query", 2)
        assert staged(root) == ["=query.committed"]
        assert [record.value for record in store["orders"].partition(0)] == [SECRET] * 2


def test_names_are_forgotten_with_the_topics_that_they_wrote_to(root: Directory) -> None:
    with opened(root) as store:
        store.create_topic("orders")
        store.create_topic("stock")
        for number in range(30):
            commit(store, f"query {number}", 0)
        commit(store, "kept", 0, "stock")
        with store.transaction("both", 0) as tx:
            tx.append("orders", b"1")
            tx.append("stock", b"1")
        store.maintain()
        assert len(staged(root)) == 32
        store.delete_topic("orders")
        store.create_topic("orders")
        store.maintain()
        assert staged(root) == ["=both.committed", "=kept.committed"]
        assert not commit(store, "kept", 0, "stock")
        assert commit(store, "query 7", 0), "what was stored in another topic of that name does not count"


def test_a_name_that_is_not_used_for_a_month_is_forgotten(root: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(root) as store:
        store.create_topic("orders")
        commit(store, "query", 5)
        later = now_ms() + pending.KEPT_MS
        monkeypatch.setattr(pending, "now_ms", lambda: later - 60_000)
        store.maintain()
        assert store.transaction("query", 5).replayed
        monkeypatch.setattr(pending, "now_ms", lambda: later + 60_000)
        store.maintain()
        assert staged(root) == []
        assert not store.transaction("query", 5).replayed


def test_a_transaction_without_rows_is_remembered_as_well(root: Directory) -> None:
    with opened(root) as store:
        with store.transaction("query", 3):
            pass
        store.maintain()
        assert store.transaction("query", 3).replayed


def test_records_that_a_crash_has_left_in_a_note_are_cut_off(root: Directory) -> None:
    """The rename is durable, the cut is not."""
    with opened(root) as store:
        store.create_topic("orders")
        commit(store, "query", 5)
        staging = root.child("staging")
        left = staging.read("=query.committed") + SECRET
        staging.replace("=query.committed", left)
        assert store.transaction("query", 5).replayed
        store.maintain()
        assert left.startswith(staging.read("=query.committed"))
        assert SECRET not in staging.read("=query.committed")


def test_an_intent_whose_batches_are_others_is_corrupt() -> None:
    made = Intent("x", (), data=b"abc")
    assert Intent.decode(made.encode(), "x") == made
    for wrong in (made.encode()[:-1], made.encode() + b"d", made.encode()[:-1] + b"d"):
        with pytest.raises(CorruptFile, match="differ from the committed ones"):
            Intent.decode(wrong, "x")
        assert Intent.decode(wrong, "x", is_note=True).id == "x"


def test_many_threads_commit_under_one_name_and_each_number_is_stored_once(root: Directory) -> None:
    stored: list[int] = []
    with opened(root) as store:
        store.create_topic("orders")

        def work() -> None:
            for sequence in range(20):
                try:
                    if commit(store, "query", sequence, value=b"%d" % sequence):
                        stored.append(sequence)
                except Exception as error:
                    stored.append(-1)
                    raise error

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [int(record.value or b"") for record in store["orders"].partition(0)]
        assert found == sorted(set(found)), "a number is stored once, and none after a later one"
        assert 19 in found
        assert staged(root) == ["=query.committed"]
