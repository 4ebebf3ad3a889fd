"""Brokers over one bucket: the commits decide which actions of a broker are valid, whatever it believes.

The first tests use two services of one store in this process, each like a broker. The others run broker processes with
real clients, and kill and stop the processes; `brokerage` describes the checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer as KafkaProducer
from tests.broker.security.certificates import Authority

from sawlog.batch import kernel
from sawlog.batch.build import Producer, encode
from sawlog.batch.checksum import crc32c
from sawlog.batch.header import TRANSACTIONAL_BIT
from sawlog.broker.client import Access, Login
from sawlog.broker.config import Address
from sawlog.broker.membership import ClusterMembership, Kind, weight
from sawlog.broker.remote import connect
from sawlog.broker.security.acls import Binding, Operation, Resource
from sawlog.broker.security.credentials import MECHANISMS, MIN_ITERATIONS, Salted, StoredUsers
from sawlog.clock import now_ms
from sawlog.config import Isolation, LogConfig
from sawlog.errors import (
    BrokerError,
    Conflict,
    GroupActive,
    NotCoordinator,
    NotInTransaction,
    NotYetVisible,
    OutOfOrderSequence,
    ProducerFenced,
)
from sawlog.log.producers import ProducerInfo
from sawlog.log.reader import Fetched
from sawlog.store.groups import Committed, OffsetChange
from sawlog.store.objects.bucket import Bucket
from sawlog.store.objects.partition import ObjectPartition
from sawlog.store.objects.serving import ObjectBrokers, ObjectService
from sawlog.store.objects.store import ObjectStore
from sawlog.store.serving import TransactionMarker

from . import brokerage
from .brokerage import Fleet, Mover, Reader, Traffic, wait_until
from .proxy import Fault, Faults, Proxy
from .servers import Server


@pytest.fixture
def services(request: pytest.FixtureRequest) -> Iterator[tuple[ObjectService, ObjectService]]:
    """Return the services of two brokers over one store with the topic `orders` of two partitions."""
    bucket = Bucket(f"memory://{request.node.name}")
    with (
        ObjectStore.open(bucket, maintenance_interval_s=None) as one,
        ObjectStore.open(bucket, maintenance_interval_s=None) as other,
    ):
        one.create_topic("orders", 2)
        made = one._serve(), other._serve()
        for number, each in enumerate(made):
            each.brokers.join(None, "127.0.0.1", 9000 + number)
        yield made
        for each in made:
            each.close()


def commit(service: ObjectService, offset: int, *, by_server: bool = True) -> Exception | None:
    """Commit an offset for the group g."""
    new = Committed(offset, service.topic("orders").id, "", now_ms(), "", -1)
    (refused,) = service.commit_offsets([OffsetChange("g", {("orders", 0): new}, by_server)])
    return refused


def committed(service: ObjectService) -> int | None:
    found = service.groups.committed("g").get(("orders", 0))
    return None if found is None else found.offset


def batch(producer: Producer, *values: bytes, transactional: bool = False) -> bytearray:
    """Return a producer's batch."""
    made = bytearray(encode(list(values), producer=producer))
    if transactional:
        made[22] |= TRANSACTIONAL_BIT
        kernel.patch_crc(memoryview(made), 0, crc32c(memoryview(made)[21:]))
    return made


def ongoing(service: ObjectService, producer_id: int, epoch: int, *numbers: int) -> dict[str, Any]:
    """Begin a transaction that includes partitions of `orders`."""
    topic = service.topic("orders")
    return {
        "producer_id": producer_id,
        "epoch": epoch,
        "state": "Ongoing",
        "partitions": [["orders", topic.id, number] for number in numbers],
        "offsets": {},
    }


def ended(fields: dict[str, Any], *, commit: bool) -> dict[str, Any]:
    state = "CompleteCommit" if commit else "CompleteAbort"
    return {**fields, "state": state, "partitions": [], "offsets": {}}


