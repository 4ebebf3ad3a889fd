"""Several consumers of one group in one process: sharing, giving up, taking over, being fenced."""

from __future__ import annotations

import errno
import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sawlog.errors import GroupFenced, LogClosed, StorageError
from sawlog.storage import MemoryDirectory
from sawlog.store.consumer import Consumer
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.membership import GroupMembership
from sawlog.testing import FaultyDirectory
from sawlog.testing.faulty import Call

from .consumers import PATIENCE_S, beats, fill, names, remove, until, values
from .stores import StorePlace


@pytest.fixture
def store(medium: str, tmp_path: Path) -> Iterator[DirectoryStore]:
    with DirectoryStore.open(tmp_path if medium == "files" else MemoryDirectory()) as made:
        made.create_topic("orders", partitions=2)
        yield made


def test_two_consumers_share_the_partitions(store: DirectoryStore) -> None:
    with store.consumer("billing", ["orders"]) as one, store.consumer("billing", ["orders"]) as two:
        until(lambda: len(one.assignment) == len(two.assignment) == 1, one, two)
        assert one.assignment | two.assignment == {("orders", 0), ("orders", 1)}
        wanted = fill(store, 10) + fill(store, 10, partition=1)
        found: list[bytes] = []
        until(
            lambda: found.extend(values(one.poll(0.01)) + values(two.poll(0.01))) or len(found) >= 20,
        )
        assert sorted(found) == sorted(wanted)


def test_what_a_member_gives_up_is_committed_before(store: DirectoryStore) -> None:
    fill(store, 10)
    fill(store, 10, partition=1)
    with store.consumer("billing", ["orders"], auto_commit_ms=3_600_000) as one:
        assert len(list(one.drain())) == 20
        with store.consumer("billing", ["orders"], auto_commit_ms=3_600_000) as two:
            again: list[bytes] = []
            until(lambda: again.extend(values(two.poll(0.01))) or len(two.assignment) == 1, one)
            ((_, moved),) = two.assignment
            assert two.committed("orders", moved) == 10
            assert two.committed("orders", 1 - moved) is None, "what stays is not committed"
            assert again + values(two.poll(0)) == [], "what was processed comes again"


def test_when_a_member_leaves_the_other_takes_over(store: DirectoryStore) -> None:
    with store.consumer("billing", ["orders"]) as one:
        with store.consumer("billing", ["orders"]) as two:
            until(lambda: len(two.assignment) == 1, one, two)
        until(lambda: len(one.assignment) == 2, one)


