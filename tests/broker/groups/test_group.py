"""The states of a group of the classic protocol: every transition, with a clock that the test drives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sawlog.broker.config import BrokerConfig
from sawlog.broker.groups.classic_group import ClassicGroup, GroupState
from sawlog.broker.groups.members import encode_subscription
from sawlog.broker.wire import ErrorCode

from .driven import REBALANCE_MS, SESSION_MS, Client, Clock, make_group, protocols, settle

E = ErrorCode
SESSION_S, REBALANCE_S = SESSION_MS / 1000, REBALANCE_MS / 1000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def group(clock: Clock) -> ClassicGroup:
    return make_group(clock)


def two(group: ClassicGroup, **options: object) -> tuple[Client, Client]:
    """Two members of a stable group; the first leads."""
    first, second = Client(group, "first", **options), Client(group, "second", **options)
    first.join()
    settle(first)
    second.join()
    assert first.heartbeat() is E.REBALANCE_IN_PROGRESS
    first.join()
    settle(first, second)
    assert (first.assignment, second.assignment) == (b"first", b"second")
    return first, second


def keep_alive(clock: Clock, seconds: float, *clients: Client) -> None:
    """Advance the clock while these clients send heartbeats."""
    for _ in range(int(seconds)):
        clock.advance(1)
        for each in clients:
            each.heartbeat()


# --- joining


def test_a_single_member_gets_its_generation_at_once_and_leads_it(group: ClassicGroup) -> None:
    client = Client(group)
    joined = client.join()
    assert joined is not None
    assert (joined.error, joined.generation, joined.leader) == (E.NONE, 1, client.id)
    assert [(id, instance) for id, instance, _ in joined.members] == [(client.id, None)]
    assert group.state is GroupState.COMPLETING_REBALANCE
    assert client.sync({client.id: b"all of it"}) is not None
    assert client.assignment == b"all of it"
    assert group.state is GroupState.STABLE


def test_a_new_dynamic_member_is_told_its_id_first(group: ClassicGroup) -> None:
    answers = []
    request = Client(group, "reader").request()
    group.join(request, answers.append)
    assert answers[0].error is E.MEMBER_ID_REQUIRED
    assert answers[0].member_id.startswith("reader-")
    assert group.state is GroupState.EMPTY
    assert not group.is_empty
    group.join(replace(request, member_id=answers[0].member_id), answers.append)
    assert answers[1].error is E.NONE
    assert answers[1].member_id == answers[0].member_id


def test_an_old_client_and_a_static_member_join_without_that(group: ClassicGroup) -> None:
    answers = []
    group.join(replace(Client(group).request(), knows_ids=False), answers.append)
    group.join(Client(group, instance="i").request(), answers.append)
    assert [each.error for each in answers] == [E.NONE]
    assert group.state is GroupState.PREPARING_REBALANCE


def test_an_id_that_is_not_used_in_time_is_forgotten(clock: Clock) -> None:
    empty = []
    group = ClassicGroup("billing", clock, BrokerConfig(), lambda: empty.append(True))
    answers = []
    request = Client(group).request()
    group.join(request, answers.append)
    clock.advance(SESSION_S + 1)
    assert empty == [True]
    assert group.is_empty
    group.join(replace(request, member_id=answers[0].member_id), answers.append)
    assert answers[1].error is E.UNKNOWN_MEMBER_ID


def test_a_generation_waits_for_those_who_were_given_an_id(clock: Clock, group: ClassicGroup) -> None:
    first = Client(group)
    answers = []
    request = Client(group).request()
    group.join(request, answers.append)
    assert first.join() is None, "the other one is about to come back"
    group.join(replace(request, member_id=answers[0].member_id), answers.append)
    assert first.error is E.NONE
    assert answers[1].error is E.NONE
    assert group.generation == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"session_timeout_ms": 5_999}, E.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, E.INVALID_SESSION_TIMEOUT),
        ({"protocols": ()}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, E.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_request_that_no_group_accepts_is_refused(group: ClassicGroup, options: dict, error: ErrorCode) -> None:
    client = Client(group, **options)
    client.join()
    assert client.error is error
    assert group.is_empty


def test_an_unknown_id_is_refused_in_every_state(group: ClassicGroup) -> None:
    stranger = Client(group)
    stranger.id = "nobody"
    assert stranger.join() is not None
    assert stranger.error is E.UNKNOWN_MEMBER_ID
    member = Client(group)
    member.join()
    stranger.join()
    assert stranger.error is E.UNKNOWN_MEMBER_ID
    settle(member)
    stranger.join()
    assert stranger.error is E.UNKNOWN_MEMBER_ID


def test_a_group_that_is_full_takes_no_more(clock: Clock) -> None:
    group = make_group(clock, group_max_size=2)
    first, _ = two(group)
    third = Client(group)
    third.join()
    assert third.error is E.GROUP_MAX_SIZE_REACHED
    first.join()
    assert first.error is None, "who is in it may join again"


def test_a_member_of_another_kind_is_refused(group: ClassicGroup) -> None:
    Client(group).join()
    other = Client(group, protocol_type="connect")
    other.join()
    assert other.error is E.INCONSISTENT_GROUP_PROTOCOL
    third = Client(group, protocols=protocols("roundrobin"))
    third.join()
    assert third.error is E.INCONSISTENT_GROUP_PROTOCOL


# --- which protocol


@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        ([["range", "sticky"], ["sticky", "range"], ["sticky", "range"]], "sticky"),
        ([["range", "sticky"], ["sticky"]], "sticky"),
        ([["range", "sticky"], ["sticky", "range"]], "range"),
        ([["a", "b", "c"], ["c", "b"], ["b", "c"]], "b"),
    ],
)
def test_the_protocol_that_most_prefer_and_all_support_is_chosen(
    group: ClassicGroup, preferences: list[list[str]], chosen: str
) -> None:
    clients = [Client(group, f"{n}", protocols=protocols(*names)) for n, names in enumerate(preferences)]
    clients[0].join()
    for each in clients[1:]:
        each.join()
    clients[0].join()
    assert {each.joined.protocol for each in clients if each.joined} == {chosen}
    assert group.protocol == chosen


def test_a_member_may_change_its_protocols_as_long_as_one_is_common(group: ClassicGroup) -> None:
    first, second = two(group, protocols=protocols("range", "sticky"))
    second.join(protocols=protocols("sticky"))
    assert second.error is None
    first.join(protocols=protocols("range"))
    assert first.error is E.INCONSISTENT_GROUP_PROTOCOL
    first.join(protocols=protocols("sticky", "range"))
    assert group.protocol == "sticky"


# --- the second member


def test_a_second_member_makes_the_first_join_again(group: ClassicGroup) -> None:
    first, second = two(group)
    assert group.generation == 2
    assert first.leads
    assert not second.leads
    assert second.joined is not None
    assert second.joined.members == (), "only the leader is told of all"
    assert first.joined is not None
    assert {id for id, _, _ in first.joined.members} == {first.id, second.id}


def test_a_member_that_does_not_join_in_time_is_removed_and_the_others_go_on(clock: Clock, group: ClassicGroup) -> None:
    first, second = two(group)
    third = Client(group, "third")
    third.join()
    second.join()
    assert third.joined is None
    keep_alive(clock, REBALANCE_S + 1, first)
    assert (second.error, third.error) == (E.NONE, E.NONE)
    assert second.leads, "the first one did not join: another one leads"
    assert first.heartbeat() is E.UNKNOWN_MEMBER_ID
    assert first.sync() is not None
    assert first.sync_error is E.UNKNOWN_MEMBER_ID


def test_a_member_that_dies_while_others_wait_is_removed_when_its_session_expires(
    clock: Clock, group: ClassicGroup
) -> None:
    first, _ = two(group)
    third = Client(group, "third")
    third.join()
    first.join()
    clock.advance(SESSION_S - 1)
    assert first.joined is None
    clock.advance(2)
    assert (first.error, third.error) == (E.NONE, E.NONE)
    assert group.state is GroupState.COMPLETING_REBALANCE


def test_the_longest_rebalance_timeout_counts(clock: Clock, group: ClassicGroup) -> None:
    first, _ = Client(group, "first", rebalance_timeout_ms=90_000), None
    first.join()
    settle(first)
    second = Client(group, "second", rebalance_timeout_ms=1_000)
    second.join()
    keep_alive(clock, 89, first)
    assert second.joined is None
    keep_alive(clock, 2, first)
    assert second.error is E.NONE


def test_a_member_that_waits_does_not_expire(clock: Clock, group: ClassicGroup) -> None:
    first, second = two(group)
    third = Client(group, "third")
    third.join()
    second.join()
    keep_alive(clock, 3 * SESSION_S, first)
    assert second.joined is None
    first.join()
    assert (first.error, second.error, third.error) == (E.NONE,) * 3


def test_a_new_member_waits_for_a_limited_time(clock: Clock) -> None:
    group = make_group(clock, group_new_member_timeout_ms=30_000)
    first = Client(group, "first")
    first.join()
    settle(first)
    second = Client(group, "second")
    second.join()
    keep_alive(clock, 31, first)
    assert second.error is E.UNKNOWN_MEMBER_ID
    first.join()
    assert first.joined is not None
    assert [id for id, _, _ in first.joined.members] == [first.id]


def test_a_client_that_gave_up_before_it_knew_its_id_is_not_waited_for(group: ClassicGroup) -> None:
    first = Client(group, "first")
    first.join()
    settle(first)
    gone = Client(group, "gone", knows_ids=False)
    gone.join()
    group.client_gone(gone.answer)
    assert gone.error is E.UNKNOWN_MEMBER_ID
    first.join()
    assert first.joined is not None
    assert [id for id, _, _ in first.joined.members] == [first.id]


def test_a_client_that_knows_its_id_may_come_back(group: ClassicGroup) -> None:
    first = Client(group, "first")
    first.join()
    settle(first)
    second = Client(group, "second")
    second.join()
    group.client_gone(second.answer)
    assert second.join() is None, "the request that was given up is answered, the new one waits"
    assert second.waits == 1
    first.join()
    assert second.error is E.NONE


# --- joining again


def test_a_follower_without_changes_learns_the_current_generation(group: ClassicGroup) -> None:
    first, second = two(group)
    second.join()
    assert (second.error, second.generation) == (E.NONE, 2)
    assert group.state is GroupState.STABLE
    assert second.sync() is not None
    assert second.assignment == b"second"
    assert first.heartbeat() is E.NONE


def test_the_leader_asks_for_a_rebalance_by_joining_again(group: ClassicGroup) -> None:
    first, second = two(group)
    assert first.join() is None
    assert second.heartbeat() is E.REBALANCE_IN_PROGRESS


def test_a_new_subscription_is_a_rebalance(group: ClassicGroup) -> None:
    first, second = two(group)
    assert second.join(protocols=protocols(subscription=encode_subscription(["orders", "totals"]))) is None
    assert first.heartbeat() is E.REBALANCE_IN_PROGRESS


def test_joining_again_while_the_leader_assigns_repeats_the_answer(group: ClassicGroup) -> None:
    first, second = Client(group, "first"), Client(group, "second")
    first.join()
    second.join()
    first.join()
    assert group.state is GroupState.COMPLETING_REBALANCE
    first.join()
    second.join()
    assert (first.generation, second.generation) == (2, 2)
    assert first.joined is not None
    assert len(first.joined.members) == 2
    settle(first, second)
    assert second.assignment == b"second"


def test_a_new_subscription_while_the_leader_assigns_begins_again(group: ClassicGroup) -> None:
    first, second, third = (Client(group, name) for name in ("first", "second", "third"))
    first.join()
    second.join()
    third.join()
    first.join()
    third.sync()
    assert second.join(protocols=protocols(subscription=b"other")) is None
    assert third.sync_error is E.REBALANCE_IN_PROGRESS


# --- syncing


def test_followers_wait_for_the_leader_and_whom_it_forgets_gets_nothing(group: ClassicGroup) -> None:
    first, second = Client(group, "first"), Client(group, "second")
    first.join()
    second.join()
    first.join()
    assert second.sync() is None
    first.sync({first.id: b"everything"})
    assert (first.assignment, second.assignment) == (b"everything", b"")


def test_a_sync_of_another_generation_or_protocol_is_refused(group: ClassicGroup) -> None:
    first, second = Client(group, "first"), Client(group, "second")
    first.join()
    second.join()
    first.join()
    for changes, error in (
        ({"generation": 1}, E.ILLEGAL_GENERATION),
        ({"generation": 3}, E.ILLEGAL_GENERATION),
        ({"member_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
        ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol": "sticky"}, E.INCONSISTENT_GROUP_PROTOCOL),
    ):
        second.sync(**changes)
        assert second.sync_error is error
    assert second.sync(protocol_type="consumer", protocol="range") is None


def test_a_sync_while_members_join_is_told_so(group: ClassicGroup) -> None:
    first, second = two(group)
    Client(group).join()
    second.sync()
    assert second.sync_error is E.REBALANCE_IN_PROGRESS
    assert first.waits == 0


def test_no_member_waits_for_a_leader_that_left_before_assigning(group: ClassicGroup) -> None:
    first, second, third = (Client(group, name) for name in ("first", "second", "third"))
    first.join()
    second.join()
    third.join()
    first.join()
    second.sync()
    third.sync()
    assert first.leave() is E.NONE
    assert (second.sync_error, third.sync_error) == (E.REBALANCE_IN_PROGRESS,) * 2
    second.join()
    third.join()
    settle(second, third)
    assert group.state is GroupState.STABLE
    assert {second.assignment, third.assignment} == {b"second", b"third"}


def test_a_leader_that_dies_before_it_assigned_is_removed(clock: Clock, group: ClassicGroup) -> None:
    first, second = Client(group, "first"), Client(group, "second")
    first.join()
    second.join()
    first.join()
    second.sync()
    clock.advance(SESSION_S + 1)
    assert second.sync_error is E.REBALANCE_IN_PROGRESS
    second.join()
    assert second.leads


def test_a_member_that_does_not_request_its_assignment_is_removed_despite_heartbeats(
    clock: Clock, group: ClassicGroup
) -> None:
    first, second = Client(group, "first"), Client(group, "second")
    first.join()
    second.join()
    first.join()
    first.sync({})
    keep_alive(clock, REBALANCE_S - 1, first, second)
    assert second.heartbeat() is E.NONE
    keep_alive(clock, 2, first)
    assert second.heartbeat() is E.UNKNOWN_MEMBER_ID
    assert first.heartbeat() is E.REBALANCE_IN_PROGRESS


# --- heartbeats, leaving


def test_heartbeats_tell_what_a_member_has_to_know(group: ClassicGroup) -> None:
    first, second = two(group)
    assert first.heartbeat() is E.NONE
    assert group.heartbeat(first.id, None, 1) is E.ILLEGAL_GENERATION
    assert group.heartbeat("nobody", None, 2) is E.UNKNOWN_MEMBER_ID
    third = Client(group)
    third.join()
    assert second.heartbeat() is E.REBALANCE_IN_PROGRESS
    first.join()
    second.join()
    assert group.state is GroupState.COMPLETING_REBALANCE
    assert second.heartbeat() is E.NONE


def test_a_member_without_heartbeats_expires_and_the_others_take_over(clock: Clock, group: ClassicGroup) -> None:
    first, second = two(group)
    keep_alive(clock, SESSION_S - 1, second)
    assert group.state is GroupState.STABLE
    keep_alive(clock, 2, second)
    assert first.heartbeat() is E.UNKNOWN_MEMBER_ID
    assert second.heartbeat() is E.REBALANCE_IN_PROGRESS
    second.join()
    assert second.leads
    assert second.joined is not None
    assert [id for id, _, _ in second.joined.members] == [second.id]


def test_commits_keep_a_session_alive(clock: Clock, group: ClassicGroup) -> None:
    client = Client(group)
    client.join()
    settle(client)
    for _ in range(5):
        clock.advance(SESSION_S - 1)
        assert client.commit() is E.NONE


def test_the_last_member_that_leaves_makes_the_group_empty(clock: Clock) -> None:
    empty = []
    group = ClassicGroup("billing", clock, BrokerConfig(), lambda: empty.append(True))
    first, second = two(group)
    assert first.leave() is E.NONE
    assert empty == []
    second.leave()
    assert empty == [True]
    assert group.state is GroupState.EMPTY
    assert group.leader is None
    assert clock.pending == 0, "no timer is left"
    third = Client(group)
    third.join()
    assert third.generation == group.generation > 2


def test_a_member_that_leaves_twice_or_never_joined_gets_an_error(group: ClassicGroup) -> None:
    first, _ = two(group)
    assert group.leave([(first.id, None), (first.id, None), ("nobody", None)]) == [
        E.NONE,
        E.UNKNOWN_MEMBER_ID,
        E.UNKNOWN_MEMBER_ID,
    ]


def test_leaving_with_an_id_that_was_never_used_lets_the_others_go_on(group: ClassicGroup) -> None:
    answers = []
    group.join(Client(group).request(), answers.append)
    first = Client(group)
    assert first.join() is None
    assert group.leave([(answers[0].member_id, None)]) == [E.NONE]
    assert first.error is E.NONE


def test_a_member_that_leaves_while_it_waits_is_answered(group: ClassicGroup) -> None:
    first, second = two(group)
    first.join()
    assert first.waits == 1
    first.leave()
    assert first.error is E.UNKNOWN_MEMBER_ID
    second.join()
    assert second.error is E.NONE


def test_the_end_of_a_group_answers_everyone(clock: Clock, group: ClassicGroup) -> None:
    first, second = two(group)
    third = Client(group)
    third.join()
    first.join()
    group.end(E.COORDINATOR_NOT_AVAILABLE)
    assert (first.error, third.error) == (E.COORDINATOR_NOT_AVAILABLE,) * 2
    assert second.heartbeat() is E.COORDINATOR_NOT_AVAILABLE
    assert group.leave([(second.id, None)]) == [E.COORDINATOR_NOT_AVAILABLE]
    second.join()
    assert second.error is E.COORDINATOR_NOT_AVAILABLE
    assert clock.pending == 0


# --- static members


def static_pair(group: ClassicGroup) -> tuple[Client, Client]:
    first, second = Client(group, "first", instance="one"), Client(group, "second", instance="two")
    first.join()
    second.join()
    first.join()
    settle(first, second)
    return first, second


def restarted(client: Client, **options: object) -> Client:
    return Client(client.group, client.name, instance=client.instance, **{**client.options, **options})


def test_a_static_member_that_restarts_keeps_its_partitions_without_a_rebalance(
    clock: Clock, group: ClassicGroup
) -> None:
    first, second = static_pair(group)
    clock.advance(SESSION_S - 1)
    first.heartbeat()
    again = restarted(second)
    joined = again.join()
    assert joined is not None
    assert (joined.error, joined.generation, joined.skip_assignment) == (E.NONE, 2, False)
    assert again.id != second.id
    assert again.sync() is not None
    assert again.assignment == b"second"
    assert first.heartbeat() is E.NONE
    clock.advance(SESSION_S - 1)
    assert again.heartbeat() is E.NONE


def test_the_one_with_the_old_id_is_fenced(group: ClassicGroup) -> None:
    _, second = static_pair(group)
    again = restarted(second)
    again.join()
    assert second.heartbeat() is E.FENCED_INSTANCE_ID
    assert second.commit() is E.FENCED_INSTANCE_ID
    assert second.leave() is E.FENCED_INSTANCE_ID
    second.sync()
    assert second.sync_error is E.FENCED_INSTANCE_ID
    second.join()
    assert second.error is E.FENCED_INSTANCE_ID
    assert again.heartbeat() is E.NONE


def test_a_static_leader_that_restarts_is_told_not_to_assign(group: ClassicGroup) -> None:
    first, second = static_pair(group)
    again = restarted(first)
    joined = again.join()
    assert joined is not None
    assert (joined.skip_assignment, joined.leader, len(joined.members)) == (True, again.id, 2)
    again.sync()
    assert again.assignment == b"first"
    older = restarted(first, may_skip=False)
    joined = older.join()
    assert joined is not None
    assert (joined.skip_assignment, joined.members) == (False, ())
    assert joined.leader not in (older.id, second.id)
    assert older.join() is None, "it leads: when it joins again, it asks for a rebalance"


def test_a_static_member_that_comes_back_with_another_subscription_is_a_rebalance(group: ClassicGroup) -> None:
    first, second = static_pair(group)
    again = restarted(second, protocols=protocols(subscription=encode_subscription(["totals"])))
    assert again.join() is None
    assert first.heartbeat() is E.REBALANCE_IN_PROGRESS
    first.join()
    assert again.error is E.NONE


def test_partitions_owned_before_a_restart_do_not_change_the_subscription(group: ClassicGroup) -> None:
    first, second = static_pair(group)
    owned = encode_subscription(["orders"])[:-4] + b"\0\0\0\7sticky!"
    again = restarted(second, protocols=protocols(subscription=owned))
    assert again.join() is not None
    assert first.heartbeat() is E.NONE


def test_a_static_member_that_comes_back_while_the_leader_assigns_begins_again(group: ClassicGroup) -> None:
    first, second = Client(group, "first", instance="one"), Client(group, "second", instance="two")
    first.join()
    second.join()
    first.join()
    second.sync()
    again = restarted(second)
    assert again.join() is None
    assert second.sync_error is E.FENCED_INSTANCE_ID
    first.sync({second.id: b"lost"})
    assert first.sync_error is E.REBALANCE_IN_PROGRESS
    first.join()
    settle(first, again)
    assert again.assignment == b"second"


def test_a_duplicate_that_joins_while_the_first_waits_fences_it(group: ClassicGroup) -> None:
    first, second = static_pair(group)
    first.join()
    assert first.waits == 1
    twin = restarted(first)
    twin.join()
    assert first.error is E.FENCED_INSTANCE_ID
    second.join()
    assert twin.error is E.NONE


def test_a_static_member_that_is_away_is_not_removed_by_a_rebalance(clock: Clock, group: ClassicGroup) -> None:
    long = {"session_timeout_ms": 1_000_000, "rebalance_timeout_ms": 5_000}
    first, second = (Client(group, name, instance=name, **long) for name in ("first", "second"))
    first.join()
    second.join()
    first.join()
    settle(first, second)
    third = Client(group, "third", **long)
    third.join()
    first.join()
    clock.advance(6)
    assert (first.error, third.error) == (E.NONE, E.NONE)
    assert first.joined is not None
    assert len(first.joined.members) == 3, "its partitions are kept for it"
    settle(first, third)
    again = restarted(second)
    again.join()
    assert again.sync() is not None
    assert third.heartbeat() is E.NONE


def test_a_static_leader_that_is_away_hands_over(clock: Clock, group: ClassicGroup) -> None:
    long = {"session_timeout_ms": 1_000_000, "rebalance_timeout_ms": 5_000}
    first, second = (Client(group, name, instance=name, **long) for name in ("first", "second"))
    first.join()
    second.join()
    first.join()
    settle(first, second)
    assert second.join(protocols=protocols(subscription=b"new")) is None
    clock.advance(6)
    assert (second.error, second.leads) == (E.NONE, True)
    settle(second)
    assert second.assignment == b"second"


def test_static_members_of_which_none_is_back_are_waited_for(clock: Clock, group: ClassicGroup) -> None:
    long = {"session_timeout_ms": 1_000_000, "rebalance_timeout_ms": 5_000}
    first, second = (Client(group, name, instance=name, **long) for name in ("first", "second"))
    third = Client(group, "third", rebalance_timeout_ms=5_000)
    for each in (first, second, third, first, second):
        each.join()
    settle(first, second, third)
    third.leave()
    clock.advance(60)
    assert group.state is GroupState.PREPARING_REBALANCE
    second.join()
    assert second.joined is None, "the other one may come as well"
    clock.advance(6)
    assert (second.error, second.leads) == (E.NONE, True)


def test_a_static_member_that_stays_away_expires(clock: Clock, group: ClassicGroup) -> None:
    first, _ = static_pair(group)
    keep_alive(clock, SESSION_S + 1, first)
    assert first.heartbeat() is E.REBALANCE_IN_PROGRESS
    first.join()
    assert first.joined is not None
    assert len(first.joined.members) == 1


def test_an_administrator_removes_a_static_member_by_its_instance_id(group: ClassicGroup) -> None:
    first, second = static_pair(group)
    assert group.leave([("", "two"), ("", "three")]) == [E.NONE, E.UNKNOWN_MEMBER_ID]
    assert second.heartbeat() is E.UNKNOWN_MEMBER_ID
    assert first.heartbeat() is E.REBALANCE_IN_PROGRESS


# --- waiting for first members


def test_first_members_are_waited_for_if_the_settings_say_so(clock: Clock) -> None:
    group = make_group(clock, group_initial_rebalance_delay_ms=3_000)
    first, second = Client(group, "first"), Client(group, "second")
    first.join()
    clock.advance(2)
    second.join()
    clock.advance(1.5)
    assert first.joined is None, "extended, because another one came"
    clock.advance(3)
    assert (first.generation, second.generation) == (1, 1)
    settle(first, second)
    third = Client(group, "third")
    third.join()
    first.join()
    second.join()
    assert third.generation == 2, "only the first generation waits"


def test_first_members_are_not_waited_for_forever(clock: Clock) -> None:
    group = make_group(clock, group_initial_rebalance_delay_ms=3_000)
    clients = [Client(group, f"{n}", rebalance_timeout_ms=10_000) for n in range(20)]
    for each in clients[:5]:
        each.join()
        clock.advance(2.1)
    assert clients[0].generation == 1
    assert clients[4].generation == 1


# --- committing


def test_offsets_are_committed_by_members_of_the_current_generation(group: ClassicGroup) -> None:
    first, second = two(group)
    assert first.commit() is E.NONE
    assert group.commit_error(first.id, None, 1) is E.ILLEGAL_GENERATION
    assert group.commit_error("nobody", None, 2) is E.UNKNOWN_MEMBER_ID
    assert group.commit_error("", None, -1) is E.UNKNOWN_MEMBER_ID, "not from outside while it has members"
    Client(group).join()
    assert second.commit() is E.NONE, "what was read may still be committed"
    first.join()
    second.join()
    assert group.state is GroupState.COMPLETING_REBALANCE
    assert second.commit() is E.REBALANCE_IN_PROGRESS


def test_an_empty_group_takes_commits_from_anybody(group: ClassicGroup) -> None:
    assert group.commit_error("", None, -1) is E.NONE
    assert group.commit_error("any", None, -1) is E.NONE
    assert group.commit_error("any", None, 3) is E.UNKNOWN_MEMBER_ID


def test_a_transaction_commits_with_or_without_a_member(group: ClassicGroup) -> None:
    first, _ = two(group)
    assert group.commit_error("", None, -1, transactional=True) is E.NONE
    assert group.commit_error(first.id, None, 2, transactional=True) is E.NONE
    assert group.commit_error(first.id, None, 1, transactional=True) is E.ILLEGAL_GENERATION
    assert group.commit_error("nobody", None, 2, transactional=True) is E.UNKNOWN_MEMBER_ID


# --- looking


def test_subscriptions_and_assignments_are_shown_when_they_are_settled(group: ClassicGroup) -> None:
    first, second = two(group)
    assert [(each.id, each.client_id, each.assignment) for each in group.members] == [
        (first.id, "first", b"first"),
        (second.id, "second", b"second"),
    ]
    assert {each.subscription for each in group.members} == {encode_subscription(["orders"])}
    assert group.topics == {"orders"}
    first.join()
    assert {each.assignment for each in group.members} == {b""}


def test_a_group_of_another_kind_names_no_topics(group: ClassicGroup) -> None:
    Client(group, protocol_type="connect", protocols=protocols(subscription=b"\0\1")).join()
    assert group.topics is None