def markers(fields: dict[str, Any], *, commit: bool) -> list[TransactionMarker]:
    return [
        TransactionMarker(topic_id, number, fields["producer_id"], fields["epoch"], commit)
        for _, topic_id, number in fields["partitions"]
    ]


def values(service: ObjectService, number: int = 0, isolation: Isolation = "committed") -> list[bytes | None]:
    service.catch_up()
    return [each.value for each in service.topic("orders").partition(number).scan(isolation=isolation)]


# --- registration


def test_brokers_get_ids_of_their_own_and_see_each_other(services: tuple[ObjectService, ObjectService]) -> None:
    for each in services:
        each.catch_up()
        assert [(node.id, node.port) for node in each.brokers.nodes()] == [(1, 9000), (2, 9001)]


def test_a_stalled_broker_is_removed_and_registers_again(
    services: tuple[ObjectService, ObjectService],
) -> None:
    one, other = services
    other.brokers.beat(3600)
    one.brokers.beat(0)  # sees the other for the first time, or unchanged
    one.brokers.beat(0)
    assert [node.id for node in one.brokers.nodes()] == [1]
    other.brokers.beat(3600)
    one.catch_up()
    assert [node.id for node in one.brokers.nodes()] == [1, 2]


def test_a_heartbeat_keeps_a_broker_registered(services: tuple[ObjectService, ObjectService]) -> None:
    one, other = services
    for _ in range(3):
        other.brokers.beat(3600)
        one.catch_up()
        one.brokers.beat(0.001)
        other.brokers.beat(3600)  # between the look and the removal of the next round
        one.catch_up()
    assert [node.id for node in one.brokers.nodes()] == [1, 2]


def test_a_broker_that_leaves_is_deregistered_at_once(services: tuple[ObjectService, ObjectService]) -> None:
    one, other = services
    other.brokers.leave()
    one.catch_up()
    assert [node.id for node in one.brokers.nodes()] == [1]


@pytest.mark.parametrize("kind", ["group", "transaction"])
def test_a_broker_that_clients_are_sent_to_does_not_refuse_them(
    services: tuple[ObjectService, ObjectService], kind: Kind
) -> None:
    one, other = services
    nodes, here = ClusterMembership(SimpleNamespace(store=one)), Address("127.0.0.1", 9000)  # type: ignore[arg-type]
    assert one.brokers.node is not None
    nodes.id = one.brokers.node.id
    one.transactional_ids().refresh()
    nodes._refresh()
    others = [name for name in map(str, range(20)) if nodes.of(kind, name, here).id != nodes.id]
    assert others
    assert not any(nodes.coordinates(kind, name) for name in others)
    other.brokers.leave()
    one.transactional_ids().refresh()  # and no heartbeat was sent since
    assert {nodes.of(kind, name, here).id for name in others} == {nodes.id}
    assert all(nodes.coordinates(kind, name) for name in others)


def test_a_broker_that_listens_removes_earlier_ones_at_its_address(
    services: tuple[ObjectService, ObjectService],
) -> None:
    """After a crash a broker has another id. Clients need not wait until the others notice that the old one is gone."""
    one, other = services
    one.claim_group("g", "here").take()
    again = ObjectBrokers(one._session)
    again.join(None, "127.0.0.1", 9000)
    other.catch_up()
    assert [node.id for node in other.brokers.nodes()] == [1, 2, 3], "it may still find that it cannot listen"
    again.listens()
    other.catch_up()
    assert [node.id for node in other.brokers.nodes()] == [2, 3]
    assert isinstance(commit(one, 5), NotCoordinator)
    again.listens()
    other.brokers.listens()
    other.catch_up()
    assert [node.id for node in other.brokers.nodes()] == [2, 3], "nobody else is removed"


