"""Groups: members share partitions, hand them over when they come and go, and continue after the broker was killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from ..serving import PATIENCE_S, Serving
from .adapter import Consumer, Refused, Seen, Sent, last_offsets, load, names
from .conftest import Hands, one_client, take, wait_for

PARTITIONS = 4
#: Errors for a member that has missed a rebalance. A broker that was killed does not know its members.
REBALANCED = {"ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "COMMIT_FAILED"}


def numbered(count: int, start: int = 0) -> list[Sent]:
    """Records in turn for each partition, which say which they are."""
    return [Sent(b"%d" % each, partition=each % PARTITIONS) for each in range(start, start + count)]


class Member(threading.Thread):
    """A consumer that polls all the time, as applications do. It counts the records that it could commit."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        super().__init__(daemon=True)
        self.consumer = consumer
        self.read: list[Seen] = []
        self.assigned: set[int] = set()
        self.error: BaseException | None = None
        self._topic = topic
        self._stopped = threading.Event()

    def run(self) -> None:
        """Until `stop`."""
        try:
            self.consumer.subscribe(self._topic)
            while not self._stopped.is_set():
                found = self.consumer.poll(0.1)
                if found and self._commits(found):
                    self.read += found
                self.assigned = self.consumer.assignment()
        except BaseException as error:
            self.error = error

    def _commits(self, found: list[Seen]) -> bool:
        """Commit and return True; False if it is no member any more, so that another member reads the records again."""
        try:
            self.consumer.commit(last_offsets(found, self._topic))
        except Refused as error:
            if error.name in REBALANCED:
                return False
            raise
        return True

    def stop(self) -> None:
        """Poll no more."""
        self._stopped.set()
        self.join(PATIENCE_S)
        if self.error is not None:
            raise self.error


class Members:
    """The members of a group."""

    def __init__(self, hands: Hands, topic: str) -> None:
        self._hands = hands
        self._topic = topic
        self._all: list[Member] = []
        self._there: list[Member] = []

    def join(self, consumer: Consumer) -> Member:
        """One more."""
        member = Member(consumer, self._topic)
        self._all.append(member)
        self._there.append(member)
        member.start()
        return member

    def leave(self, member: Member) -> None:
        """One less."""
        self._there.remove(member)
        member.stop()
        self._hands.close(member.consumer)

    def settle(self, *counts: int) -> None:
        """Wait until they share the partitions in this way."""

        def shared() -> bool:
            for member in self._there:
                if member.error is not None:
                    raise member.error
            time.sleep(0.02)
            sets = [member.assigned for member in self._there]
            return sorted(map(len, sets)) == sorted(counts) and set().union(*sets) == set(range(PARTITIONS))

        wait_for(shared, f"the members to have {counts} partitions")

    def take(self, count: int) -> None:
        """Wait until `count` records were read."""
        wait_for(lambda: time.sleep(0.02) or sum(len(each.read) for each in self._all) >= count, f"{count} records")

    def numbers(self) -> list[int]:
        """Numbers of the records that the members have read."""
        return sorted(int(each.value or b"-1") for member in self._all for each in member.read)

    def close(self) -> None:
        """Everybody leaves."""
        for member in list(self._there):
            self.leave(member)


@pytest.fixture
def members(hands: Hands, topic: str) -> Iterator[Members]:
    """A group on a topic of four partitions."""
    hands.admin().create_topic(topic, PARTITIONS)
    made = Members(hands, topic)
    yield made
    made.close()


#: Kafka's classic protocol, and that of KIP-848, which some clients offer.
both_protocols = pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=pytest.mark.slow)])


@both_protocols
def test_members_share_partitions_and_hand_them_on(hands: Hands, members: Members, topic: str, protocol: str) -> None:
    producer = hands.producer()
    first = members.join(hands.consumer(group=topic, protocol=protocol))
    members.settle(4)
    producer.send(topic, numbered(20))
    members.take(20)
    members.join(hands.consumer(group=topic, protocol=protocol))
    members.settle(2, 2)
    producer.send(topic, numbered(20, 20))
    members.take(40)
    members.leave(first)
    members.settle(4)
    producer.send(topic, numbered(20, 40))
    members.take(60)
    assert members.numbers() == list(range(60))


