"""Groups: members share partitions, hand them on when they come and go, and go on after the broker was killed."""

from __future__ import annotations

import pytest

from ..serving import Serving
from .adapter import Client, Consumer, Seen, Sent, last_offsets, load, names
from .conftest import Hands, take, wait_for

PARTITIONS = 4


def numbered(count: int, start: int = 0) -> list[Sent]:
    """Records in turn for each partition, which say which they are."""
    return [Sent(b"%d" % each, partition=each % PARTITIONS) for each in range(start, start + count)]


def numbers(records: list[Seen]) -> list[int]:
    """Which they are."""
    return sorted(int(each.value or b"-1") for each in records)


class Members:
    """Consumers of one group, and what they have read; each commits what it has read at once."""

    def __init__(self, topic: str, *members: Consumer) -> None:
        self.topic = topic
        self.members = list(members)
        self.read: list[Seen] = []
        for member in members:
            member.subscribe(topic)

    def join(self, member: Consumer) -> None:
        """One more."""
        member.subscribe(self.topic)
        self.members.append(member)

    def poll(self) -> None:
        """Each member once."""
        for member in self.members:
            found = member.poll(0.05)
            if found:
                self.read += found
                member.commit(last_offsets(found, self.topic))

    def settle(self, *counts: int) -> None:
        """Poll until they share the partitions in this way, and nobody has one that another has."""

        def shared() -> bool:
            self.poll()
            sets = [member.assignment() for member in self.members]
            return sorted(map(len, sets)) == sorted(counts) and set().union(*sets) == set(range(PARTITIONS))

        wait_for(shared, f"the members to have {counts} partitions")

    def take(self, count: int) -> None:
        """Poll until so many records were read."""

        def read() -> bool:
            self.poll()
            return len(self.read) >= count

        wait_for(read, f"{count} records")


def test_members_share_partitions_and_hand_them_on(hands: Hands, topic: str) -> None:
    hands.admin().create_topic(topic, PARTITIONS)
    producer = hands.producer()
    first, second = (hands.consumer(group=topic) for _ in range(2))
    members = Members(topic, first)
    members.settle(4)
    producer.send(topic, numbered(20))
    members.take(20)
    members.join(second)
    members.settle(2, 2)
    producer.send(topic, numbered(20, 20))
    members.take(40)
    members.members.remove(first)
    hands.close(first)
    members.settle(4)
    producer.send(topic, numbered(20, 40))
    members.take(60)
    assert numbers(members.read) == list(range(60))


def test_a_group_goes_on_after_its_broker_was_killed(hands: Hands, broker: Serving, topic: str) -> None:
    hands.admin().create_topic(topic, PARTITIONS)
    producer = hands.producer()
    members = Members(topic, hands.consumer(group=topic), hands.consumer(group=topic))
    members.settle(2, 2)
    producer.send(topic, numbered(20))
    members.take(20)
    broker.kill()
    broker.start()
    members.settle(2, 2)
    producer.send(topic, numbered(20, 20))
    members.take(40)
    assert numbers(members.read) == list(range(40))  # what was committed is not read again


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


def test_a_static_member_gets_its_partitions_back(hands: Hands, topic: str) -> None:
    hands.admin().create_topic(topic, PARTITIONS)
    admin = hands.admin()
    given = {"group": topic, "session_ms": 30_000}
    first, second = hands.consumer(instance="a", **given), hands.consumer(instance="b", **given)
    members = Members(topic, first, second)
    members.settle(2, 2)
    before = first.assignment()
    members.members.remove(first)
    hands.close(first)  # a static member does not leave: nothing moves until its session ends
    members.poll()
    assert len(admin.group(topic).members) == 2
    again = hands.consumer(instance="a", **given)
    members.join(again)
    members.settle(2, 2)
    assert again.assignment() == before


@pytest.mark.slow
def test_a_member_that_is_gone_without_a_word_loses_its_partitions(hands: Hands, topic: str) -> None:
    """Its session ends: the member is not polled any more, and its process would not know."""
    hands.admin().create_topic(topic, PARTITIONS)
    first = hands.consumer(group=topic, session_ms=6000, instance="gone")
    second = hands.consumer(group=topic, session_ms=6000)
    members = Members(topic, first, second)
    members.settle(2, 2)
    members.members.remove(first)
    hands.close(first)  # being static, it does not say that it leaves
    members.settle(4)


@pytest.mark.slow
def test_clients_of_every_kind_share_a_group(broker: Serving, client: Client, topic: str) -> None:
    """One member of each kind, by the range assignor that all of them know."""
    mine = Hands(client, broker.address)
    mine.admin().create_topic(topic, PARTITIONS)
    others = [Hands(load(name), broker.address) for name in names("quick")]
    members = Members(topic, mine.consumer(group=topic), *(each.consumer(group=topic) for each in others[:3]))
    members.settle(1, 1, 1, 1)
    mine.producer().send(topic, numbered(40))
    members.take(40)
    assert numbers(members.read) == list(range(40))
    for each in (mine, *others):
        each.close()