def test_a_new_run_of_a_node_id_ends_the_previous_run(services: tuple[ObjectService, ObjectService]) -> None:
    one, other = services
    one.claim_group("g", "here").take()
    other.brokers.join(1, "127.0.0.1", 9002)
    assert isinstance(commit(one, 5), NotCoordinator)


# --- groups


def test_only_the_last_claim_to_a_group_is_valid(services: tuple[ObjectService, ObjectService]) -> None:
    one, other = services
    taken = one.claim_group("g", "here")
    taken.take()
    assert commit(one, 5) is None
    assert taken.current
    other.claim_group("g", "there").take()
    assert isinstance(commit(one, 7), NotCoordinator)
    assert not taken.current
    assert commit(other, 6) is None
    taken.release()  # it releases only its own claim
    assert commit(other, 8) is None
    assert committed(one) == 8


def test_the_claims_of_a_removed_broker_are_released(services: tuple[ObjectService, ObjectService]) -> None:
    one, other = services
    one.claim_group("g", "here").take()
    for _ in range(2):
        other.brokers.beat(0)
    assert isinstance(commit(one, 5), NotCoordinator)
    assert committed(other) is None


def test_only_the_coordinator_commits_for_its_group(services: tuple[ObjectService, ObjectService]) -> None:
    one, other = services
    taken = one.claim_group("g", "here")
    taken.take()
    assert isinstance(commit(other, 5, by_server=False), GroupActive)
    assert commit(one, 4) is None
    with pytest.raises(GroupActive):
        other.groups.delete("g")
    taken.release()
    assert commit(other, 5, by_server=False) is None
    other.groups.delete("g")


# --- producers


def test_a_batch_that_is_sent_to_two_brokers_is_stored_once(services: tuple[ObjectService, ObjectService]) -> None:
    one, other = services
    first = one.topic("orders").partition(0)._submit(batch(Producer(7, 0, 0), b"a", b"b")).result()
    again = other.topic("orders").partition(0)._submit(batch(Producer(7, 0, 0), b"a", b"b")).result()
    assert first == again == range(2)
    assert values(one) == [b"a", b"b"]


def test_a_gap_in_a_producers_sequence_is_refused_by_every_broker(
    services: tuple[ObjectService, ObjectService],
) -> None:
    one, other = services
    one.topic("orders").partition(0)._submit(batch(Producer(7, 0, 0), b"a")).result()
    with pytest.raises(OutOfOrderSequence):
        other.topic("orders").partition(0)._submit(batch(Producer(7, 0, 5), b"b")).result()


def test_batches_are_committed_as_stamped_by_the_broker(services: tuple[ObjectService, ObjectService]) -> None:
    """With `message.timestamp.type=LogAppendTime` a broker changes a batch and its checksum before the commit."""
    one, _ = services
    log = one.alter_topic("orders", None, {"message_timestamp_type": "LogAppendTime"}).partition(0)
    log._submit(batch(Producer(7, 0, 0), b"a")).result()
    fetched = log.fetch(0)
    assert isinstance(fetched, Fetched)  # from memory
    partition = ObjectPartition(one._session, "orders", one.topic("orders").id, 0, LogConfig())
    assert [record.value for record in partition._uncached().scan()] == [b"a"]
    assert partition.verify().ok
    assert fetched.raw == partition.fetch(0).raw


def test_a_large_batch_is_not_overtaken_by_a_small_one(services: tuple[ObjectService, ObjectService]) -> None:
    log = services[0].topic("orders").partition(0)
    large = log._submit(batch(Producer(7, 0, 0), bytes(2 << 20)))
    small = log._submit(batch(Producer(7, 0, 1), b"small"))
    assert (large.result(), small.result()) == (range(1), range(1, 2))


def test_producer_ids_are_handed_out_once(services: tuple[ObjectService, ObjectService]) -> None:
    ledgers = [each.transactional_ids() for each in services]
    ids = [ledger.new_producer_id() for _ in range(1200) for ledger in ledgers]
    assert len(set(ids)) == len(ids)


