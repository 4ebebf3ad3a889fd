"""Dead letters go back once, to where they came from, for the group that they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import sawlog
from sawlog import Redriven, Store, redrive
from sawlog.errors import DirectoryLocked, InvalidConfig, TopicNotFound
from sawlog.store.queues import redrive as module


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with sawlog.open(tmp_path / "data", maintenance_interval_s=None) as made:
        made.create_topic("orders")
        yield made


def die(store: Store, count: int, group: str = "workers", topic: str = "orders") -> None:
    """New messages, all of them rejected."""
    store[topic].append_many([(b"%d" % number, b"k", (("h", b"1"),)) for number in range(count)])
    with store.queue(topic, group=group, dead_letters="dead") as queue:
        for message in queue.drain():
            queue.reject(message)


def values(store: Store, group: str = "workers") -> list[bytes | None]:
    """Return the values that a queue delivers now."""
    found = []
    with store.queue("orders", group=group, dead_letters="dead") as queue:
        for message in queue.drain():
            found.append(message.value)
            assert message.deliveries == 1
            queue.ack(message)
    return found


def test_dead_letters_go_back_once_and_to_their_own_group_alone(store: Store) -> None:
    die(store, 3)
    assert values(store, "others") == [b"0", b"1", b"2"]
    told: list[int] = []
    assert redrive(store, "dead", progress=told.append) == [Redriven("workers", "orders", 0, 3)]
    assert told == [3]
    assert redrive(store, "dead") == []
    assert values(store, "others") == []
    with store.queue("orders", group="workers") as queue:
        (message, *_) = queue.receive(3)
        assert (message.key, message.headers) == (b"k", (("h", b"1"), ("sawlog.queue.group", b"workers")))


def test_a_letter_that_dies_again_can_go_back_again(store: Store) -> None:
    die(store, 2)
    redrive(store, "dead")
    with store.queue("orders", group="workers", dead_letters="dead") as queue:
        for message in queue.drain():
            queue.reject(message)
    assert redrive(store, "dead") == [Redriven("workers", "orders", 0, 2)]
    assert values(store) == [b"0", b"1"]


def test_a_dry_run_changes_nothing_and_needs_no_writing(store: Store) -> None:
    die(store, 2)
    before = store["orders"].describe().records
    expected = [Redriven("workers", "orders", 0, 2)]
    assert redrive(store, "dead", dry_run=True) == expected
    with sawlog.open(store.path, "r") as reader:
        assert redrive(reader, "dead", dry_run=True) == expected
    assert store["orders"].describe().records == before
    assert redrive(store, "dead") == expected


def test_one_group_a_few_letters_or_another_topic_can_be_chosen(store: Store) -> None:
    die(store, 4)
    with store.queue("orders", group="others", dead_letters="dead") as queue:
        for message in queue.drain():
            queue.reject(message)
    assert redrive(store, "dead", group="others", limit=3) == [Redriven("others", "orders", 0, 3)]
    assert redrive(store, "dead", group="nobody") == []
    store.create_topic("retry")
    assert redrive(store, "dead", to="retry") == [Redriven("others", "retry", 0, 1), Redriven("workers", "retry", 0, 4)]
    assert values(store, "others") == [b"0", b"1", b"2"]
    assert values(store, "workers") == []
    assert [record.value for record in store["retry"].scan()] == [b"3", b"0", b"1", b"2", b"3"]


def test_a_crash_after_the_letters_went_back_does_not_double_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(store, 7)
    monkeypatch.setattr(module, "_CHUNK", 3)
    real = type(store.groups).commit
    calls = []

    def dying(*arguments: object, **options: object) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt  # six are back, three of them noted
        real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(type(store.groups), "commit", dying)
    with pytest.raises(KeyboardInterrupt):
        redrive(store, "dead")
    assert redrive(store, "dead") == [Redriven("workers", "orders", 0, 1)]
    assert values(store) == [b"%d" % number for number in range(7)]


def test_wrong_calls_change_nothing(store: Store) -> None:
    die(store, 1)
    store["dead"].append(b"not a dead letter")
    for call in (lambda: redrive(store, "dead", limit=0), lambda: redrive(store, "dead", to="dead")):
        with pytest.raises(InvalidConfig):
            call()
    with pytest.raises(TopicNotFound):
        redrive(store, "missing")
    with pytest.raises(TopicNotFound, match="missing"):
        redrive(store, "dead", to="missing")
    with module._alone(store, "dead"), pytest.raises(DirectoryLocked):
        redrive(store, "dead")
    store.delete_topic("orders")
    with pytest.raises(TopicNotFound, match="would go to 'orders'"):
        redrive(store, "dead")
    store.create_topic("orders")
    assert redrive(store, "dead") == [Redriven("workers", "orders", 0, 1)]