@pytest.mark.slow
@pytest.mark.parametrize("protocols", [("classic", "consumer"), ("consumer", "classic")])
def test_members_change_their_protocol_one_after_the_other(
    hands: Hands, members: Members, topic: str, protocols: tuple[str, str]
) -> None:
    producer = hands.producer()
    old = [members.join(hands.consumer(group=topic, protocol=protocols[0])) for _ in range(2)]
    members.settle(2, 2)
    for number, each in enumerate(old, 1):
        members.join(hands.consumer(group=topic, protocol=protocols[1]))
        members.settle(1, 1, 2)
        members.leave(each)
        members.settle(2, 2)
        producer.send(topic, numbered(20, 20 * (number - 1)))
        members.take(20 * number)
    assert members.numbers() == list(range(40))


@both_protocols
def test_a_pattern_reads_all_topics_that_it_matches(hands: Hands, topic: str, protocol: str) -> None:
    admin, producer = hands.admin(), hands.producer()
    for name in (f"{topic}-one", f"{topic}-two", f"other-{topic}"):
        admin.create_topic(name)
        producer.send(name, [Sent(name.encode())] * 3)
    consumer = hands.consumer(group=topic, protocol=protocol)
    consumer.subscribe_pattern(f"^{topic}.*")
    assert sorted(each.value or b"" for each in take(consumer, 6)) == [
        each.encode() for each in (f"{topic}-one", f"{topic}-two") for _ in range(3)
    ]


@pytest.mark.costly  # ends the broker that the tests of clients share, so that its CPU time counts here
@one_client("aiokafka")
@both_protocols
def test_a_group_goes_on_after_its_broker_was_killed(
    hands: Hands, members: Members, broker: Serving, topic: str, protocol: str
) -> None:
    producer = hands.producer()
    for _ in range(2):
        members.join(hands.consumer(group=topic, protocol=protocol))
    members.settle(2, 2)
    producer.send(topic, numbered(20))
    members.take(20)
    broker.kill()
    broker.start()
    producer.send(topic, numbered(20, 20))
    members.take(40)
    members.settle(2, 2)
    assert members.numbers() == list(range(40))  # committed records are not read again


@pytest.mark.slow
def test_committed_offsets_survive_a_kill(hands: Hands, broker: Serving, topic: str) -> None:
    hands.producer().send(topic, [Sent(b"%d" % each) for each in range(10)])
    consumer = hands.consumer(group=topic)
    consumer.subscribe(topic)
    take(consumer, 10)
    consumer.commit({(topic, 0): 6})
    hands.close(consumer)
    broker.kill()
    broker.start()
    again = hands.consumer(group=topic)
    assert again.committed(topic, 0) == 6
    again.subscribe(topic)
    assert [each.offset for each in take(again, 4)] == [6, 7, 8, 9]


def test_a_static_member_gets_its_partitions_back(hands: Hands, members: Members, topic: str) -> None:
    admin = hands.admin()
    first = members.join(hands.consumer(group=topic, instance="a", session_ms=30_000))
    members.join(hands.consumer(group=topic, instance="b", session_ms=30_000))
    members.settle(2, 2)
    before = first.assigned
    members.leave(first)  # a static member does not say that it leaves: nothing moves until its session ends
    assert len(admin.group(topic).members) == 2
    again = members.join(hands.consumer(group=topic, instance="a", session_ms=30_000))
    members.settle(2, 2)
    assert again.assigned == before


@pytest.mark.slow
def test_a_member_that_is_gone_without_a_word_loses_its_partitions(hands: Hands, members: Members, topic: str) -> None:
    """A static member does not say that it leaves; its session ends."""
    gone = members.join(hands.consumer(group=topic, session_ms=6000, instance="gone"))
    members.join(hands.consumer(group=topic, session_ms=6000))
    members.settle(2, 2)
    members.leave(gone)
    members.settle(4)


@pytest.mark.slow
def test_clients_of_every_kind_share_a_group(hands: Hands, members: Members, broker: Serving, topic: str) -> None:
    """One member of each kind, by the range assignor that all of them know."""
    members.join(hands.consumer(group=topic))
    for name in names("quick"):
        members.join(load(name).consumer(broker.address, group=topic))
    members.settle(1, 1, 1, 1)
    hands.producer().send(topic, numbered(40))
    members.take(40)
    assert members.numbers() == list(range(40))