def test_members_with_different_topics_share_what_they_have_in_common(
    store: DirectoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.create_topic("totals", partitions=2)
    with store.consumer("billing", ["orders"]) as one:
        with store.consumer("billing", ["orders", "totals"]) as two:
            wanted = {("totals", 0), ("totals", 1)}
            until(lambda: len(one.assignment) == 2 and two.assignment == wanted, one, two)
        one.poll(0)
    assert caplog.records == [], "a topic that nobody here reads any more is not gone"


def test_a_consumer_that_is_forgotten_gives_its_partitions_back(store: DirectoryStore) -> None:
    one: Consumer | None = store.consumer("billing", ["orders"])
    with store.consumer("billing", ["orders"]) as two:
        assert one is not None
        assert two.assignment == set()
        del one
        gc.collect()
        until(lambda: len(two.assignment) == 2, two)


def test_a_consumer_in_a_long_loop_gives_up_in_the_middle_of_a_chunk(store: DirectoryStore) -> None:
    """The reader only asks for the next record; the background interrupts the cursor."""
    fill(store, 3000)
    with store.consumer("billing", ["orders"]) as one:
        two = None
        for record in one.drain():
            last = record.offset
            time.sleep(0.002)
            two = two or store.consumer("billing", ["orders"])
            if len(one.assignment) == 1:
                break
        assert last < 2999
        assert two is not None
        two.close()


def test_a_member_that_does_not_ask_for_records_loses_its_partitions(store: DirectoryStore) -> None:
    fill(store, 5)
    fill(store, 5, partition=1)
    idle = store.consumer("billing", ["orders"], session_timeout_ms=300, max_poll_interval_ms=100, auto_commit_ms=None)
    assert len(idle.poll(1, max_records=100)) == 10
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as other:
        until(lambda: len(other.assignment) == 2, other)
        other.commit({("orders", 0): 2})
        with pytest.raises(GroupFenced):
            idle.commit()
        assert other.committed("orders", 0) == 2, "a fenced member has committed"
        assert idle.assignment == set()
        idle.close()


def test_a_slow_member_that_goes_on_asking_counts_as_well(store: DirectoryStore) -> None:
    """Many records come from one cursor: asking it for the next one is asking, too."""
    fill(store, 1000)
    with store.consumer("billing", ["orders"], max_poll_interval_ms=60_000) as consumer:
        records = iter(consumer)
        for _ in range(3):
            next(records)
            consumer._membership._asked._began_s -= 3600
            before = beats(store)
            consumer._tick()
            assert beats(store) > before
        consumer._membership._asked._began_s -= 3600
        before = beats(store)
        consumer._tick()
        assert beats(store) == before, "it has not asked since"


def test_a_fenced_member_gets_an_error_even_with_nothing_to_commit(store: DirectoryStore) -> None:
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        consumer.commit()
        (name,) = [each for each in names(store, "billing") if each.startswith("member-")]
        remove(store, "billing", name)
        with pytest.raises(GroupFenced):
            consumer.commit()


def test_a_fenced_loop_raises_and_can_continue(store: DirectoryStore) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        (name,) = [each for each in names(store, "billing") if each.startswith("member-")]
        consumer.poll(1, max_records=2)
        remove(store, "billing", name)
        with pytest.raises(GroupFenced):
            consumer.poll(0)
        assert [record.offset for record in consumer.drain()] == [0, 1, 2, 3, 4]


def test_a_member_fenced_while_it_waits_for_its_turn_commits_nothing() -> None:
    inner = MemoryDirectory()
    with DirectoryStore.open(inner) as other:
        other.create_topic("orders")
        fill(other, 5)
        watched = FaultyDirectory(inner)
        with (
            DirectoryStore.open(watched) as store,
            store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer,
        ):
            consumer.poll(1)
            waiting = threading.Event()
            errors: list[Exception] = []

            def commit() -> None:
                try:
                    consumer.commit()
                except GroupFenced as error:
                    errors.append(error)

            def notice(call: Call) -> None:
                if call == Call("lock", "groups/LOCK"):
                    waiting.set()

            committing = threading.Thread(target=commit)
            with other.groups._offsets.turn():
                watched.before = notice
                committing.start()
                assert waiting.wait(PATIENCE_S)
                remove(other, "billing", "owner-orders-0")
            committing.join(PATIENCE_S)
            assert len(errors) == 1
            assert other.groups._offsets.of("billing") == {}


def test_a_partition_whose_lock_was_taken_away_is_not_committed(store: DirectoryStore) -> None:
    """A member died halfway through fencing another one."""
    fill(store, 5)
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        consumer.poll(1)
        remove(store, "billing", "owner-orders-0")
        with pytest.raises(GroupFenced):
            consumer.commit()
        assert consumer.committed("orders", 0) is None


def test_threads_that_join_and_leave_all_the_time_lose_nothing(store: DirectoryStore) -> None:
    wanted: list[bytes] = []
    found: list[bytes] = []
    errors: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                with store.consumer("billing", ["orders"]) as consumer:
                    for _ in range(3):
                        found.extend(values(consumer.poll(0.01, max_records=7)))
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for _ in range(40):
        wanted += fill(store, 5) + fill(store, 5, partition=1)
        time.sleep(0.01)
    stop.set()
    for worker in workers:
        worker.join(PATIENCE_S)
    assert errors == []
    with store.consumer("billing", ["orders"]) as consumer:
        found.extend(values(consumer.drain()))
    assert set(found) == set(wanted)
    assert len(found) == len(wanted), "they left in order: nothing comes twice"


def test_closing_from_elsewhere_at_any_moment_harms_nothing(store: DirectoryStore) -> None:
    wanted = fill(store, 3000) + fill(store, 3000, partition=1)
    found: list[bytes] = []
    for number in range(20):
        consumer = store.consumer("billing", ["orders"])
        closer = threading.Timer(number * 0.0005, consumer.close)
        closer.start()
        records = iter(consumer)
        try:
            found.extend(record.value for record in records)
        except LogClosed:
            pass  # it was closed before it was asked
        closer.join()
        assert consumer.assignment == set()
    with store.consumer("billing", ["orders"]) as consumer:
        found.extend(values(consumer.drain()))
    assert set(found) == set(wanted)


def test_a_partition_whose_start_could_not_be_found_is_taken_later(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> int:
        raise StorageError(errno.EIO, "on purpose")

    monkeypatch.setattr("sawlog.store.position._TOPICS_S", 0.01)
    with store.consumer("billing", ["orders"]) as consumer:
        consumer.poll(0)
        store.alter_topic("orders", partitions=3)
        wanted = fill(store, 3, partition=2)
        with monkeypatch.context() as patch:
            patch.setattr("sawlog.store.consumer.resolve", fails)
            with pytest.raises(StorageError, match="on purpose"):
                until(lambda: len(consumer.assignment) == 3, consumer)
        found: list[bytes] = []
        until(lambda: found.extend(values(consumer.poll(0.01))) or len(found) >= 3)
        assert found == wanted


def test_an_interrupted_close_can_be_repeated_and_blocks_no_thread(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = place.open()
    store.create_topic("orders").append(b"one")
    consumer = store.consumer("billing", "orders")
    close = GroupMembership.close

    def interrupted(self: GroupMembership) -> None:
        monkeypatch.setattr(GroupMembership, "close", close)
        raise KeyboardInterrupt

    monkeypatch.setattr(GroupMembership, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    assert store.groups.describe("billing").members
    consumer.close()
    assert not store.groups.describe("billing").members
    with store.consumer("billing", "orders") as other:
        assert other.assignment == {("orders", 0)}
