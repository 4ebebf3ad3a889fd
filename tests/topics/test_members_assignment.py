"""The assignment of partitions is complete, balanced, sticky and deterministic."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog.store.base import TopicPartition
from sawlog.store.membership import assign

TOPICS = ("a", "b", "c")
subscriptions = st.dictionaries(
    st.sampled_from([f"m{n}" for n in range(6)]), st.sets(st.sampled_from(TOPICS), min_size=1), max_size=6
)
counts = st.fixed_dictionaries({topic: st.integers(0, 7) for topic in TOPICS})


def partitions(numbers: dict[str, int]) -> list[TopicPartition]:
    return [(topic, number) for topic, count in numbers.items() for number in range(count)]


def owners_of(plan: dict[str, set[TopicPartition]]) -> dict[TopicPartition, str]:
    return {share: member for member, shares in plan.items() for share in shares}


@given(subscriptions, counts)
def test_every_partition_has_exactly_one_owner_that_subscribes(
    members: dict[str, set[str]], numbers: dict[str, int]
) -> None:
    plan = assign(members, partitions(numbers), {})
    given = [share for shares in plan.values() for share in shares]
    wanted = [share for share in partitions(numbers) if any(share[0] in topics for topics in members.values())]
    assert sorted(given) == sorted(wanted)
    assert all(share[0] in members[member] for member, shares in plan.items() for share in shares)


@given(subscriptions, counts)
def test_no_member_has_two_more_than_one_that_could_take_one(
    members: dict[str, set[str]], numbers: dict[str, int]
) -> None:
    plan = assign(members, partitions(numbers), {})
    for member, shares in plan.items():
        for other, fewer in plan.items():
            if len(shares) >= len(fewer) + 2:
                assert not {topic for topic, _ in shares} & members[other], f"{member} could give to {other}: {plan}"


@given(subscriptions, counts, st.randoms(use_true_random=False))
def test_what_is_settled_stays(members: dict[str, set[str]], numbers: dict[str, int], chance: random.Random) -> None:
    owners = {
        share: chance.choice(takers)
        for share in partitions(numbers)
        if (takers := sorted(member for member, topics in members.items() if share[0] in topics))
    }
    plan = assign(members, partitions(numbers), owners)
    assert assign(members, partitions(numbers), owners_of(plan)) == plan


@given(subscriptions, counts, st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_seen_does_not_matter(
    members: dict[str, set[str]], numbers: dict[str, int], chance: random.Random
) -> None:
    shuffled = list(members.items())
    shares = partitions(numbers)
    plan = assign(members, shares, {})
    chance.shuffle(shuffled)
    chance.shuffle(shares)
    assert assign(dict(shuffled), shares, {}) == plan


@pytest.mark.parametrize("count", [1, 5, 12, 13])
def test_a_new_member_gets_its_share_and_the_others_keep_the_rest(count: int) -> None:
    shares = [("orders", number) for number in range(count)]
    before = assign({"one": ["orders"], "two": ["orders"]}, shares, {})
    after = assign({key: ["orders"] for key in ("one", "two", "new")}, shares, owners_of(before))
    assert len(after["new"]) == count // 3
    assert after["one"] <= before["one"]
    assert after["two"] <= before["two"]


def test_the_partitions_of_the_dead_are_spread_and_nothing_else_moves() -> None:
    shares = [("orders", number) for number in range(12)]
    before = assign({key: ["orders"] for key in ("one", "two", "dead")}, shares, {})
    after = assign({key: ["orders"] for key in ("one", "two")}, shares, owners_of(before))
    assert {member: len(mine) for member, mine in after.items()} == {"one": 6, "two": 6}
    assert before["one"] <= after["one"]
    assert before["two"] <= after["two"]


def test_balance_reaches_through_a_member_in_between() -> None:
    """One has too many, three has too few, and only two knows topics of both."""
    members = {"one": ["a"], "two": ["a", "b"], "three": ["b"]}
    owners = {("a", 0): "one", ("a", 1): "one", ("a", 2): "one", ("b", 0): "two", ("b", 1): "two", ("b", 2): "three"}
    plan = assign(members, owners, owners)
    assert {member: len(mine) for member, mine in plan.items()} == {"one": 2, "two": 2, "three": 2}


def test_an_owner_that_does_not_subscribe_any_more_gives_up() -> None:
    plan = assign({"one": ["a"], "two": ["b"]}, [("a", 0), ("b", 0)], {("b", 0): "one"})
    assert plan == {"one": {("a", 0)}, "two": {("b", 0)}}


def test_more_members_than_partitions_leaves_some_without() -> None:
    plan = assign({key: ["orders"] for key in "abc"}, [("orders", 0)], {("orders", 0): "c"})
    assert plan == {"a": set(), "b": set(), "c": {("orders", 0)}}


def test_without_members_no_partition_is_owned() -> None:
    assert assign({}, [("orders", 0)], {("orders", 0): "gone"}) == {}
