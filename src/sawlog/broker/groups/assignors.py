"""Who gets which partition, where the broker decides (KIP-848).

*uniform* is balanced and sticky: `topics.groups.assignment`, by which consumers of this library share partitions too.
*range* gives each member neighbouring partitions, the same ones of every topic if all have as many, so that records
that belong together meet in one member.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from ...topics.groups.assignment import Share, assign

#: The topics of each member, all partitions, and their owners; what each member should own.
Assignor = Callable[[Mapping[str, Collection[str]], Iterable[Share], Mapping[Share, str]], dict[str, set[Share]]]


def assign_ranges(
    subscriptions: Mapping[str, Collection[str]], partitions: Iterable[Share], owners: Mapping[Share, str]
) -> dict[str, set[Share]]:
    """Neighbouring partitions of each topic. Members are in the order of their ids, whoever had what before."""
    plan: dict[str, set[Share]] = {member: set() for member in subscriptions}
    counts: dict[str, int] = {}
    for topic, number in partitions:
        counts[topic] = max(counts.get(topic, 0), number + 1)
    for topic, count in counts.items():
        takers = sorted(member for member, topics in subscriptions.items() if topic in topics)
        first = 0
        for position, member in enumerate(takers):
            size = count // len(takers) + (position < count % len(takers))
            plan[member].update((topic, number) for number in range(first, first + size))
            first += size
    return plan


#: By Kafka's names; the first is the default.
ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign, "range": assign_ranges}
DEFAULT = "uniform"
