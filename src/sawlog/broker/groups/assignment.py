"""Who gets which partition, where the broker decides (KIP-848).

*uniform* is balanced and sticky: `topics.groups.assignment`, by which consumers of this library share partitions too.
*range* gives each member neighbouring partitions, the same ones of every topic if all have as many, so that records
that belong together meet in one member.

Regular expressions of clients, matched in linear time: RE2, which Kafka's brokers use as well. Arrow brings it, and
is imported when a client first sends one: it takes memory, and time at the start.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from itertools import accumulate

from ...store.assignment import Share, assign

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


def is_pattern(pattern: str) -> bool:
    """Whether it is a regular expression."""
    import pyarrow as pa

    try:
        matching(pattern, ["x"])
    except pa.ArrowInvalid:
        return False
    return True


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that match as a whole."""
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