# --- transactions


def test_a_batch_is_stored_only_in_a_transaction_that_includes_its_partition(
    services: tuple[ObjectService, ObjectService],
) -> None:
    one, other = services
    log = other.topic("orders").partition(0)
    with pytest.raises(NotInTransaction):
        log._submit(batch(Producer(7, 0, 0), b"x", transactional=True)).result()
    one.transactional_ids().save("t", 0, ongoing(one, 7, 0, 0))
    log._submit(batch(Producer(7, 0, 0), b"x", transactional=True)).result()  # which has not looked since
    with pytest.raises(NotInTransaction):
        other.topic("orders").partition(1)._submit(batch(Producer(7, 0, 0), b"x", transactional=True)).result()


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_ends_in_one_commit(services: tuple[ObjectService, ObjectService], commit: bool) -> None:
    one, other = services
    ledger, fields = one.transactional_ids(), ongoing(one, 7, 0, 0, 1)
    ledger.save("t", 0, fields)
    for number in (0, 1):
        one.topic("orders").partition(number)._submit(batch(Producer(7, 0, 0), b"x", transactional=True)).result()
    assert [values(other, number) for number in (0, 1)] == [[], []]
    with pytest.raises(NotYetVisible):
        other.topic("orders").partition(0).read(0)
    found = ledger.get("t")
    assert found is not None
    offsets = {"g": [("orders", 0, 9, -1, "")]} if commit else {}
    ledger.save("t", found[0], ended(fields, commit=commit), markers=markers(fields, commit=commit), offsets=offsets)
    wanted = [b"x"] if commit else []
    assert [values(other, number) for number in (0, 1)] == [wanted, wanted]
    assert values(other, 0, "uncommitted") == [b"x"]
    assert committed(other) == (9 if commit else None)
    page = other.topic("orders").partition(0).fetch(0, isolation="committed")
    assert page.aborted == (() if commit else ((7, 0),))
    assert page.last_stable_offset == 2


def test_a_coordinator_that_was_asleep_does_not_end_the_next_transaction(
    services: tuple[ObjectService, ObjectService],
) -> None:
    asleep, awake = (each.transactional_ids() for each in services)
    service = services[1]
    fields = ongoing(service, 7, 0, 0)
    awake.save("t", 0, fields)
    asleep.refresh()
    known = asleep.get("t")
    assert known is not None
    awake.save("t", known[0], ended(fields, commit=True), markers=markers(fields, commit=True))
    done = awake.get("t")
    assert done is not None
    awake.save("t", done[0], fields)  # the next one begins and writes
    log = service.topic("orders").partition(0)
    log._submit(batch(Producer(7, 0, 0), b"next", transactional=True)).result()
    with pytest.raises(Conflict):
        asleep.save("t", known[0], ended(fields, commit=True), markers=markers(fields, commit=True))
    assert values(service) == []  # it is still open


def test_an_earlier_epoch_is_refused_once_the_next_one_has_begun(
    services: tuple[ObjectService, ObjectService],
) -> None:
    one, other = services
    ledger, fields = one.transactional_ids(), ongoing(one, 7, 0, 0)
    ledger.save("t", 0, fields)
    found = ledger.get("t")
    assert found is not None
    bumped = {**fields, "epoch": 1}
    ledger.save("t", found[0], ended(bumped, commit=False), markers=markers(bumped, commit=False))
    log = other.topic("orders").partition(0)
    with pytest.raises((ProducerFenced, NotInTransaction)):
        log._submit(batch(Producer(7, 0, 0), b"zombie", transactional=True)).result()
    known = [ProducerInfo(7, 1, -1, -1, -1, -1)]
    other.catch_up()
    assert log._producer_states == known


