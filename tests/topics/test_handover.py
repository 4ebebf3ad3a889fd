"""Forwarding between stores: in one process, with real sockets, or with simulated calls that can fail."""

from __future__ import annotations

import errno
import gc
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sawlog import Producer, Topic
from sawlog.batch.build import encode
from sawlog.batch.header import scan
from sawlog.clock import Deadline
from sawlog.errors import (
    AmbiguousAppend,
    CorruptBatch,
    DirectoryLocked,
    InvalidRecord,
    LogClosed,
    ReadOnlyLog,
    RecordTooLarge,
    SawlogError,
    StorageError,
    StorageFull,
    TopicNotFound,
    TransactionAborted,
)
from sawlog.storage import MemoryDirectory
from sawlog.store.directory.forwarding import frames
from sawlog.store.directory.forwarding.connections import PeerConnection
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.directory.transactions.completion import PeerLost, PeerTimeout

from .hall import Bytes, Hall
from .stores import FilePlace, values


@pytest.fixture
def holder(file_place: FilePlace) -> DirectoryStore:
    """A store that holds both partitions of a topic."""
    store = file_place.open()
    topic = store.create_topic("orders", partitions=2, segment_bytes=100_000)
    for number in range(2):
        topic.append(b"held", partition=number)
    return store


@pytest.fixture
def orders(holder: DirectoryStore, file_place: FilePlace) -> Topic:
    """The topic, in another store."""
    return file_place.open()["orders"]


def seen(topic: Topic, number: int = 0) -> list[bytes | None]:
    return values(topic.partition(number).scan())


def sockets(store: DirectoryStore) -> list[str]:
    return sorted(os.listdir(f"{store.path}/holders"))


# --- what is stored


def test_records_arrive_as_they_were_given(holder: DirectoryStore, orders: Topic) -> None:
    headers = [("a", b"1"), ("a", None)]
    orders.append(b"value", b"key", headers, 1_000, partition=0)
    orders.append_many([(b"v", b"k", headers, 2_000), {"value": None, "key": b"k"}], partition=0)
    with orders._partition_writer(0) as writer:
        writer.append(b"w", b"k", headers, 3_000)
    found = [(r.value, r.key, r.headers, r.timestamp) for r in holder["orders"].partition(0).scan(1)]
    assert found[0] == (b"value", b"key", (("a", b"1"), ("a", None)), 1_000)
    assert found[1] == (b"v", b"k", (("a", b"1"), ("a", None)), 2_000)
    assert found[2][:2] == (None, b"k")
    assert found[3] == (b"w", b"k", (("a", b"1"), ("a", None)), 3_000)
    assert all(holder["orders"].partition(0).verify() for _ in range(2))


def test_keys_go_to_their_partitions_whichever_process_holds_them(holder: DirectoryStore, orders: Topic) -> None:
    positions = [orders.append(b"v", key=b"%d" % number) for number in range(20)]
    again = [holder["orders"].append(b"v", key=b"%d" % number) for number in range(20)]
    assert [each.partition for each in positions] == [each.partition for each in again]
    assert {each.partition for each in positions} == {0, 1}


def test_the_holders_settings_decide_how_batches_are_stored(file_place: FilePlace) -> None:
    store = file_place.open()
    store.create_topic("packed", compression_type="zstd", message_timestamp_type="LogAppendTime").append(b"x" * 1000)
    other = file_place.open()["packed"]
    other.append_many([b"x" * 100] * 20)
    raw = store["packed"].partition(0).fetch(1).raw
    [batch] = scan(raw)
    assert (batch.compression, batch.timestamp_type) == (4, 1)


