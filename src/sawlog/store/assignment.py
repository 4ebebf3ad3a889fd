"""Assignment of partitions to the members of a group: a pure function of what every member can see.

`assign` gives every partition to exactly one member that subscribes to its topic, if there is one. It is *balanced*: no
member has two more than another that could take one of them, directly or through others. It is *sticky*: a partition
stays with its owner unless balance requires a move. It is deterministic: members that see the same state compute the
same result without communication. Members that see different states (one has just died, and not all have noticed) may
disagree for a moment. That is harmless, because owning a partition also requires its lock (see
`sawlog.store.directory.members`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

from .base import TopicPartition


def assign(
    subscriptions: Mapping[str, Collection[str]],
    partitions: Iterable[TopicPartition],
    owners: Mapping[TopicPartition, str],
) -> dict[str, set[TopicPartition]]:
    """Return the partitions that each member should own. `subscriptions`: the topics of each live member; `owners`: the
    current owners."""
    plan: dict[str, set[TopicPartition]] = {member: set() for member in sorted(subscriptions)}
    free: list[TopicPartition] = []
    for partition in sorted(partitions):
        owner = owners.get(partition)
        if owner is not None and partition[0] in subscriptions.get(owner, ()):
            plan[owner].add(partition)
        else:
            free.append(partition)
    for partition in free:
        takers = [member for member in plan if partition[0] in subscriptions[member]]
        if takers:
            plan[min(takers, key=lambda member: (len(plan[member]), member))].add(partition)
    while _level(plan, subscriptions):
        pass
    return plan


def _level(plan: dict[str, set[TopicPartition]], subscriptions: Mapping[str, Collection[str]]) -> bool:
    """Move one partition from a member with too many towards one with too few; return whether a move was possible."""
    for giver in sorted(plan, key=lambda member: (-len(plan[member]), member)):
        path = _way_down(plan, subscriptions, giver)
        if path:
            for member, partition, taker in path:
                plan[member].remove(partition)
                plan[taker].add(partition)
            return True
    return False


def _way_down(
    plan: dict[str, set[TopicPartition]], subscriptions: Mapping[str, Collection[str]], giver: str
) -> list[tuple[str, TopicPartition, str]]:
    """Return the shortest chain of moves (from, what, to) that ends at a member with at least two fewer; empty if there
    is none.

    Each member in a chain passes on as many as it gets, so only the first and the last change in number.
    """
    came_from: dict[str, tuple[str, TopicPartition]] = {}
    waiting = deque([giver])
    seen = {giver}
    while waiting:
        member = waiting.popleft()
        if len(plan[member]) <= len(plan[giver]) - 2:
            path: list[tuple[str, TopicPartition, str]] = []
            while member != giver:
                before, partition = came_from[member]
                path.append((before, partition, member))
                member = before
            return path
        # The last partition of each topic that it owns: low numbers stay where they are.
        offers = {partition[0]: partition for partition in sorted(plan[member])}
        for other in sorted(plan.keys() - seen, key=lambda each: (len(plan[each]), each)):
            wanted = [offers[topic] for topic in sorted(offers) if topic in subscriptions[other]]
            if wanted:
                seen.add(other)
                came_from[other] = member, wanted[0]
                waiting.append(other)
    return []