def test_offsets_of_an_open_transaction_are_pending_for_every_broker(
    services: tuple[ObjectService, ObjectService],
) -> None:
    one, other = services
    ledger, fields = one.transactional_ids(), ongoing(one, 7, 0)
    ledger.save("t", 0, {**fields, "offsets": {"g": [["orders", 0, 9, -1, ""]]}})
    other.catch_up()
    assert other.transactional_ids().pending("g") == {("orders", 0)}
    found = ledger.get("t")
    assert found is not None
    ledger.save("t", found[0], ended(fields, commit=False))
    other.catch_up()
    assert other.transactional_ids().pending("g") == frozenset()


# --- users


def test_every_broker_reads_users_stored_by_one(services: tuple[ObjectService, ObjectService]) -> None:
    one, other = services
    one.registry.change("users", lambda fields: {**fields, "a": 1})
    found = other.registry.change("users", lambda fields: {**fields, "b": 2})
    assert (found.version, found.fields) == (2, {"a": 1, "b": 2})
    assert one.registry.change("users", lambda fields: fields).version == 2


# --- processes


# Without transactions, which the next test covers, and over a directory: moto would take seconds of CPU.
@pytest.mark.costly  # two broker processes and three clients
@pytest.mark.parametrize("moves", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_client_that_loses_a_broker_continues_with_the_other(tmp_path: Path, moto: Server, moves: bool) -> None:
    url = None if moves else f"file://{tmp_path}/bucket"
    with Fleet(tmp_path, moto, url=url) as fleet, Traffic(fleet, writers=2 if moves else 1, moves=moves) as traffic:
        fleet.wait_for(2)
        traffic.go_on(10)
        traffic.settle()
        fleet.brokers[0].kill()
        traffic.go_on(10)
        assert traffic.verdict() == []


def test_a_mover_without_progress_replaces_its_client_and_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging:
        def subscribe(self, *_: object, **__: object) -> None:
            pass

        async def start(self) -> None:
            await asyncio.Event().wait()

        async def stop(self) -> None:
            pass

    class Stuck(Mover):
        def _clients(self, slowness: int) -> tuple[Any, Any]:
            lives.append(slowness)
            if len(lives) == 4:
                self.ended.set()
            return Hanging(), Hanging()

    lives = list[int]()
    monkeypatch.setattr(brokerage, "_STILL_S", 0.01)
    mover = Stuck(None)  # type: ignore[arg-type]
    mover.work()
    assert lives == [1, 2, 4, 4]
    assert mover.troubles == {"TimeoutError": 4}


@pytest.mark.parametrize("how", ["kill", pytest.param("freeze", marks=pytest.mark.slow)])
def test_a_transaction_ends_after_its_client_and_its_coordinator_were_killed(
    tmp_path: Path, moto: Server, how: str
) -> None:
    with Fleet(tmp_path, moto) as fleet:
        fleet.create(("orders", 1))
        fleet.wait_for(2)
        name, patience_s = coordinated_by_the_first(fleet), brokerage.PATIENCE_S
        gone = KafkaProducer(fleet.client(transactional_id=name, transaction_timeout_ms=3000))
        gone.init_transactions(patience_s)
        gone.begin_transaction()
        gone.produce("orders", b"open", partition=0)
        assert gone.flush(patience_s) == 0
        getattr(fleet.brokers[0], how)()
        with fleet.open() as store:
            log = store.topic("orders").partition(0)
            wait_until(lambda: log.last_stable_offset == log.next_offset > 1, "it is aborted")
            fresh = KafkaProducer(fleet.client(transactional_id=name))
            fresh.init_transactions(patience_s)
            fresh.begin_transaction()
            fresh.produce("orders", b"committed", partition=0)
            fresh.commit_transaction(patience_s)
            wait_until(lambda: [each.value for each in log.scan()] == [b"committed"], "only what was committed is read")


def coordinated_by_the_first(fleet: Fleet) -> str:
    """Return a transactional id that the first broker coordinates."""
    ids = {each.port: each.id for each in fleet.admin().list_topics(timeout=60).brokers.values()}
    names = map(str, range(100))
    mine = ids[fleet.brokers[0].port]
    return next(name for name in names if max(ids.values(), key=lambda each: weight("transaction", name, each)) == mine)


@pytest.mark.slow
def test_a_broker_that_was_stopped_and_removed_acknowledges_only_accepted_commits(tmp_path: Path, moto: Server) -> None:
    with Fleet(tmp_path, moto) as fleet, Traffic(fleet) as traffic:
        traffic.go_on()
        for victim in fleet.brokers:
            victim.freeze()
            traffic.go_on()
            brokerage.fleet_without(fleet, victim)
            victim.thaw()
            fleet.wait_for(2)
            traffic.settle()
        assert traffic.verdict() == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_clients_survive_whatever_happens_to_one_broker_at_a_time(tmp_path: Path, moto: Server, seed: int) -> None:
    with Fleet(tmp_path, moto, 3) as fleet, Traffic(fleet) as traffic:
        traffic.go_on()
        done = brokerage.disturb(fleet, traffic, 10, seed)
        assert sum(done.values()) == 10
        assert traffic.verdict() == []


#: One of seven requests has a fault, and each is a little slower.
_BAD = Faults(
    seed=5,
    lost_before=0.02,
    lost_after=0.02,
    late=0.02,
    failed=0.02,
    busy=0.02,
    conflict=0.02,
    slow=0.02,
    latency_s=0.005,
)


@pytest.mark.slow
def test_clients_lose_nothing_behind_a_bad_network(tmp_path: Path, moto: Server) -> None:
    with (
        Proxy(moto.endpoint, _BAD) as proxy,
        Fleet(tmp_path, Server(proxy.endpoint), 3) as fleet,
        Traffic(fleet) as traffic,
    ):
        traffic.go_on()
        brokerage.disturb(fleet, traffic, 6, seed=3)
        assert traffic.verdict() == []
        ambiguous = [proxy.counts[each] for each in (Fault.LOST_AFTER, Fault.FAILED, Fault.LATE, Fault.SLOW)]
        assert min(ambiguous) > 10


@pytest.mark.slow
@pytest.mark.group("seaweedfs")
def test_clients_survive_failures_of_brokers_over_seaweedfs(tmp_path: Path, seaweedfs: Server) -> None:
    with Fleet(tmp_path, seaweedfs) as fleet, Traffic(fleet) as traffic:
        traffic.go_on()
        brokerage.disturb(fleet, traffic, 6, seed=1)
        assert traffic.verdict() == []


@pytest.mark.slow  # 10 s; the quick tier loses a broker with a classic group, and moves groups in one process
def test_a_group_assigned_by_brokers_continues_at_another_broker(tmp_path: Path, moto: Server) -> None:
    options = ("--set", "group_consumer_heartbeat_interval_ms=200")
    with Fleet(tmp_path, moto, 2, *options) as fleet:
        fleet.create(("orders", brokerage.PARTITIONS))
        fleet.wait_for(2)
        readers = [Reader(fleet, "modern", "consumer") for _ in range(2)]
        for each in readers:
            each.start()

        def read(values: range) -> None:
            writer = KafkaProducer({**fleet.client(), "enable.idempotence": True})
            for number in values:
                writer.produce("orders", b"%d" % number, partition=number % brokerage.PARTITIONS)
            assert writer.flush(brokerage.PATIENCE_S) == 0
            wanted = {b"%d" % number for number in values}
            wait_until(lambda: wanted <= {value for each in readers for value in each.seen.values()}, "all is read")

        read(range(30))
        wait_until(lambda: all(each.assigned for each in readers), "both have partitions")
        coordinator = fleet.coordinator("modern")
        fleet.brokers[coordinator].kill()
        read(range(30, 60))
        with fleet.open() as store:  # a reader repeats a commit that fails while the group moves
            rows = store.groups.describe
            wait_until(lambda: [row.committed for row in rows("modern").rows] == [20, 20, 20], "all is committed")
        for each in readers:
            each.finish()
        assert not any(each.problems for each in readers)


@pytest.mark.slow  # 6 s; a broker is the same over a bucket, and speaks TLS in tests/broker/security
def test_brokers_over_a_bucket_speak_tls(tmp_path: Path, moto: Server) -> None:
    authority = Authority(tmp_path / "tls")
    files = authority.server()
    options = ("--set", f"tls_certificate={files.certificate}", "--set", f"tls_key={files.key}")
    with Fleet(tmp_path, moto, 2, *options) as fleet:
        access = Access(tls=authority.trusting())
        with connect(fleet.brokers[0].address, access=access) as store:
            store.create_topic("orders").append(b"by the first")
        with connect(fleet.brokers[1].address, access=access) as store:
            store.topic("orders").append(b"by the second")
            found = [each.value for each in store.topic("orders").partition(0).scan()]
        assert found == [b"by the first", b"by the second"]
        with pytest.raises(BrokerError):
            connect(fleet.brokers[0].address, timeout_s=5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:(open|read)_text is deprecated:DeprecationWarning")  # kafka-python uses them
def test_two_other_kafka_clients_use_all_brokers(tmp_path: Path, moto: Server) -> None:
    with Fleet(tmp_path, moto) as fleet:
        fleet.create(("orders", 4))
        fleet.wait_for(2)
        sent = {str(number).encode() for number in range(40)}
        _by_kafka_python(fleet, sent)
        assert asyncio.run(_by_aiokafka(fleet)) == sent
        with connect(fleet.brokers[1].address) as store:
            assert sum(len(list(store.topic("orders").partition(number).scan())) for number in range(4)) == 40


def _by_kafka_python(fleet: Fleet, sent: set[bytes]) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=fleet.servers.split(","))
    for value in sorted(sent):
        producer.send("orders", value, partition=int(value) % 4)
    producer.flush(60)
    producer.close()


async def _by_aiokafka(fleet: Fleet) -> set[bytes | None]:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        "orders", bootstrap_servers=fleet.servers, group_id="others", auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        async with asyncio.timeout(60):
            return {(await consumer.getone()).value for _ in range(40)}
    finally:
        await consumer.stop()


@pytest.mark.slow
def test_users_and_acls_apply_at_every_broker(tmp_path: Path, moto: Server) -> None:
    options = ("--set", "sasl_mechanisms=SCRAM-SHA-512", "--set", "super_users=User:admin")
    with Fleet(tmp_path, moto, 2, *options) as fleet:
        with ObjectStore.open(fleet.url, options=moto.options, maintenance_interval_s=None) as store:
            for name in ("admin", "alice"):
                StoredUsers(store._registry).put(
                    name, [Salted.new(MECHANISMS["SCRAM-SHA-512"], "secret", MIN_ITERATIONS)]
                )
            store.create_topic("orders")

        def rule(operation: Operation) -> Binding:
            return Binding(Resource.TOPIC, "orders", "User:alice", operation)

        def may_write(broker: int) -> bool:
            access = Access(login=Login("alice", "secret"))
            try:
                with connect(fleet.brokers[broker].address, access=access, timeout_s=5) as store:
                    store.topic("orders").append(b"x")
            except BrokerError:
                return False
            return True

        for broker in (0, 1):  # without rules, everything is allowed
            wait_until(partial(may_write, broker), "the new user is known")
        with connect(fleet.brokers[0].address, access=Access(login=Login("admin", "secret"))) as store:
            store.acls.add([rule(Operation.READ)])
            for broker in (0, 1):
                wait_until(lambda broker=broker: not may_write(broker), "the first rule is known")
            store.acls.add([rule(Operation.WRITE)])
            for broker in (0, 1):
                wait_until(partial(may_write, broker), "the second rule is known")
