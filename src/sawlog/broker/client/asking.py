"""Questions about partitions, asked of their leaders: offsets, ends of epochs, sizes, pages of batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import OffsetOutOfRange
from ..wire.apis import Key
from ..wire.errors import ErrorCode
from ..wire.schema import Body
from .cluster import Cluster, Place
from .connection import Connection
from .refusals import check

#: What stands for a time in ListOffsets.
LATEST, EARLIEST = -1, -2
#: Isolation: everything that is visible; or up to the first transaction that is not finished, and what was aborted.
_UNCOMMITTED, _COMMITTED = 0, 1


class Listed(NamedTuple):
    """An offset, with the timestamp of its record and its leader epoch if they are known, else -1."""

    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Answered:
    """What a fetch returned for one partition."""

    records: memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    #: (producer id, first offset) of transactions that were aborted, by offset.
    aborted: tuple[tuple[int, int], ...]


def _by_topic(places: Iterable[Place], item: Callable[[Place], Body | int], names: tuple[str, str]) -> list[Body]:
    """Partitions as most requests list them: grouped by topic. `names` are those of the topic and of the list."""
    grouped: defaultdict[str, list[Body | int]] = defaultdict(list)
    for place in places:
        grouped[place[0]].append(item(place))
    return [{names[0]: topic, names[1]: items} for topic, items in grouped.items()]


def list_offsets(cluster: Cluster, wanted: Mapping[Place, int], *, committed: bool = False) -> dict[Place, Listed]:
    """For each partition the offset at a time, or `LATEST` or `EARLIEST`; -1 if no record is that new. The latest
    offset that is `committed` is that of the first transaction that is not finished."""

    def attempt() -> dict[Place, Listed]:
        found: dict[Place, Listed] = {}
        for leader, places in cluster.by_leader(wanted).items():
            found.update(_list(leader, places, wanted, committed))
        return found

    return cluster.patiently(attempt, topics={topic for topic, _ in wanted})


def _list(leader: Connection, places: list[Place], wanted: Mapping[Place, int], committed: bool) -> dict[Place, Listed]:
    topics = _by_topic(
        places, lambda place: {"partition_index": place[1], "timestamp": wanted[place]}, ("name", "partitions")
    )
    isolation = _COMMITTED if committed else _UNCOMMITTED
    answer = leader.call(Key.LIST_OFFSETS, {"replica_id": -1, "isolation_level": isolation, "topics": topics})
    found: dict[Place, Listed] = {}
    for topic in answer["topics"]:
        for part in topic["partitions"]:
            place = topic["name"], part["partition_index"]
            check(part["error_code"], f"partition {place[1]} of {place[0]!r}")
            found[place] = Listed(part["offset"], part["timestamp"], part["leader_epoch"])
    return found


def epoch_end(cluster: Cluster, place: Place, epoch: int) -> int:
    """The first offset after a leader epoch; -1 if the broker does not know it."""

    def attempt() -> int:
        leader = cluster.leader(place)
        if epoch < 0 or not leader.knows(Key.OFFSET_FOR_LEADER_EPOCH):
            return -1
        asked = {"topic": place[0], "partitions": [{"partition": place[1], "leader_epoch": epoch}]}
        answer = leader.call(Key.OFFSET_FOR_LEADER_EPOCH, {"replica_id": -1, "topics": [asked]})
        part: Body = answer["topics"][0]["partitions"][0]
        check(part["error_code"], f"partition {place[1]} of {place[0]!r}")
        return int(part["end_offset"])

    return cluster.patiently(attempt, topics=[place[0]])


def sizes(cluster: Cluster, places: Iterable[Place]) -> dict[Place, int]:
    """The size in bytes of each partition, as far as brokers say it."""
    wanted = set(places)

    def attempt() -> dict[Place, int]:
        found: dict[Place, int] = {}
        for leader, led in cluster.by_leader(wanted).items():
            if not leader.knows(Key.DESCRIBE_LOG_DIRS):
                continue
            topics = _by_topic(led, lambda place: place[1], ("topic", "partitions"))
            for result in leader.call(Key.DESCRIBE_LOG_DIRS, {"topics": topics})["results"]:
                check(result["error_code"], f"the sizes at {leader.address}")
                for topic in result["topics"]:
                    for part in topic["partitions"]:
                        if not part["is_future_key"]:
                            found[topic["name"], part["partition_index"]] = part["partition_size"]
        return found

    return cluster.patiently(attempt, topics={topic for topic, _ in wanted})


def fetch(
    cluster: Cluster, starts: Mapping[Place, int], *, max_bytes: int, wait_ms: int, committed: bool = True
) -> dict[Place, Answered]:
    """Batches from these offsets on; waits at most `wait_ms` at each leader. `OffsetOutOfRange` if one is not there."""

    def attempt() -> dict[Place, Answered]:
        found: dict[Place, Answered] = {}
        for leader, places in cluster.by_leader(starts).items():
            found.update(_fetch(leader, {place: starts[place] for place in places}, max_bytes, wait_ms, committed))
        return found

    return cluster.patiently(attempt, topics={topic for topic, _ in starts})


def _fetch(
    leader: Connection, starts: Mapping[Place, int], max_bytes: int, wait_ms: int, committed: bool
) -> dict[Place, Answered]:
    topics = _by_topic(
        starts,
        lambda place: {"partition": place[1], "fetch_offset": starts[place], "partition_max_bytes": max_bytes},
        ("topic", "partitions"),
    )
    request = {
        "replica_id": -1,
        "max_wait_ms": wait_ms,
        "min_bytes": 1,
        "max_bytes": max_bytes,
        "isolation_level": _COMMITTED if committed else _UNCOMMITTED,
        "session_epoch": -1,
        "topics": topics,
    }
    answer = leader.call(Key.FETCH, request, wait_s=wait_ms / 1000)
    check(answer["error_code"], f"a fetch from {leader.address}")
    found: dict[Place, Answered] = {}
    for topic in answer["responses"]:
        for part in topic["partitions"]:
            place = topic["topic"], part["partition_index"]
            if part["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise OffsetOutOfRange(
                    starts[place], max(part["log_start_offset"], 0), part["high_watermark"], f"{place[0]}/{place[1]}"
                )
            check(part["error_code"], f"offset {starts[place]} of partition {place[1]} of {place[0]!r}")
            aborted = sorted(
                ((each["producer_id"], each["first_offset"]) for each in part["aborted_transactions"] or ()),
                key=lambda each: each[1],
            )
            found[place] = Answered(
                part["records"] if part["records"] is not None else memoryview(b""),
                part["high_watermark"],
                part["last_stable_offset"],
                part["log_start_offset"],
                tuple(aborted),
            )
    return found
