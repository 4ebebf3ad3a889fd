"""Groups whose partitions the broker assigns: epochs, giving up before getting, static members, patterns."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sawlog.broker.config import BrokerConfig
from sawlog.broker.groups.consumer_group import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    HeartbeatRequest,
    HeartbeatResponse,
    TopicInfo,
    assign_ranges,
    is_pattern,
    matching,
)
from sawlog.broker.wire import ErrorCode as E

from .driven import Clock

SESSION_MS, REBALANCE_MS = 45_000, 20_000
ORDERS, TOTALS = TopicInfo("aa", 4), TopicInfo("bb", 2)


class Broker:
    """A group, and the topics that there are."""

    def __init__(self, **settings: int) -> None:
        self.clock = Clock()
        self.topics = {"orders": ORDERS, "totals": TOTALS}
        self.emptied = 0
        self.group = ConsumerGroup("billing", self.clock, BrokerConfig(**settings), self._emptied)

    def _emptied(self) -> None:
        self.emptied += 1


class Client:
    """A member as its client sees it: it gives up before it takes."""

    def __init__(self, broker: Broker, name: str, *topics: str, instance: str | None = None, **options: Any) -> None:
        self.broker = broker
        self.id = name
        self.instance = instance
        self.options = {"topics": frozenset(topics or ("orders",)), "rebalance_timeout_ms": REBALANCE_MS, **options}
        self.epoch = JOIN_EPOCH
        self.owned: frozenset[tuple[str, int]] = frozenset()
        #: Partitions of the last assignment.
        self.target: frozenset[tuple[str, int]] = frozenset()
        self.told: HeartbeatResponse | None = None

    def send(self, **said: Any) -> HeartbeatResponse:
        beat = HeartbeatRequest(self.id, self.epoch, "client", "127.0.0.1", self.instance, **said)
        self.told = told = self.broker.group.heartbeat(beat, self.broker.topics)
        if told.error is E.NONE:
            self.epoch = told.epoch
            if told.assignment is not None:
                self.target = told.assignment
        return told

    def join(self) -> HeartbeatResponse:
        self.epoch, self.owned, self.target = JOIN_EPOCH, frozenset(), frozenset()
        return self.send(owned=frozenset(), **self.options)

    def beat(self) -> HeartbeatResponse:
        return self.send()

    def report(self) -> HeartbeatResponse:
        """Send a heartbeat with the owned partitions."""
        return self.send(owned=self.owned)

    def work(self) -> None:
        """Revoke partitions, report that, and take new ones."""
        self.owned &= self.target
        self.report()
        self.owned = self.target
        self.report()

    @property
    def numbers(self) -> list[int]:
        return sorted(number for topic, number in self.owned if topic == "aa")


def settle(*clients: Client, rounds: int = 6) -> None:
    for _ in range(rounds):
        for each in clients:
            each.beat()
            each.work()


# --- joining and sharing


def test_the_first_member_gets_everything_at_once() -> None:
    broker = Broker()
    first = Client(broker, "first")
    told = first.join()
    assert (told.error, told.epoch, told.member_id) == (E.NONE, 2, "first")
    assert told.assignment == {("aa", n) for n in range(4)}
    assert broker.group.state == "Stable"


def test_an_old_client_gets_its_id() -> None:
    told = Client(Broker(), "").join()
    assert told.error is E.NONE
    assert told.member_id


def test_a_second_member_gets_what_the_first_has_given_up_and_not_before() -> None:
    broker = Broker()
    first, second = Client(broker, "first"), Client(broker, "second")
    first.join()
    first.work()
    told = second.join()
    assert told.assignment == frozenset(), "all of it is the first one's"
    assert second.epoch > first.epoch, "there is nothing to give up"
    assert broker.group.state == "Reconciling"
    assert len(first.beat().assignment or ()) == 2
    before = first.epoch
    assert second.beat().assignment is None
    assert first.beat().assignment is None, "it was told already"
    first.owned = first.target
    first.report()
    assert first.epoch > before
    assert len(second.beat().assignment or ()) == 2
    settle(first, second)
    assert sorted(first.numbers + second.numbers) == [0, 1, 2, 3]
    assert broker.group.state == "Stable"


def test_a_member_that_leaves_frees_its_partitions() -> None:
    broker = Broker()
    first, second = Client(broker, "first"), Client(broker, "second")
    first.join()
    second.join()
    settle(first, second)
    first.epoch = LEAVE_EPOCH
    assert first.send().epoch == LEAVE_EPOCH
    settle(second)
    assert second.numbers == [0, 1, 2, 3]
    second.epoch = LEAVE_EPOCH
    second.send()
    assert (broker.emptied, broker.group.state) == (1, "Empty")
    assert broker.clock.pending == 0


def test_a_silent_member_is_removed() -> None:
    broker = Broker()
    first, second = Client(broker, "first"), Client(broker, "second")
    first.join()
    second.join()
    settle(first, second)
    for _ in range(SESSION_MS // 5000 + 1):
        broker.clock.advance(5)
        second.beat()
    settle(second)
    assert second.numbers == [0, 1, 2, 3]
    assert first.beat().error is E.UNKNOWN_MEMBER_ID
    first.join()
    settle(first, second)
    assert len(first.numbers) == 2


def test_a_member_that_gives_nothing_up_is_removed_after_its_rebalance_timeout() -> None:
    broker = Broker()
    first, second = Client(broker, "first"), Client(broker, "second")
    first.join()
    first.work()
    second.join()
    first.beat()
    for _ in range(REBALANCE_MS // 1000 + 1):
        broker.clock.advance(1)
        first.beat()
        second.beat()
    assert first.beat().error is E.UNKNOWN_MEMBER_ID
    settle(second)
    assert second.numbers == [0, 1, 2, 3]


def test_a_member_that_never_had_what_it_should_give_up_is_not_waited_for() -> None:
    broker = Broker()
    first = Client(broker, "first")
    first.join()
    second = Client(broker, "second")
    second.join()
    first.owned = frozenset()
    told = first.report()
    assert (told.epoch, len(told.assignment or ())) == (second.epoch, 2)


# --- epochs


def test_a_wrong_epoch_is_fenced() -> None:
    broker = Broker()
    first, second = Client(broker, "first"), Client(broker, "second")
    first.join()
    second.join()
    settle(first, second)
    for epoch in (first.epoch + 1, first.epoch - 2):
        stale = Client(broker, "first")
        stale.epoch = epoch
        assert stale.beat().error is E.FENCED_MEMBER_EPOCH
    assert broker.group.epoch_error("first", first.epoch) is E.NONE
    assert broker.group.epoch_error("first", first.epoch - 1) is E.STALE_MEMBER_EPOCH
    assert broker.group.epoch_error("nobody", first.epoch) is E.UNKNOWN_MEMBER_ID


def test_an_epoch_that_is_behind_commits_what_the_member_has_had_since_then() -> None:
    def commit(epoch: int, *numbers: int, topic: str = "orders") -> E:
        return broker.group.commit_error("first", epoch, [(topic, number) for number in numbers])

    broker = Broker()
    first, second = Client(broker, "first"), Client(broker, "second")
    first.join()
    first.work()
    early = first.epoch
    second.join()
    first.beat()
    kept, given = (sorted(number for _, number in shares) for shares in (first.target, first.owned - first.target))
    assert commit(early, *kept, *given) is E.NONE, "nothing is given up yet"
    first.work()
    settle(first, second)
    assert first.epoch > early
    assert commit(early, *kept) is E.NONE
    assert commit(first.epoch, *kept) is E.NONE
    assert commit(early, *kept, *given) is E.STALE_MEMBER_EPOCH, "another member reads them"
    assert commit(early, *kept, topic="totals") is E.STALE_MEMBER_EPOCH
    assert commit(early - 1, *kept) is E.STALE_MEMBER_EPOCH, "before it had them"
    assert commit(first.epoch + 1, *kept) is E.STALE_MEMBER_EPOCH
    second.epoch = LEAVE_EPOCH
    second.send()
    settle(first)
    assert first.numbers == [0, 1, 2, 3]
    assert commit(early, *given) is E.STALE_MEMBER_EPOCH, "another member has read them meanwhile"
    assert commit(first.epoch, *given) is E.NONE


def test_a_lost_answer_is_repeated() -> None:
    broker = Broker()
    first, second = Client(broker, "first"), Client(broker, "second")
    first.join()
    first.work()
    second.join()
    first.beat()
    first.owned = first.target
    before, owned = first.epoch, first.owned
    first.report()
    assert first.epoch > before
    first.epoch = before  # as if the answer had not come
    assert first.beat().error is E.FENCED_MEMBER_EPOCH, "it does not say what it owns"
    first.epoch = before
    told = first.send(owned=owned)
    assert (told.error, told.assignment) == (E.NONE, owned)


def test_a_member_that_joins_again_owns_nothing_and_gets_its_target_again() -> None:
    broker = Broker()
    first = Client(broker, "first")
    first.join()
    first.work()
    told = first.join()
    assert (told.error, len(told.assignment or ())) == (E.NONE, 4)
    assert len(broker.group.members) == 1


def test_a_full_heartbeat_is_told_everything() -> None:
    broker = Broker()
    first = Client(broker, "first")
    first.join()
    first.work()
    assert first.beat().assignment is None
    assert first.send(owned=first.owned, **first.options).assignment == first.owned


# --- topics


def test_new_partitions_new_topics_and_deleted_ones_are_noticed() -> None:
    broker = Broker()
    first = Client(broker, "first", "orders", "later")
    first.join()
    first.work()
    broker.topics["orders"] = TopicInfo("aa", 6)
    first.beat()
    first.work()
    assert first.numbers == list(range(6))
    broker.topics["later"] = TopicInfo("cc", 1)
    assert ("cc", 0) in (first.beat().assignment or ())
    first.work()
    del broker.topics["orders"]
    assert first.beat().assignment == {("cc", 0)}
    first.work()
    assert first.owned == {("cc", 0)}


def test_a_recreated_topic_is_another_one() -> None:
    broker = Broker()
    first = Client(broker, "first")
    first.join()
    first.work()
    broker.topics["orders"] = TopicInfo("dd", 2)
    settle(first)
    assert first.owned == {("dd", 0), ("dd", 1)}


def test_a_new_subscription_is_a_new_target() -> None:
    broker = Broker()
    first = Client(broker, "first")
    first.join()
    first.work()
    told = first.send(topics=frozenset({"totals"}))
    assert told.assignment == frozenset()
    first.work()
    assert first.owned == {("bb", 0), ("bb", 1)}


def test_a_pattern_is_matched_against_all_topics_and_later_ones() -> None:
    broker = Broker()
    first = Client(broker, "first", topics=frozenset(), pattern="ord.*|.*als")
    first.join()
    first.work()
    assert len(first.owned) == 6
    broker.topics["ordinary"] = TopicInfo("ee", 1)
    broker.topics["not-orders"] = TopicInfo("ff", 1)
    settle(first)
    assert len(first.owned) == 7
    first.send(pattern="")
    settle(first)
    assert first.owned == frozenset()


def test_a_pattern_matches_whole_names_and_never_takes_long() -> None:
    assert matching("a|b", ["a", "b", "ab"]) == {"a", "b"}
    assert matching(r"orders-\d+", ["orders-7", "orders-x", "my-orders-7"]) == {"orders-7"}
    assert matching("(a+)+b", ["a" * 249]) == frozenset()
    assert not is_pattern("(")
    assert is_pattern(".*")


# --- requests that make no sense


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"epoch": -3}, E.INVALID_REQUEST),
        ({"epoch": 1, "member_id": ""}, E.INVALID_REQUEST),
        ({"epoch": STATIC_LEAVE_EPOCH}, E.INVALID_REQUEST),
        ({"rebalance_timeout_ms": None}, E.INVALID_REQUEST),
        ({"owned": None}, E.INVALID_REQUEST),
        ({"owned": frozenset({("aa", 0)})}, E.INVALID_REQUEST),
        ({"topics": None}, E.INVALID_REQUEST),
        ({"assignor": "best"}, E.UNSUPPORTED_ASSIGNOR),
        ({"pattern": "("}, E.INVALID_REGULAR_EXPRESSION),
        ({"epoch": 3}, E.UNKNOWN_MEMBER_ID),
        ({"epoch": LEAVE_EPOCH}, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_contradictory_heartbeats_are_refused(said: dict[str, Any], error: E) -> None:
    broker = Broker()
    fields = {
        "member_id": "first",
        "epoch": JOIN_EPOCH,
        "client_id": "",
        "client_host": "",
        "rebalance_timeout_ms": 1000,
        "topics": frozenset({"orders"}),
        "owned": frozenset(),
        **said,
    }
    told = broker.group.heartbeat(HeartbeatRequest(**fields), broker.topics)
    assert told.error is error
    assert told.message
    assert broker.group.is_empty


def test_a_group_that_is_full_takes_no_more() -> None:
    broker = Broker(group_max_size=1)
    Client(broker, "first").join()
    assert Client(broker, "second").join().error is E.GROUP_MAX_SIZE_REACHED


# --- static members


def test_a_static_member_that_pauses_gets_its_partitions_back_without_a_rebalance() -> None:
    broker = Broker()
    first, second = Client(broker, "first", instance="one"), Client(broker, "second", instance="two")
    first.join()
    second.join()
    settle(first, second)
    mine, epoch = second.owned, first.epoch
    second.epoch = STATIC_LEAVE_EPOCH
    assert second.send().epoch == STATIC_LEAVE_EPOCH
    first.beat()
    assert len(first.target) == 2
    again = Client(broker, "again", instance="two")
    told = again.join()
    assert told.assignment == mine
    assert first.beat().epoch == epoch, "no new epoch"
    assert second.join().error is E.UNRELEASED_INSTANCE_ID


def test_a_static_member_that_is_in_use_is_not_taken_over() -> None:
    broker = Broker()
    first = Client(broker, "first", instance="one")
    first.join()
    assert Client(broker, "twin", instance="one").join().error is E.UNRELEASED_INSTANCE_ID
    other = Client(broker, "twin", instance="one")
    other.epoch = 2
    assert other.beat().error is E.FENCED_INSTANCE_ID
    assert first.beat().error is E.NONE


def test_a_static_member_that_stays_away_is_removed() -> None:
    broker = Broker()
    first, second = Client(broker, "first", instance="one"), Client(broker, "second", instance="two")
    first.join()
    second.join()
    settle(first, second)
    second.epoch = STATIC_LEAVE_EPOCH
    second.send()
    for _ in range(10):
        broker.clock.advance(5)
        first.beat()
    settle(first)
    assert first.numbers == [0, 1, 2, 3]


def test_an_administrator_removes_members() -> None:
    broker = Broker()
    first, second = Client(broker, "first"), Client(broker, "second", instance="two")
    first.join()
    second.join()
    removed = broker.group.remove([("first", None), ("", "two"), ("nobody", None)])
    assert removed == [E.NONE, E.NONE, E.UNKNOWN_MEMBER_ID]
    assert broker.group.is_empty


# --- assignors


def test_the_assignor_that_most_ask_for_is_used() -> None:
    broker = Broker()
    clients = [Client(broker, f"{n}", assignor=name) for n, name in enumerate(["range", "range", "uniform"])]
    for each in clients:
        each.join()
    settle(*clients)
    assert broker.group.assignor == "range"
    assert [each.numbers for each in clients] == [[0, 1], [2], [3]]


@pytest.mark.parametrize("members", range(1, 7))
def test_ranges_are_neighbours_and_cover_everything(members: int) -> None:
    subscriptions = {f"{n}": {"a", "b"} for n in range(members)}
    partitions = [(topic, n) for topic in ("a", "b") for n in range(5)]
    plan = assign_ranges(subscriptions, partitions, {})
    assert sorted(share for shares in plan.values() for share in shares) == partitions
    for shares in plan.values():
        numbers = sorted(n for topic, n in shares if topic == "a")
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else members > 5
        assert numbers == sorted(n for topic, n in shares if topic == "b")


# --- in any order


class Play:
    """Members that do things in random order."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.broker = Broker()
        self.live: list[Client] = []
        self.everyone: list[Client] = []
        self.start()

    def start(self) -> None:
        topics = self.chance.sample(["orders", "totals"], self.chance.randint(1, 2))
        self.live.append(Client(self.broker, f"{len(self.everyone)}", *topics))
        self.everyone.append(self.live[-1])
        self.live[-1].join()

    def step(self) -> None:
        client = self.chance.choice(self.live)
        dice = self.chance.random()
        if dice < 0.1 and len(self.live) < 5:
            self.start()
        elif dice < 0.15:
            client.join()
        elif dice < 0.4:
            client.beat()
        elif dice < 0.55:
            client.owned &= client.target
            client.report()
        elif dice < 0.75 and client.owned <= client.target:
            client.owned = client.target
        elif dice < 0.8:
            client.report()
        elif dice < 0.84 and len(self.live) > 1:
            self.live.remove(client)  # nobody hears of it any more
        elif dice < 0.88:
            self.broker.topics["orders"] = TopicInfo("aa", self.chance.randint(4, 8))
        elif dice < 0.9:
            client.send(topics=frozenset(self.chance.sample(["orders", "totals"], 1)))
        else:
            self.broker.clock.advance(self.chance.uniform(0, 20))
        if client.told is not None and client.told.error is not E.NONE:
            client.join()

    def check(self) -> None:
        known = {each.id: each for each in self.broker.group.members}
        valid = [each for each in self.everyone if each.id in known and known[each.id].epoch == each.epoch]
        owned = [share for each in valid for share in each.owned]
        assert len(owned) == len(set(owned)), "two whose commits are accepted own the same"
        held = [share for each in known.values() for share in each.assigned | each.revoking]
        assert sorted(held) == sorted(self.broker.group._owners)

    def settle(self) -> None:
        for _ in range(25):
            for each in self.live:
                if each.beat().error is not E.NONE:
                    each.join()
                each.work()
                self.check()
            self.broker.clock.advance(4)
        group, topics = self.broker.group, self.broker.topics
        assert group.state == "Stable"
        assert {each.id for each in group.members} == {each.id for each in self.live}
        everything = {(topics[name].id, n) for name in group.topics for n in range(topics[name].partitions)}
        assert {share for each in self.live for share in each.owned} == everything