def test_a_batch_of_a_producer_is_stored_once_however_often_it_is_handed_over(
    holder: DirectoryStore, orders: Topic
) -> None:
    raw = encode([b"a", b"b"], producer=Producer(7, 0, 0))
    assert orders.append_batches(raw, 0) == range(1, 3)
    assert orders.append_batches(raw, 0) == range(1, 3)
    assert holder["orders"].append_batches(raw, 0) == range(1, 3)
    both = raw + encode([b"c"], producer=Producer(7, 0, 2))
    assert orders.append_batches(both, 0) == range(3, 4)
    with pytest.raises(InvalidRecord, match="with and without"):
        orders.append_batches(raw + encode([b"x"]), 0)
    assert orders.append_batches(encode([b"x"]) + encode([b"y"]), 0) == range(4, 6)
    assert seen(orders) == [b"held", b"a", b"b", b"c", b"x", b"y"]


def test_what_a_writer_has_left_is_handed_over_when_its_store_is_closed(
    holder: DirectoryStore, file_place: FilePlace
) -> None:
    other = file_place.open()
    one, all_of_them = other["orders"]._partition_writer(0), other["orders"].writer()
    one.append(b"one")
    all_of_them.append(b"all", key=b"0")
    other.close()
    assert b"one" in seen(holder["orders"])
    assert b"all" in [*seen(holder["orders"], 0), *seen(holder["orders"], 1)]


# --- what is refused


def test_errors_of_the_holder_arrive_as_they_are(holder: DirectoryStore, orders: Topic) -> None:
    for refused in (
        lambda: orders.append(bytes(200_000), partition=0),  # in a message
        lambda: orders.append(bytes(2_000_000), partition=0),  # staged
        lambda: orders.append_batches(encode([b"a"]) + encode([bytes(200_000)]), 0),
    ):
        with pytest.raises(RecordTooLarge):
            refused()
    bad = bytearray(encode([b"a"]))
    bad[-1] ^= 1
    with pytest.raises(CorruptBatch):
        orders.append_batches(bad, 0)
    assert seen(orders) == [b"held"]
    assert orders.append(b"good", partition=0).offset == 1
    assert os.listdir(f"{holder.path}/staging") == []


def test_a_transaction_that_does_not_fit_into_the_holders_segments_is_not_stored_anywhere(
    holder: DirectoryStore, file_place: FilePlace
) -> None:
    """Its log was opened with smaller segments than the topic has now: checked before the commit point."""
    holder.alter_topic("orders", segment_bytes=10_000_000)
    other = file_place.open()
    tx = other.transaction()
    tx.append("orders", b"small", partition=0)
    tx.append("orders", bytes(200_000), partition=1)
    with pytest.raises(TransactionAborted) as caught:
        tx.commit()
    assert isinstance(caught.value.__cause__, RecordTooLarge)
    assert (seen(holder["orders"], 0), seen(holder["orders"], 1)) == ([b"held"], [b"held"])
    assert os.listdir(f"{holder.path}/staging") == []


def test_a_topic_that_was_recreated_gets_nothing_that_was_meant_for_the_old_one(file_place: FilePlace) -> None:
    store, other = file_place.open(), file_place.open()
    store.create_topic("orders").append(b"old")
    theirs = other["orders"]
    assert theirs.append(b"old").offset == 1
    store.delete_topic("orders")
    store.create_topic("orders").append(b"new")
    with pytest.raises(TopicNotFound):
        theirs.append(b"old")
    assert seen(store["orders"]) == [b"new"]
    assert other["orders"].append(b"new").offset == 1


def test_a_store_that_reads_hands_nothing_over(holder: DirectoryStore, file_place: FilePlace) -> None:
    with pytest.raises(ReadOnlyLog):
        file_place.open("r")["orders"].append(b"x", partition=0)


def test_stores_in_memory_have_no_sockets_and_take_turns() -> None:
    directory = MemoryDirectory()
    first, second = (DirectoryStore.open(directory, maintenance_interval_s=None) for _ in range(2))
    first.create_topic("orders").append(b"x")
    assert second["orders"].append(b"y").offset == 1
    assert first["orders"].append(b"z").offset == 2
    assert directory.children() == ["staging", "topics"]


