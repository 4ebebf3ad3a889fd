"""`sawlog redrive`."""

from __future__ import annotations

from sawlog.store.directory.store import DirectoryStore

from .conftest import Cli


def test_dead_letters_are_listed_and_returned(sawlog: Cli) -> None:
    with DirectoryStore.open(sawlog.data) as store:
        store.create_topic("orders").append_many([b"one", b"two"])
        with store.queue("orders", group="workers") as queue:
            for message in queue.drain():
                queue.reject(message)
    row = {"group": "workers", "topic": "orders", "partition": 0, "letters": 2}
    assert sawlog("redrive", "orders-dead", "--dry-run", "--output", "json").ok().json == [row]
    assert "dry run: 2 would be returned" in sawlog("redrive", "orders-dead", "--dry-run").ok().err
    assert "orders-dead: 2 returned" in sawlog("redrive", "orders-dead").ok().err
    assert "no dead letters" in sawlog("redrive", "orders-dead").ok().err
    assert sawlog("redrive", "orders-dead", "--output", "json").ok().json == []
    sawlog("redrive", "missing").failed(3)
    sawlog("redrive", "orders-dead", "--limit", "0").failed(2)
