"""A name of transactions has one entry, which is forgotten a month after its last use."""

from __future__ import annotations

from pathlib import Path

import pytest

import sawlog
from sawlog.clock import now_ms
from sawlog.store.directory.transactions.pending import KEPT_MS
from sawlog.store.objects.store import ObjectStore


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    made = sawlog.open(f"file://{tmp_path}/store", maintenance_interval_s=None)
    assert isinstance(made, ObjectStore)
    made.create_topic("orders")
    return made


def names(store: ObjectStore) -> list[str]:
    return store._session.look(lambda state: sorted(state.entries.names("named/")), fresh=True)


def commit(store: ObjectStore, name: str, sequence: int) -> None:
    with store.transaction(name, sequence) as transaction:
        transaction.append("orders", b"%d" % sequence)


def test_a_name_has_one_entry_however_often_it_is_used(store: ObjectStore) -> None:
    for sequence in range(20):
        commit(store, "a query", sequence)
    assert names(store) == ["named/a%20query"]
    store.close()


def test_maintenance_forgets_names_that_were_not_used_for_a_month(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr("sawlog.store.objects.transaction.now_ms", lambda: now_ms() - KEPT_MS - 1000)
        for name in ("gone", "in use"):
            commit(store, name, 0)
    commit(store, "in use", 1)
    commit(store, "new", 0)
    store.maintain()
    assert names(store) == ["named/in%20use", "named/new"]
    store.close()


def test_a_name_that_is_used_again_meanwhile_is_not_forgotten(store: ObjectStore) -> None:
    """Another process may commit between the search for old names and their removal."""
    commit(store, "query", 0)
    store._session.commit([{"do": "forget names", "names": ["query", "unknown"], "before_ms": now_ms() - KEPT_MS}])
    assert names(store) == ["named/query"]
    store.close()