# --- doubt


class Losing:
    """A line whose answers are lost: the request is done, or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ask = PeerConnection.ask
        self.plan: list[Callable[[], None]] = []
        monkeypatch.setattr(PeerConnection, "ask", lambda peer, *args, **named: self.asked(peer, *args, **named))

    def asked(self, connection: PeerConnection, *args: Any, **named: Any) -> Any:
        answer = self._ask(connection, *args, **named)
        if self.plan:
            self.plan.pop(0)()
        return answer


def lost() -> None:
    raise PeerLost("gone")


def silent() -> None:
    raise PeerTimeout("nothing came")


def interrupted() -> None:
    raise KeyboardInterrupt


def test_an_append_whose_answer_was_lost_is_sent_again_and_stored_once(
    holder: DirectoryStore, orders: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing = Losing(monkeypatch)
    for number in range(1, 4):
        losing.plan = [lost, lost]
        assert orders.append(b"%d" % number, partition=0).offset == number
    assert seen(orders) == [b"held", b"1", b"2", b"3"]


def test_after_doubt_or_an_interrupt_the_next_record_is_not_taken_for_the_last_one(
    holder: DirectoryStore, orders: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing = Losing(monkeypatch)
    orders.append(b"first", partition=0)
    losing.plan = [silent]
    with pytest.raises(AmbiguousAppend):
        orders.append(b"in doubt", partition=0)
    orders.append(b"second", partition=0)
    losing.plan = [interrupted]
    with pytest.raises(KeyboardInterrupt):
        orders.append(b"interrupted", partition=0)
    orders.append(b"third", partition=0)
    assert seen(orders) == [b"held", b"first", b"in doubt", b"second", b"interrupted", b"third"]


def test_when_the_holder_truncates_its_log_appends_go_on(holder: DirectoryStore, orders: Topic) -> None:
    for number in range(3):
        orders.append(b"%d" % number, partition=0)
    holder["orders"].partition(0).truncate(2)
    assert orders.append(b"more", partition=0).offset == 2
    assert orders.append(b"more", partition=0).offset == 3


def test_who_gets_the_lock_later_stores_a_batch_in_doubt_once(
    holder: DirectoryStore, orders: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing = Losing(monkeypatch)

    def ends() -> None:
        holder.close()
        lost()

    losing.plan = [ends]
    assert orders.append(b"once", partition=0).offset == 1
    assert orders.partition(0)._locked
    assert seen(orders) == [b"held", b"once"]


# --- after the end of a process


def test_the_socket_is_there_while_a_partition_is_held_and_no_longer(file_place: FilePlace) -> None:
    store = file_place.open()
    topic = store.create_topic("orders")
    assert not (file_place.path / "holders").exists()
    topic.append(b"x")
    [name] = sockets(store)
    assert topic.partition(0)._lock_note.decode() == f"listens {name}"
    store.close()
    assert os.listdir(file_place.path / "holders") == []


def test_a_store_that_is_dropped_takes_its_socket_with_it(file_place: FilePlace) -> None:
    store = DirectoryStore.open(file_place.path, maintenance_interval_s=None)
    store.create_topic("orders").append(b"x")
    assert len(sockets(store)) == 1
    del store
    gc.collect()
    assert os.listdir(file_place.path / "holders") == []
    with file_place.open() as again:
        assert again["orders"].append(b"y").offset == 1


def test_a_store_at_a_long_path_hands_over(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 25) / ("longer" * 25)
    path.mkdir(parents=True)
    with DirectoryStore.open(path / "store") as store, DirectoryStore.open(path / "store") as other:
        store.create_topic("orders").append(b"x")
        assert other["orders"].append(b"y").offset == 1


def test_if_a_socket_cannot_be_made_processes_take_turns(
    file_place: FilePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StorageFull(28, "no space")

    monkeypatch.setattr("sawlog.store.directory.forwarding.listener.listen", refuse)
    store, other = file_place.open(), file_place.open()
    store.create_topic("orders").append(b"x")
    assert other["orders"].append(b"y").offset == 1
    assert store["orders"].append(b"z").offset == 2


def test_a_holder_of_another_user_cannot_be_asked_and_gives_the_lock_back(
    holder: DirectoryStore, orders: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def refuse(directory: object, name: str, deadline: Deadline) -> None:
        tries.append(name)
        raise StorageError(errno.EACCES, "permission denied")

    monkeypatch.setattr("sawlog.store.directory.forwarding.listener.connect", refuse)
    assert orders.append(b"x", partition=0).offset == 1
    assert tries
    assert orders.partition(0)._locked
    assert not holder["orders"].partition(0)._locked


# --- the protocol


@pytest.fixture
def connected(holder: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A bare connection to the holder."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        monkeypatch.chdir(holder.path)  # an address has 107 bytes
        made.connect(f"holders/{sockets(holder)[0]}")
        made.settimeout(20)
        yield made


def message(head: object, body: bytes = b"") -> bytes:
    encoded = json.dumps(head).encode()
    return struct.pack(">II", len(encoded), len(body)) + encoded + body


@pytest.mark.alternating
@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">II", 2**31, 0),
        struct.pack(">II", 10, 2**32 - 1),
        struct.pack(">II", 4, 0) + b"nope",
        message([]),
        message({"version": 2, "request": "append"}),
        message({"version": 1, "request": "dance"}),
        message({"version": 1, "request": "append"}),
        message({"version": 1, "request": "append", "topic": "../x", "topic_id": "x", "partition": 0, "until_ns": 0}),
        message({"version": 1, "request": "place", "id": "../../x", "parts": [0]}),
        message({"version": 1, "request": "prepare", "id": "x", "parts": "all"}),
        message({"version": 1, "request": "place", "id": "x", "parts": [-1]}),
    ],
)
def test_a_message_that_is_none_ends_the_connection_and_nothing_else(
    connected: socket.socket, orders: Topic, sent: bytes
) -> None:
    connected.sendall(sent)
    assert connected.recv(100) == b""
    assert orders.append(b"fine", partition=0).offset == 1


def test_a_request_for_what_is_not_held_is_answered_with_elsewhere(connected: socket.socket, orders: Topic) -> None:
    for change in ({"topic": "other"}, {"topic_id": "other"}, {"partition": 7}, {"until_ns": 0}):
        head = {"version": 1, "request": "append", "topic": "orders", "topic_id": orders.id, "partition": 0}
        connected.sendall(message({**head, "until_ns": 2**62, **change}, encode([b"x"])))
        sizes = connected.recv(8)
        assert json.loads(connected.recv(struct.unpack(">II", sizes)[0])) == {"version": 1, "elsewhere": True}
    assert seen(orders) == [b"held"]


def test_half_a_message_delays_no_other_client(connected: socket.socket, orders: Topic) -> None:
    connected.sendall(message({"version": 1, "request": "append"})[:10])
    assert orders.append(b"fine", partition=0).offset == 1


@pytest.mark.parametrize(
    "error",
    [
        RecordTooLarge("large"),
        StorageFull(28, "full"),
        DirectoryLocked("/x", "me"),
        CorruptBatch("bad"),
        LogClosed("closed"),
        ZeroDivisionError("a mistake of ours"),
        CorruptBatch("bad", path="/x", position=5),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_crosses_the_socket_says_the_same(error: Exception) -> None:
    pipe = Bytes(bytearray())
    frames.send(pipe, frames.encode_error(error), deadline=Deadline(None))
    head, _ = frames.receive(pipe, Deadline(None))
    with pytest.raises(SawlogError) as caught:
        frames.raise_error(head)
    assert str(error) in str(caught.value)
    assert isinstance(error, (type(caught.value), ZeroDivisionError))


@pytest.mark.parametrize("said", [["os", []], ["SawlogError", 5], 7, ["OffsetMismatch", ["x"]], ["Nothing", ["x"]]])
def test_an_error_that_is_none_is_still_an_error(said: object) -> None:
    with pytest.raises(SawlogError):
        frames.raise_error({"error": said})


# --- at the same time


def test_two_stores_that_hand_over_to_each_other_do_not_wait_for_each_other(file_place: FilePlace) -> None:
    stores = [file_place.open() for _ in range(2)]
    stores[0].create_topic("orders", partitions=2)
    for number, store in enumerate(stores):
        store["orders"].append(b"held", partition=number)
    failed: list[BaseException] = []

    def commits(store: DirectoryStore, tag: bytes) -> None:
        try:
            for number in range(15):
                with store.transaction(lock_timeout_s=30) as tx:
                    for partition in range(2):
                        tx.append("orders", b"%s %d" % (tag, number), partition=partition)
                store["orders"].append_many([(b"single", b"%d" % key) for key in range(4)])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=commits, args=(store, b"%d" % at)) for at, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert failed == []
    for partition in range(2):
        for tag in (b"0", b"1"):
            mine = [value for value in seen(stores[0]["orders"], partition) if value and value.startswith(tag + b" ")]
            assert mine == [b"%s %d" % (tag, number) for number in range(15)]


def test_many_threads_of_one_store_append_at_the_same_time(holder: DirectoryStore, orders: Topic) -> None:
    def appends(tag: int) -> None:
        for number in range(20):
            orders.append(b"%d.%d" % (tag, number), partition=0)

    threads = [threading.Thread(target=appends, args=(tag,)) for tag in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = seen(orders)[1:]
    assert len(found) == len(set(found)) == 160
    for tag in range(8):
        mine = [value for value in found if value and value.startswith(b"%d." % tag)]
        assert mine == [b"%d.%d" % (tag, number) for number in range(20)]


def test_a_holder_that_ends_between_two_promises_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer agrees to place one part, is asked for another, and disconnects."""
    hall, directory = Hall(), MemoryDirectory()
    holder, other = hall.store(directory), hall.store(directory)
    for number in range(2):
        holder.create_topic("orders", partitions=2, exist_ok=True).append(b"held", partition=number)
    prepare, asked = PeerConnection.prepare, []

    def ends(connection: PeerConnection, id_: str, numbers: list[int], deadline: Deadline) -> Any:
        asked.append(list(numbers))
        if len(asked) == 1:
            prepare(connection, id_, numbers, deadline)
            return [1]  # it says that it does not hold this one
        holder.close()
        raise PeerLost("gone")

    monkeypatch.setattr(PeerConnection, "prepare", ends)
    with other.transaction() as tx:
        for number in range(2):
            tx.append("orders", b"both", partition=number)
    assert asked == [[0, 1], [1]]
    assert [seen(other["orders"], number) for number in range(2)] == [[b"held", b"both"]] * 2


# --- the order of checks


def test_a_part_of_an_intent_that_was_completed_meanwhile_is_not_placed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread has read which intents are pending, and gets the log when all is done."""
    hall, directory = Hall(), MemoryDirectory()
    store, other = hall.store(directory), hall.store(directory)
    topic = store.create_topic("orders", partitions=2)
    topic.append(b"held", partition=0)
    pending = store._intents.pending
    intents = pending.intents
    known: list[Any] = []
    monkeypatch.setattr(type(pending), "intents", lambda self: [*known, *(found := intents()), *_keep(known, found)])
    with other.transaction() as tx:
        tx.append("orders", b"once", partition=0)
        tx.append("orders", b"once", partition=1)
    assert known
    store._intents.placement.roll_forward(topic.id, 0, topic.partition(0))
    assert values(topic.partition(0).scan()) == [b"held", b"once"]


def _keep(known: list[Any], found: list[Any]) -> list[Any]:
    known.extend(found)
    return []
