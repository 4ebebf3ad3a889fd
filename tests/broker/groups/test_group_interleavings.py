"""Members that join, sync, leave, die, restart and change their minds in random order: what holds at every step.

A seed is one interleaving. It is part of the test's name, so that it can be run again.
"""

from __future__ import annotations

import random

import pytest

from sawlog.broker.config import BrokerConfig
from sawlog.broker.groups.classic_group import ClassicGroup, GroupState
from sawlog.broker.groups.members import encode_subscription
from sawlog.broker.wire import ErrorCode

from .driven import Client, Clock, protocols

E = ErrorCode
PARTITIONS = 7
SESSION_MS, REBALANCE_MS, NEW_MEMBER_MS = 6_000, 20_000, 40_000
SUBSCRIPTIONS = [
    protocols(*names, subscription=encode_subscription([topic]))
    for names in (("range",), ("range", "sticky"), ("sticky", "range"), ("sticky",))
    for topic in ("orders", "totals")
]


class Play:
    """One group, and all clients that ever were."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = Clock()
        delay_ms = self.random.choice([0, 0, 3_000])
        config = BrokerConfig(
            group_initial_rebalance_delay_ms=delay_ms, group_new_member_timeout_ms=NEW_MEMBER_MS, group_max_size=5
        )
        self.empty = 0
        self.group = ClassicGroup("billing", self.clock, config, self._emptied)
        self.live: list[Client] = []
        #: Silent clients. They keep their assignment, and may try to commit.
        self.gone: list[Client] = []

    def _emptied(self) -> None:
        self.empty += 1

    # --- what a client does

    def start(self, instance: str | None = None) -> None:
        made = Client(
            self.group,
            f"{len(self.live) + len(self.gone)}",
            instance=instance,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocols=self.random.choice(SUBSCRIPTIONS[2:6]),
            knows_ids=self.random.random() < 0.7,
            may_skip=self.random.random() < 0.5,
        )
        self.live.append(made)

    def sync(self, client: Client) -> None:
        """Send SyncGroup, with the assignment if the client leads."""
        assignments = {}
        if client.leads and client.joined is not None:
            members = [id for id, _, _ in client.joined.members]
            assignments = {
                id: bytes(range(number, PARTITIONS, len(members))) for number, id in enumerate(sorted(members))
            }
        client.sync(assignments)

    def stop(self, client: Client) -> None:
        self.live.remove(client)
        self.gone.append(client)

    def step(self) -> None:
        client = self.random.choice(self.live) if self.live else None
        dice = self.random.random()
        if client is None or dice < 0.08:
            self.start(self.random.choice([None, "one", "two"]))
        elif dice < 0.30:
            client.join()
        elif dice < 0.34:
            client.join(protocols=self.random.choice(SUBSCRIPTIONS))
        elif dice < 0.60:
            self.sync(client)
        elif dice < 0.75:
            client.heartbeat()
        elif dice < 0.79:
            client.leave()
        elif dice < 0.83:
            self.stop(client)
        elif dice < 0.86:
            self.group.client_gone(client.answer)
        elif dice < 0.88:
            client.id = ""  # restarted
            client.synced = client.joined = None
        elif dice < 0.90 and self.gone:
            zombie = self.random.choice(self.gone)
            zombie.heartbeat()
            self.group.leave([(zombie.id, None)])
        elif dice < 0.98:
            self.clock.advance(self.random.uniform(0, 3))
        else:
            self.clock.advance(self.random.choice([8, 25, 45]))

    # --- what holds

    def check(self) -> None:
        group, everyone = self.group, self.live + self.gone
        members = list(group._members)
        parked = sum((each.on_joined is not None) + (each.on_synced is not None) for each in members)
        assert sum(each.waits for each in everyone) == parked, "a request was forgotten"
        assert all(each.session.is_set for each in members), "a member that never expires"
        joining = [each for each in members if each.on_joined is not None]
        syncing = [each for each in members if each.on_synced is not None]
        if group.state is GroupState.EMPTY:
            assert not members
        elif group.state is GroupState.PREPARING_REBALANCE:
            assert not syncing
            assert group._joining.is_set or group._gathering.is_set
        elif group.state is GroupState.COMPLETING_REBALANCE:
            assert not joining
            assert group._syncing.is_set
        elif group.state is GroupState.STABLE:
            assert not joining
            assert not syncing
        if members and group.state is not GroupState.PREPARING_REBALANCE:
            assert group.leader in {each.id for each in members}
        self.check_owners(everyone)

    def check_owners(self, everyone: list[Client]) -> None:
        """Of all that believe to own partitions, those whose commits are accepted are of one generation, and no two
        own the same."""
        holders = [
            each
            for each in everyone
            if each.assignment is not None
            and self.group._request_error(each.id, each.instance, each.generation) is E.NONE
        ]
        assert {each.generation for each in holders} <= {self.group.generation}
        ids = {each.id for each in holders}
        owned = [partition for id in ids for partition in next(h.assignment or b"" for h in holders if h.id == id)]
        assert len(owned) == len(set(owned)), "a partition with two owners"

    def settle(self) -> None:
        """From here on everyone behaves. In the end all who live are in one generation and have everything."""
        instances: set[str] = set()
        for client in list(self.live):  # two with one instance id would fence each other forever
            if client.instance is not None and client.instance in instances:
                self.stop(client)
            instances.add(client.instance or "")
        for client in self.live[5:]:
            self.stop(client)
        for client in self.live:
            client.options["protocols"] = SUBSCRIPTIONS[2]
        for _ in range((SESSION_MS + REBALANCE_MS + NEW_MEMBER_MS) // 1000 + 20):
            for client in self.live:
                self.behave(client)
                self.check()
            self.clock.advance(1)
            self.check()
        assert not any(each.waits for each in self.live + self.gone)
        if not self.live:
            assert self.group.state is GroupState.EMPTY
            return
        assert self.group.state is GroupState.STABLE
        assert {each.id for each in self.group.members} == {each.id for each in self.live}
        assert sorted(n for each in self.live for n in each.assignment or b"") == list(range(PARTITIONS))

    def behave(self, client: Client) -> None:
        if client.waits:
            return
        if client.error in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID) or client.sync_error in (
            E.UNKNOWN_MEMBER_ID,
            E.FENCED_INSTANCE_ID,
        ):
            client.id = ""
            client.join()
        elif client.error is not E.NONE or client.sync_error not in (E.NONE, None):
            client.join()
        elif client.synced is None:
            self.sync(client)
        else:
            error = client.heartbeat()
            if error in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID, E.ILLEGAL_GENERATION):
                client.id = ""
            if error is not E.NONE:
                client.join()


def play(seed: int) -> None:
    """One interleaving, from the first member to the last."""
    play = Play(seed)
    try:
        for _ in range(play.random.randrange(20, 150)):
            play.step()
            play.check()
        play.settle()
        for client in list(play.live):
            client.leave()
            play.check()
        play.clock.advance(100)
        assert play.group.state is GroupState.EMPTY
        assert play.group.is_empty
        assert play.empty > 0 or play.group.generation == 0
        assert play.clock.pending == 0, "a timer runs for nobody"
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "sawlog.broker.groups")


@pytest.mark.alternating
def test_at_every_step_of_a_random_interleaving_the_group_is_sound() -> None:
    for seed in range(20):
        play(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 6000, 500))
def test_at_every_step_of_thousands_of_random_interleavings_the_group_is_sound(first: int) -> None:
    for seed in range(first, first + 500):
        play(seed)