def play(seed: int) -> None:
    """One interleaving."""
    made = Play(seed)
    try:
        for _ in range(made.chance.randrange(20, 120)):
            made.step()
            made.check()
        made.settle()
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


def test_whatever_members_do_a_partition_has_one_owner() -> None:
    for seed in range(20):
        play(seed)


@pytest.mark.slow
def test_whatever_members_do_a_thousand_times_a_partition_has_one_owner() -> None:
    for seed in range(1000, 2000):
        play(seed)


# --- a coordinator without memory of earlier epochs


def test_a_group_begins_with_the_epoch_that_it_is_given() -> None:
    group = ConsumerGroup("billing", Clock(), BrokerConfig(), first_epoch=1000)
    assert (group.state, group.has_begun) == ("Empty", False)
    beat = HeartbeatRequest(
        "one", JOIN_EPOCH, "c", "h", rebalance_timeout_ms=1, topics=frozenset({"orders"}), owned=frozenset()
    )
    assert group.heartbeat(beat, {"orders": ORDERS}).epoch > 1000
    assert group.has_begun


def test_an_assignment_from_before_a_restart_is_not_valid_after_it() -> None:
    before, after = Broker(), Broker()
    before.group = ConsumerGroup("billing", before.clock, BrokerConfig(), first_epoch=70)
    after.group = ConsumerGroup("billing", after.clock, BrokerConfig(), first_epoch=50)
    old = Client(before, "old")
    old.join()
    again, other = Client(after, "old"), Client(after, "other")
    other.join()
    again.join()
    settle(again, other)
    for share in sorted(old.owned | again.owned):
        partitions = [("orders", share[1])]
        assert after.group.commit_error("old", old.epoch, partitions) is E.STALE_MEMBER_EPOCH
    assert after.group.epoch_error("old", old.epoch) is E.STALE_MEMBER_EPOCH
