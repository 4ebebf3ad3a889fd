"""Staging: many processes of a job stage, one of them publishes, all or nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sawlog.batch.build import encode
from sawlog.errors import LogClosed, ReadOnlyLog
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.directory.transactions.staging import Intent, Part, Piece

from .stores import StorePlace, values


@pytest.fixture
def store(place: StorePlace) -> Iterator[DirectoryStore]:
    with place.open() as made:
        made.create_topic("orders", partitions=2)
        yield made


def staged(store: DirectoryStore, job: str, *given: bytes, partition: int = 0) -> Part:
    """Stage records as a task does."""
    with store._staging.task(job) as task:
        piece = task.write(encode([(value,) for value in given]))
        task.sync()
    return Part("orders", store["orders"].id, partition, len(given), (piece,))


def left(store: DirectoryStore) -> list[str]:
    """Return the files in the staging area except notes."""
    return [name for name in store._directory.child("staging").names() if not name.startswith("=")]


def test_what_several_tasks_stage_is_stored_together(store: DirectoryStore) -> None:
    parts = [staged(store, "job", b"a", b"b"), staged(store, "job", b"c"), staged(store, "job", b"d", partition=1)]
    assert values(store["orders"].scan()) == []
    placed = store._staging.publish("job", parts)
    assert placed == {("orders", 0): range(3), ("orders", 1): range(1)}
    assert sorted(values(store["orders"].scan())) == [b"a", b"b", b"c", b"d"]
    assert left(store) == []


def test_a_task_stages_in_a_store_that_is_opened_to_read(store: DirectoryStore, place: StorePlace) -> None:
    with place.open("r") as reading:
        part = staged(reading, "job", b"a")
        for publish in (
            lambda: reading._staging.publish("job", [part]),
            lambda: reading._staging.put("job", b""),
            lambda: reading._staging.discard("job"),
            lambda: reading._staging.replay_of("job", lambda: None),
        ):
            with pytest.raises(ReadOnlyLog):
                publish()
    store._staging.publish("job", [part])
    assert values(store["orders"].scan()) == [b"a"]


def test_a_task_that_writes_nothing_leaves_nothing(store: DirectoryStore) -> None:
    with store._staging.task("job") as task:
        assert task.is_empty
        task.sync()
        task.abandon()
    assert left(store) == []


def test_an_attempt_that_is_abandoned_takes_only_its_own_with_it(store: DirectoryStore) -> None:
    part = staged(store, "job", b"a")
    before = left(store)
    with store._staging.task("job") as task:
        task.write(encode([(b"b",)]))
        assert not task.is_empty
        task.abandon()
    assert left(store) == before
    store._staging.publish("job", [part])
    assert values(store["orders"].scan()) == [b"a"]


def test_what_is_put_is_published_by_its_file(store: DirectoryStore) -> None:
    data = encode([(b"a",)])
    file = store._staging.put("job", data)
    part = Part("orders", store["orders"].id, 0, 1, (Piece(file, 0, len(data)),))
    store._staging.publish("job", [part])
    assert values(store["orders"].scan()) == [b"a"]


def test_a_job_that_is_discarded_stores_nothing(store: DirectoryStore) -> None:
    staged(store, "job", b"a")
    staged(store, "another", b"b")
    store._staging.discard("job")
    assert {name.partition(".")[0] for name in left(store)} == {"another"}


def test_what_was_published_last_under_a_name_is_known(store: DirectoryStore) -> None:
    assert store._staging.last("query") is None
    store._staging.publish("job", [staged(store, "job", b"a")], name="query", sequence=3)
    last = store._staging.last("query")
    assert last is not None
    assert (last.sequence, [part.offsets for part in last.parts]) == (3, [range(1)])


def test_a_replay_takes_what_was_staged_for_it_with_it(store: DirectoryStore) -> None:
    store._staging.publish("job", [staged(store, "job", b"a")], name="query", sequence=3)
    staged(store, "job", b"a")
    found = store._staging.replay_of("job", lambda: store._staging.last("query"))
    assert found == store._staging.last("query")
    assert left(store) == []


def test_a_job_that_is_no_replay_keeps_what_it_has_staged(store: DirectoryStore) -> None:
    part = staged(store, "job", b"a")
    assert store._staging.replay_of("job", lambda: store._staging.last("query")) is None

    def fails() -> Intent | None:
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        store._staging.replay_of("job", fails)
    store._staging.publish("job", [part])
    assert values(store["orders"].scan()) == [b"a"]


def test_a_closed_store_has_no_staging(place: StorePlace) -> None:
    store = place.open()
    store.close()
    with pytest.raises(LogClosed):
        store._staging.task("job")
