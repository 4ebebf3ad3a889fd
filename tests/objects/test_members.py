"""The fold guarantees for groups that no commit of an earlier owner follows the start of a later one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from sawlog.errors import GroupActive, GroupFenced, SawlogError, TopicNotFound
from sawlog.store.objects.membership import members_of, owners_of
from sawlog.store.objects.state import check_kinds, check_known
from sawlog.store.objects.state.commit import UpgradeRequired
from sawlog.store.objects.store import ObjectStore


class Group:
    """Actions of members, one per commit."""

    def __init__(self, store: ObjectStore) -> None:
        self.session = store._session
        self.topic = store.create_topic("orders", 2)

    def do(self, what: str, member: str | None = None, **fields: Any) -> Any:
        action = {"do": what, "group": "g", **({} if member is None else {"member": member}), **fields}
        return self.session.commit([action])[0]

    def join(self, member: str, *, works: bool = False) -> None:
        self.do("join group", member, name=member, process="", topics=["orders"], timeout_ms=1, time_ms=0, works=works)

    def take(self, member: str, *numbers: int, begin: Any = None) -> Any:
        shares = [[self.topic.id, number] for number in numbers]
        return self.do("take partitions", member, shares=shares, begin=begin or {})

    def give_up(self, member: str, *numbers: int) -> None:
        self.do("give up partitions", member, shares=[[self.topic.id, number] for number in numbers])

    def commit(self, member: str | None, number: int, offset: int, **fields: Any) -> None:
        rows = [[self.topic.id, number, offset, "", 0]]
        self.do("commit offsets", member, offsets=rows, topics={self.topic.id: "orders"}, **fields)

    def beat(self, member: str) -> Any:
        return self.do("beat member", member, time_ms=1)

    @property
    def owners(self) -> dict[tuple[str, int], str]:
        return self.session.look(lambda state: owners_of(state, "g"), fresh=True)

    @property
    def members(self) -> set[str]:
        return set(self.session.look(lambda state: members_of(state, "g"), fresh=True))


@pytest.fixture
def group() -> Iterator[Group]:
    with ObjectStore.open(f"memory://{uuid.uuid4().hex}", maintenance_interval_s=None) as store:
        yield Group(store)


def test_a_partition_has_one_owner(group: Group) -> None:
    group.join("a")
    group.join("b")
    assert group.take("a", 0, 1) == [[], []]
    assert group.take("b", 0) == [None]
    assert group.take("a", 0) == [[]]
    group.give_up("b", 0)  # not its own
    assert group.owners == {("orders", 0): "a", ("orders", 1): "a"}
    group.give_up("a", 0)
    assert group.take("b", 0) == [[]]
    assert group.owners == {("orders", 0): "b", ("orders", 1): "a"}


def test_a_member_that_takes_a_partition_gets_its_committed_offset(group: Group) -> None:
    group.join("a")
    group.take("a", 0)
    group.commit("a", 0, 7)
    group.give_up("a", 0)
    group.join("b")
    assert group.take("b", 0, 1) == [[7, 0], []]


def test_only_the_owner_commits(group: Group) -> None:
    group.join("a")
    group.join("b")
    group.take("a", 0)
    with pytest.raises(GroupFenced):
        group.commit("b", 0, 5)
    with pytest.raises(GroupFenced):
        group.commit("nobody", 0, 5)
    with pytest.raises(GroupActive):
        group.commit(None, 0, 5, outside=True)
    group.commit(None, 1, 5, outside=True)  # nobody owns it
    with pytest.raises(GroupActive):
        group.commit(None, 1, 6, outside=True, alone=True)
    assert group.take("b", 1) == [[5, 0]]


def test_a_member_is_removed_only_without_a_heartbeat(group: Group) -> None:
    group.join("a")
    group.take("a", 0)
    assert group.beat("a") == 1
    with pytest.raises(SawlogError, match="sign of life"):
        group.do("remove member", "a", beat=0)
    assert group.members == {"a"}
    group.do("remove member", "a", beat=1)
    assert (group.members, group.owners) == (set(), {})
    for attempt in (lambda: group.beat("a"), lambda: group.take("a", 0), lambda: group.commit("a", 0, 1)):
        with pytest.raises(GroupFenced):
            attempt()
    group.do("leave group", "a")  # has left already


def test_a_group_begins_once_in_a_topic(group: Group) -> None:
    group.join("a")
    group.join("b")
    start = {group.topic.id: ["orders", [[3, 0], [4, 0]]]}
    later = {group.topic.id: ["orders", [[8, 0], [9, 0]]]}
    assert group.take("a", 0, begin=start) == [[3, 0]]
    assert group.take("b", 1, begin=later) == [[4, 0]]
    with pytest.raises(TopicNotFound):
        group.take("b", 1, begin={"gone": ["other", [[0, 0]]]})


def test_a_group_with_members_is_not_deleted_and_a_deleted_topic_has_no_owners(group: Group) -> None:
    group.join("a")
    group.take("a", 0)
    group.commit("a", 0, 1)
    with pytest.raises(GroupActive):
        group.do("delete group")
    group.session.commit([{"do": "delete topic", "name": "orders", "id": group.topic.id}])
    assert group.owners == {}
    assert group.take("a", 0) == [None]
    group.do("leave group", "a")
    group.do("delete group")


def test_workers_and_consumers_do_not_mix(group: Group) -> None:
    group.join("a")
    with pytest.raises(GroupActive):
        group.join("w", works=True)
    group.do("leave group", "a")
    group.join("w", works=True)
    with pytest.raises(GroupActive):
        group.join("b")
    with pytest.raises(GroupActive):
        group.commit(None, 0, 1, outside=True)


def test_actions_of_members_reject_unknown_fields() -> None:
    with pytest.raises(UpgradeRequired):
        check_known({"do": "join group", "group": "g", "colour": "red"}, "commits/1")
    check_kinds(["member", "owner", "page", "queue"], "checkpoints/1")
