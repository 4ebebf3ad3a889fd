"""Server-side assignment of partitions (KIP-848), and matching of subscription patterns.

*uniform* is balanced and sticky; consumers of this library share partitions by the same function,
`store.assignment.assign`. *range* gives each member consecutive partitions, the same numbers of every topic if all
topics have as many, so that co-partitioned records meet in one member.

Patterns of clients are matched in linear time by RE2, which Kafka's brokers use as well. It comes with Arrow, which is
imported when a client first sends a pattern, because the import costs memory and startup time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from itertools import accumulate

from ...store.assignment import assign
from ...store.base import TopicPartition

#: Maps the topics of each member, all partitions and their current owners to the partitions of each member.
Assignor = Callable[
    [Mapping[str, Collection[str]], Iterable[TopicPartition], Mapping[TopicPartition, str]],
    dict[str, set[TopicPartition]],
]


def assign_ranges(
    subscriptions: Mapping[str, Collection[str]],
    partitions: Iterable[TopicPartition],
    owners: Mapping[TopicPartition, str],
) -> dict[str, set[TopicPartition]]:
    """Assign consecutive partitions of each topic to the members, in the order of their ids, regardless of current
    owners."""
    plan: dict[str, set[TopicPartition]] = {member: set() for member in subscriptions}
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


def is_pattern(pattern: str) -> bool:
    """Return whether RE2 accepts the regular expression."""
    import pyarrow as pa

    try:
        matching(pattern, ["x"])
    except pa.ArrowInvalid:
        return False
    return True


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that match as a whole."""
    return _matching(pattern, tuple(names))


@lru_cache(64)
def _matching(pattern: str, names: tuple[str, ...]) -> frozenset[str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    # Not `pa.array`: that imports pandas, if it is installed, which takes half a second.
    encoded = [name.encode() for name in names]
    ends = array("i", accumulate(map(len, encoded), initial=0))
    made = pa.StringArray.from_buffers(len(names), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))
    return frozenset(made.filter(pc.match_substring_regex(made, f"^(?:{pattern})$")).to_pylist())
