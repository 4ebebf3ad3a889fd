"""Transactions of network clients: isolation, fencing, timeouts, and recovery after the broker dies in the middle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sawlog.batch.build import Producer
from sawlog.batch.checksum import crc32c
from sawlog.broker.groups.coordinator import Coordinator
from sawlog.broker.handlers import KafkaError, code_of, known_code_of
from sawlog.broker.transactions import TransactionCoordinator
from sawlog.broker.wire import ErrorCode, Key, RequestHeader
from sawlog.errors import AmbiguousAppend, NotInTransaction, StorageError
from sawlog.store.directory.service import DirectoryTransactionalIds
from sawlog.testing import Broker

from .peers import Peer, batch, produce_body

_PEERS: list[Peer] = []


@pytest.fixture(autouse=True)
def _close_peers() -> Iterator[None]:
    yield
    while _PEERS:
        _PEERS.pop().socket.close()


class Client:
    """A transactional producer, request by request."""

    def __init__(self, broker: Broker, name: str = "t", timeout_ms: int = 60_000) -> None:
        self.connect(broker)
        self.name = name
        body = {"transactional_id": name, "transaction_timeout_ms": timeout_ms}
        answer = self.peer.ask(Key.INIT_PRODUCER_ID, 4, body)
        assert answer["error_code"] == ErrorCode.NONE
        self.id, self.epoch = answer["producer_id"], answer["producer_epoch"]
        self._sequences: dict[int, int] = {}

    def connect(self, broker: Broker) -> None:
        self.peer = Peer(broker.address)
        _PEERS.append(self.peer)

    def _who(self) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.id, "producer_epoch": self.epoch}

    def add(self, topic: str, *partitions: int) -> ErrorCode:
        body = {f"v3_and_below_{name}": value for name, value in self._who().items()}
        body["v3_and_below_topics"] = [{"name": topic, "partitions": list(partitions)}]
        [answer] = self.peer.ask(Key.ADD_PARTITIONS_TO_TXN, 3, body)["results_by_topic_v3_and_below"]
        return ErrorCode(answer["results_by_partition"][0]["partition_error_code"])

    def send(self, topic: str, value: bytes, partition: int = 0, *, version: int = 9) -> ErrorCode:
        sequence = self._sequences.get(partition, 0)
        raw = bytearray(batch(value, producer=Producer(self.id, self.epoch, sequence)))
        raw[22] |= 0x10
        raw[17:21] = crc32c(memoryview(raw)[21:]).to_bytes(4, "big")
        body = {**produce_body(topic, bytes(raw), partition=partition), "transactional_id": self.name}
        [answer] = self.peer.ask(Key.PRODUCE, version, body)["responses"]
        code = ErrorCode(answer["partition_responses"][0]["error_code"])
        if code is ErrorCode.NONE:
            self._sequences[partition] = sequence + 1
        return code

    def offsets(self, group: str, topic: str, offset: int, **member: object) -> ErrorCode:
        answer = self.peer.ask(Key.ADD_OFFSETS_TO_TXN, 3, {**self._who(), "group_id": group})
        if answer["error_code"] != ErrorCode.NONE:
            return ErrorCode(answer["error_code"])
        return self.commit_offsets(group, topic, offset, **member)

    def commit_offsets(self, group: str, topic: str, offset: int, *, version: int = 3, **member: object) -> ErrorCode:
        part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "here"}
        body = {**self._who(), **member, "group_id": group, "topics": [{"name": topic, "partitions": [part]}]}
        [answer] = self.peer.ask(Key.TXN_OFFSET_COMMIT, version, body)["topics"]
        return ErrorCode(answer["partitions"][0]["error_code"])

    def end(self, *, commit: bool) -> ErrorCode:
        return ErrorCode(self.peer.ask(Key.END_TXN, 3, {**self._who(), "committed": commit})["error_code"])


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        made.create_topic("orders", 2)
        yield made


def values(broker: Broker) -> list[bytes | None]:
    return [record.value for record in broker.records("orders")]


def committed(broker: Broker, group: str = "g") -> dict[Any, int]:
    return {share: each.offset for share, each in broker.store.groups._offsets.of(group).items()}


def test_a_transaction_is_seen_when_it_is_committed_and_never_when_it_is_aborted(broker: Broker) -> None:
    client = Client(broker)
    for commit, value in ((True, b"kept"), (False, b"gone"), (True, b"kept too")):
        assert client.add("orders", 0, 1) is ErrorCode.NONE
        assert client.send("orders", value, 0) is ErrorCode.NONE
        assert client.send("orders", value, 1) is ErrorCode.NONE
        assert value not in values(broker)
        assert client.end(commit=commit) is ErrorCode.NONE
        assert client.end(commit=commit) is ErrorCode.NONE  # the answer may have been lost
    assert values(broker) == [b"kept", b"kept too"] * 2
    assert client.end(commit=False) is ErrorCode.INVALID_TXN_STATE


def test_a_partition_that_was_not_added_is_refused(broker: Broker) -> None:
    client = Client(broker)
    assert client.send("orders", b"x") is ErrorCode.INVALID_TXN_STATE
    assert client.add("orders", 0) is ErrorCode.NONE
    assert client.send("orders", b"x", 1) is ErrorCode.INVALID_TXN_STATE
    assert client.add("orders", 7) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.send("orders", b"x", 0) is ErrorCode.NONE


def test_a_client_that_knows_abortable_errors_may_abort_and_continue(broker: Broker) -> None:
    """The error for a partition that was not added ends the transaction, not the client. Clients that do not know that
    error get another one, as in Apache Kafka."""
    client = Client(broker)
    assert client.send("orders", b"x", version=10) is ErrorCode.INVALID_TXN_STATE
    assert client.send("orders", b"x", version=11) is ErrorCode.TRANSACTION_ABORTABLE
    assert client.commit_offsets("g", "orders", 1, version=3) is ErrorCode.INVALID_TXN_STATE
    assert client.commit_offsets("g", "orders", 1, version=4) is ErrorCode.TRANSACTION_ABORTABLE
    assert client.offsets("g", "orders", 1) is ErrorCode.NONE
    assert client.end(commit=False) is ErrorCode.NONE
    assert client.commit_offsets("g", "orders", 1, version=4) is ErrorCode.TRANSACTION_ABORTABLE


@pytest.mark.parametrize(("version", "code"), [(10, "INVALID_TXN_STATE"), (11, "TRANSACTION_ABORTABLE")])
def test_a_batch_that_a_shared_store_refuses_gets_the_same_error(version: int, code: str) -> None:
    header = RequestHeader(Key.PRODUCE, version, 1, None, 0)
    assert known_code_of(NotInTransaction("the partition was not added"), header).name == code


def test_a_second_producer_fences_the_first_and_aborts_what_it_left(broker: Broker) -> None:
    first = Client(broker)
    first.add("orders", 0)
    first.send("orders", b"left")
    second = Client(broker)
    assert (second.id, second.epoch > first.epoch) == (first.id, True)
    assert first.send("orders", b"zombie") is ErrorCode.INVALID_PRODUCER_EPOCH
    assert first.add("orders", 0) is ErrorCode.PRODUCER_FENCED
    assert first.end(commit=True) is ErrorCode.PRODUCER_FENCED
    second.add("orders", 0)
    second.send("orders", b"new")
    assert second.end(commit=True) is ErrorCode.NONE
    assert values(broker) == [b"new"]
    assert not broker.store.topic("orders").partition(0).open_transactions


def test_a_producer_that_asks_again_for_its_epoch_is_not_fenced(broker: Broker) -> None:
    client = Client(broker)
    client.add("orders", 0)
    client.send("orders", b"left")
    body = {"transactional_id": "t", "transaction_timeout_ms": 1000}
    known = {**body, "producer_id": client.id, "producer_epoch": client.epoch}
    first, again = (client.peer.ask(Key.INIT_PRODUCER_ID, 4, known) for _ in range(2))
    assert first["producer_epoch"] > client.epoch
    assert (again["error_code"], again["producer_epoch"]) == (ErrorCode.NONE, first["producer_epoch"])
    other = client.peer.ask(Key.INIT_PRODUCER_ID, 4, body)
    assert other["producer_epoch"] > first["producer_epoch"]
    assert client.peer.ask(Key.INIT_PRODUCER_ID, 4, known)["error_code"] == ErrorCode.PRODUCER_FENCED


def test_a_transaction_that_takes_too_long_is_aborted(broker: Broker) -> None:
    client = Client(broker, timeout_ms=100)
    client.add("orders", 0)
    client.send("orders", b"late")
    log = broker.store.topic("orders").partition(0)
    deadline = time.monotonic() + 60
    while log.open_transactions and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not log.open_transactions
    assert client.send("orders", b"later") is ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.end(commit=True) is ErrorCode.PRODUCER_FENCED
    assert values(broker) == []


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_that_is_not_allowed(broker: Broker, timeout_ms: int) -> None:
    with Peer(broker.address) as peer:
        answer = peer.ask(Key.INIT_PRODUCER_ID, 4, {"transactional_id": "x", "transaction_timeout_ms": timeout_ms})
    assert answer["error_code"] == ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_are_committed_with_the_transaction(broker: Broker, commit: bool) -> None:
    client = Client(broker)
    assert client.offsets("g", "orders", 5) is ErrorCode.NONE
    assert committed(broker) == {}
    assert client.end(commit=commit) is ErrorCode.NONE
    assert committed(broker) == ({("orders", 0): 5} if commit else {})


def test_transactions_are_listed_and_described(broker: Broker) -> None:
    client = Client(broker, "one")
    Client(broker, "two")
    client.add("orders", 1)
    client.send("orders", b"x", 1)
    ask = client.peer.ask
    found = ask(Key.LIST_TRANSACTIONS, 1, {"state_filters": ["Ongoing", "Nonsense"]})
    assert [each["transactional_id"] for each in found["transaction_states"]] == ["one"]
    assert found["unknown_state_filters"] == ["Nonsense"]
    one, none = ask(Key.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["one", "no"]})["transaction_states"]
    assert (one["transaction_state"], one["topics"]) == ("Ongoing", [{"topic": "orders", "partitions": [1]}])
    assert none["error_code"] == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    body = {"topics": [{"name": "orders", "partition_indexes": [1]}]}
    [producer] = ask(Key.DESCRIBE_PRODUCERS, 0, body)["topics"][0]["partitions"][0]["active_producers"]
    assert (producer["producer_id"], producer["current_txn_start_offset"]) == (client.id, 0)


def _dies_later(*_: Any, **__: Any) -> Any:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(StorageError(5, "the broker dies here"))
    return future


#: Points at which a broker may die after the commit point.
STEPS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the first marker": lambda patch: patch.setattr(TransactionCoordinator, "_mark", _dies_later),
    "before the offsets": lambda patch: patch.setattr(Coordinator, "commit_transaction", _dies_later),
    "before it is complete": lambda patch: None,
}


@pytest.mark.alternating
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("commit", [True, False])
def test_the_next_broker_completes_decided_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, commit: bool
) -> None:
    saves = 0
    save = DirectoryTransactionalIds.save

    def save_until_decided(
        self: DirectoryTransactionalIds, name: str, version: int, fields: dict[str, str] | None
    ) -> None:
        nonlocal saves
        if fields is not None and fields["state"].startswith("Complete"):
            raise StorageError(5, "the broker dies here")
        saves += 1
        save(self, name, version, fields)

    with Broker(directory=str(tmp_path)) as broker:
        broker.create_topic("orders", 2)
        client = Client(broker)
        client.add("orders", 0, 1)
        client.send("orders", b"x", 0)
        client.send("orders", b"x", 1)
        client.offsets("g", "orders", 9)
        with monkeypatch.context() as patch:
            STEPS[step](patch)
            patch.setattr(DirectoryTransactionalIds, "save", save_until_decided)
            assert client.end(commit=commit) is ErrorCode.NONE  # decided: it will be so
            assert saves == 1
            broker.stop()
    with Broker(directory=str(tmp_path)) as broker:
        assert values(broker) == ([b"x", b"x"] if commit else [])
        assert committed(broker) == ({("orders", 0): 9} if commit else {})
        assert not broker.store.topic("orders").partition(1).open_transactions
        again = Client(broker)
        again.add("orders", 0)
        again.send("orders", b"y")
        assert again.end(commit=True) is ErrorCode.NONE
        assert values(broker).count(b"y") == 1


def test_undecided_transactions_continue_after_a_restart(tmp_path: Path) -> None:
    with Broker(directory=str(tmp_path)) as broker:
        broker.create_topic("orders", 1)
        client = Client(broker)
        client.add("orders", 0)
        client.send("orders", b"before")
        client.offsets("g", "orders", 3)
        broker.restart()
        client.connect(broker)
        assert client.send("orders", b"after") is ErrorCode.NONE
        assert values(broker) == []
        assert client.end(commit=True) is ErrorCode.NONE
        assert values(broker) == [b"before", b"after"]
        assert committed(broker) == {("orders", 0): 3}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageError(5, "the bucket does not answer"), ErrorCode.NOT_COORDINATOR),
        (AmbiguousAppend("it may be stored"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_a_client_asks_again_when_the_storage_fails(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, error: Exception, code: ErrorCode
) -> None:
    client = Client(broker)

    def fail(*_: object) -> None:
        raise error

    def while_it_fails(ask: Callable[[], ErrorCode]) -> ErrorCode:
        with monkeypatch.context() as patch:
            patch.setattr(DirectoryTransactionalIds, "save", fail)
            return ask()

    again = {"transactional_id": "t", "transaction_timeout_ms": 1000}
    assert while_it_fails(lambda: client.peer.ask(Key.INIT_PRODUCER_ID, 4, again)["error_code"]) == code
    assert while_it_fails(lambda: client.add("orders", 0)) is code
    assert client.add("orders", 0) is ErrorCode.NONE
    assert while_it_fails(lambda: client.end(commit=True)) is code
    assert client.end(commit=True) is ErrorCode.NONE


@pytest.mark.parametrize("key", [Key.JOIN_GROUP, Key.SYNC_GROUP, Key.HEARTBEAT, Key.END_TXN, Key.PRODUCE])
def test_only_what_a_coordinator_is_asked_for_is_asked_again(key: Key) -> None:
    expected = ErrorCode.KAFKA_STORAGE_ERROR if key is Key.PRODUCE else ErrorCode.NOT_COORDINATOR
    assert code_of(StorageError(5, "failed"), key) is expected
    assert code_of(KafkaError(ErrorCode.UNKNOWN_MEMBER_ID), key) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_deleted_topic_does_not_hold_up_the_end(broker: Broker) -> None:
    broker.create_topic("doomed")
    client = Client(broker)
    client.add("doomed", 0)
    client.add("orders", 0)
    client.send("orders", b"x")
    client.peer.ask(Key.DELETE_TOPICS, 5, {"topic_names": ["doomed"], "timeout_ms": 1000})
    assert client.end(commit=True) is ErrorCode.NONE
    assert values(broker) == [b"x"]


def test_members_of_both_protocols_are_refused_in_words_that_transactional_clients_know(broker: Broker) -> None:
    """With STALE_MEMBER_EPOCH, which Kafka does not say there, librdkafka waits for ever."""
    one = Client(broker)
    joining = {"subscribed_topic_names": ["orders"], "rebalance_timeout_ms": 1000, "topic_partitions": []}
    said = {"group_id": "g", "member_id": "mine", "member_epoch": 0, **joining}
    epoch = one.peer.ask(Key.CONSUMER_GROUP_HEARTBEAT, 1, said)["member_epoch"]
    assert one.offsets("g", "orders", 1, member_id="mine", generation_id=1) is ErrorCode.ILLEGAL_GENERATION
    assert one.offsets("g", "orders", 1, member_id="x", generation_id=epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert one.offsets("g", "orders", 1, member_id="mine", generation_id=epoch) is ErrorCode.NONE
