"""`Replicator`: replicates a store in a directory to object storage, continuously. `Progress` and `Lag` report on it.

It reads the directory next to its writers, and writes one small file there: the address of the replica (metadata.py).
The replica itself records the progress, as the end of each partition. So a replicator can be killed at any time, and
the next one continues there. A round:

1. Committed offsets are read first and shipped last, so that a group is never ahead of the records.
2. Topics are created and changed as in the directory, with the same ids.
3. The next batches of each partition become one commit, which names the expected end of each partition. A partition
   with another end was shipped by another process.

Before the first batch of a partition, even if there is nothing to ship, and whenever its end is not the expected one,
the last batch of the replica is compared with the directory's. Records that differ, or were truncated in the directory,
are never overwritten. The rest of the store continues.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, NamedTuple

from ...clock import Stopwatch, now_ms
from ...closing import Closing
from ...errors import AmbiguousAppend, CorruptBatch, ImportMismatch, OffsetOutOfRange, StorageError, TopicNotFound
from ...log.log import Log
from ..base import TopicPartition
from ..directory.replica import ReplicaAddress
from ..directory.store import DirectoryStore
from ..directory.topic import DirectoryTopic
from ..objects.bucket import Unanswered, public_options
from ..objects.session import StoreSession, rejection
from ..objects.state import Outcome, State
from ..objects.store import ObjectStore
from . import metadata
from .metadata import changed_documents, changed_offsets, record_address, topic_actions
from .points import Points
from .shipment import ReplicaPartition, Shipment, advance, checked, cut_below, filled, is_same_batch, move_start


class Lag(NamedTuple):
    """The records of a topic that are not copied yet."""

    topic: str
    records: int
    #: Approximate: estimated from the size of the partition.
    size_bytes: int
    #: Age of the oldest record that is not copied.
    seconds: float


@dataclass(slots=True)
class Progress:
    """Work done so far, and the remaining lag."""

    rounds: int = 0
    records: int = 0
    size_bytes: int = 0
    #: Lag of every topic, also of topics that are up to date.
    lags: dict[str, Lag] = field(default_factory=dict)
    #: Reasons why something could not be copied, by topic, or by topic and partition.
    problems: dict[str, str] = field(default_factory=dict)
    #: Number of offsets deleted at the source before they were copied.
    lost: int = 0

    @property
    def lag(self) -> Lag:
        all_ = self.lags.values()
        return Lag(
            "all topics",
            sum(each.records for each in all_),
            sum(each.size_bytes for each in all_),
            max((each.seconds for each in all_), default=0.0),
        )


#: Approximate size of a shipment, and of one partition's part in it.
SHIPMENT_BYTES, PART_BYTES = 32 << 20, 8 << 20
#: Polling intervals for new records, and for other changes of the replica and of topics.
POLL_S, LOOK_S = 0.5, 2.0
#: Number of unchanged partitions that are compared in a round: each costs a request, once.
_COMPARED = 20
#: Maximum pause before retrying a bucket that does not answer.
_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class Options:
    """Scope of a replica."""

    #: Only these topics; all topics if empty.
    topics: frozenset[str] = frozenset()
    #: True if the replica drops the records that retention drops at the source.
    mirror_retention: bool = False
    #: True if the replica deletes the topics and groups that are deleted at the source.
    delete: bool = False
    #: True if users, their password hashes and ACLs are copied.
    registry: bool = False


class Replicator(Closing):
    """Replicates one store. Not thread-safe; several processes may replicate the same store at once."""

    def __init__(
        self,
        path: str | PathLike[str],
        url: str,
        *,
        given: Options | None = None,
        options: Mapping[str, str] | None = None,
        maintenance_interval_s: float | None = 60.0,
    ) -> None:
        self._given = Options() if given is None else given
        self._source = DirectoryStore.open(path, "r")
        try:
            self._store = ObjectStore.open(url, options=options, maintenance_interval_s=maintenance_interval_s)
        except BaseException:
            self._source.close()
            raise
        self._session: StoreSession = self._store._session
        self._points = Points(self._session)
        self.progress = Progress()
        #: The known partitions of the replica; empty if they have to be read.
        self._places: dict[TopicPartition, ReplicaPartition] = {}
        self._topics: list[DirectoryTopic] = []
        #: Partitions whose last batch was compared, and how many unchanged ones may be compared in this round.
        self._compared: set[TopicPartition] = set()
        self._most_compared = self._may_compare = _COMPARED
        self._looked: Stopwatch | None = None
        self._turn = 0
        #: True if the last shipment was so large that the next one follows at once.
        self._is_full = False
        #: True if a partition has to be read again at once.
        self._is_late = False
        #: The condition for writing to the replica.
        self._still: dict[str, object] = {}
        #: Committed offsets and partition ends when offsets were last shipped.
        self._beside: object = None
        #: When documents were last compared.
        self._documents: Stopwatch | None = None
        metadata.claim_copy(self._session, self._source.id, self._source.path)
        #: The address to record in the directory.
        self._address = ReplicaAddress(url, public_options(options or {}))

    def close(self) -> None:
        try:
            self._source.close()
        finally:
            self._store.close()

    # --- rounds

    def run(
        self,
        *,
        once: bool = False,
        stopped: threading.Event | None = None,
        on_round: Callable[[Progress], None] = lambda progress: None,
    ) -> Progress:
        """Replicate until `stopped` is set or, with `once`, until everything present at the start was shipped. A bucket
        that does not answer is retried, except with `once`."""
        ended = threading.Event() if stopped is None else stopped
        goal: dict[TopicPartition, int] | None = None
        pause_s = POLL_S
        self._most_compared = sys.maxsize if once else _COMPARED
        while not ended.is_set():
            try:
                moved = self.round()
            except (Unanswered, AmbiguousAppend) as error:
                if once:
                    raise
                self._looked = None  # an unanswered commit may be stored
                self.progress.problems["the replica"] = str(error)
                on_round(self.progress)
                ended.wait(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                continue
            pause_s = POLL_S
            on_round(self.progress)
            goal = self._ends() if goal is None else goal
            if once and (not moved or self._has_reached(goal)):
                break
            if not once and not self._is_full:  # otherwise a busy source would cause continuous commits
                ended.wait(POLL_S)
        self._record()
        self._points.keep()
        return self.progress

    def _ends(self) -> dict[TopicPartition, int]:
        offsets = [(each.name, each.offsets()) for each in self._topics]
        return {(name, number): each.next for name, found in offsets for number, each in found.items()}

    def _has_reached(self, goal: Mapping[TopicPartition, int]) -> bool:
        left = [
            partition
            for partition, end in goal.items()
            if partition not in self._places or self._places[partition].end < end
        ]
        return not self._is_late and all(f"{topic}/{number}" in self.progress.problems for topic, number in left)

    def round(self) -> bool:
        """Ship new records up to a limit, and return whether there may be more."""
        if self._looked is None or self._looked.elapsed_s >= LOOK_S:
            self._look()
        offsets = {group: self._source.groups._offsets.of(group) for group in self._source.groups._offsets.groups()}
        shipment, self._is_late = Shipment(self._still), False
        self._may_compare = self._most_compared
        taken: dict[TopicPartition, ReplicaPartition] = {}
        for topic in self._rotated():
            self._take_topic(topic, shipment, taken)
        ends = {(place.topic_id, place.partition): place.end for place in {**self._places, **taken}.values()}
        if (offsets, ends) != self._beside:
            shipment.actions += changed_offsets(self._session, self._topics, offsets, ends, delete=self._given.delete)
        if self._given.registry and self._looked is not None and self._looked is not self._documents:
            shipment.actions += changed_documents(self._session, self._source)
            self._documents = self._looked
        if not shipment or self._commit(shipment, taken):
            self._beside = offsets, ends
        self._is_full = shipment.size_bytes >= PART_BYTES
        self.progress.rounds += 1
        self.progress.lags = self.lags()
        self._points.keep_sometimes()
        return bool(taken) or self._is_late

    def _commit(self, shipment: Shipment, taken: Mapping[TopicPartition, ReplicaPartition]) -> bool:
        outcomes = shipment.commit(self._session)
        if all("ok" in each for each in outcomes):
            self._places.update(taken)
            self.progress.records += shipment.records
            self.progress.size_bytes += shipment.size_bytes
            return True
        self._looked = None  # changed by another process: look again and compare
        self._compared.clear()
        self._note_rejections(outcomes)
        return False

    def _note_rejections(self, outcomes: Iterable[Outcome]) -> None:
        for each in outcomes:
            if "no" in each and each["no"][0] not in ("OffsetMismatch", "Changed", "TopicNotFound", "TopicExists"):
                self.progress.problems["the replica"] = str(rejection(*each["no"]))

    def _rotated(self) -> list[DirectoryTopic]:
        """Return the topics, starting with a different one each time, so that a busy topic does not starve the
        others."""
        self._turn += 1
        at = self._turn % max(len(self._topics), 1)
        return self._topics[at:] + self._topics[:at]

    # --- both stores

    def _look(self) -> None:
        """Read the topics of both stores, and the ends of the replica's partitions."""
        self._looked = Stopwatch()
        self.progress.problems.clear()
        self._still = metadata.still_a_copy(self._session, self._source.id)
        wanted = [each for each in self._source if not self._given.topics or each.name in self._given.topics]
        ids = {each.id for each in self._source}
        request, problems = topic_actions(self._session, wanted, self._given, ids)
        for name in self._given.topics - {each.name for each in wanted}:
            problems[name] = f"there is no topic {name} in {self._source.path}"
        self.progress.problems.update(problems)
        for actions in request:
            outcome = self._session.submit([self._still, *actions]).result()
            if "no" in outcome:
                self._looked = None
                self._note_rejections([outcome])
        self._topics = [each for each in wanted if each.name not in problems]
        self._places = self._session.look(self._read_places, fresh=True)
        self._record()

    def _record(self) -> None:
        """Record the address of the replica in the directory, if the replica has everything it needs."""
        record_address(self._source, self._address, self._places, is_whole=not self._given.topics)

    def _read_places(self, state: State) -> dict[TopicPartition, ReplicaPartition]:
        found = {}
        for topic in self._topics:
            entry = state.topic(topic.name)
            if entry is None or entry["id"] != topic.id:
                continue
            for number in range(entry["partitions"]):
                epochs = state.epochs(topic.id, number)
                ends = state.ends(topic.id, number)
                found[topic.name, number] = ReplicaPartition(topic.id, number, *ends, epochs[-1][0] if epochs else 0)
        return found

    # --- partitions

    def lags(self) -> dict[str, Lag]:
        found = {topic.name: Lag(topic.name, 0, 0, 0.0) for topic in self._topics}
        for topic in self._topics:
            for number in range(topic.partitions):
                place = self._places.get((topic.name, number))
                with suppress(TopicNotFound, OffsetOutOfRange, CorruptBatch, StorageError):  # `round` says so
                    if place is not None:
                        found[topic.name] = _sum(found[topic.name], _lag(topic.partition(number), place))
        return found

    def _take_topic(
        self, topic: DirectoryTopic, shipment: Shipment, taken: dict[TopicPartition, ReplicaPartition]
    ) -> None:
        """Add the next batches of each partition."""
        for number in range(topic.partitions):
            partition = topic.name, number
            place = self._places.get(partition)
            if place is None:
                continue  # added a moment ago
            try:
                log = topic.partition(number)
                if shipment.size_bytes < SHIPMENT_BYTES:
                    self._take(partition, place, log, shipment, taken)
            except TopicNotFound:
                self._looked = None
                break
            except OffsetOutOfRange:
                self._is_late = True  # its beginning was dropped at this moment
            except (ImportMismatch, CorruptBatch, StorageError) as error:
                self.progress.problems[f"{topic.name}/{number}"] = str(error)

    def _take(
        self,
        partition: TopicPartition,
        place: ReplicaPartition,
        log: Log,
        shipment: Shipment,
        taken: dict[TopicPartition, ReplicaPartition],
    ) -> None:
        lowest, end = log.lowest_offset, log.visible_offset  # of the whole log, including tiered records
        self._check_history(partition, place, log, end)
        if self._given.mirror_retention and place.start < lowest <= place.end:
            shipment.actions.append(move_start(place, lowest))
            self._places[partition] = place = place._replace(start=lowest)
        is_behind = place.end < end
        if partition not in self._compared and (is_behind or self._may_compare > 0):
            self._may_compare -= not is_behind
            self._compare(partition, place, log)
            self._compared.add(partition)
        if not is_behind:
            return
        is_empty = place.start == place.end
        start = max(place.end, lowest)
        page = log.fetch(start, PART_BYTES, isolation="uncommitted")
        if not page.buffers and is_empty:  # all records are dropped
            shipment.actions.append(advance(place, start))
            taken[partition] = place._replace(start=start, end=start)
            return
        if start > place.end and not is_empty:
            self.progress.lost += start - place.end
        batches, before, after = filled(page.raw, place.end, start, place.epoch), [], []
        if is_empty:  # the first batch may begin before the partition does
            batches = checked(page.raw)
            before += [advance(place, batches.base_offset)] * (batches.base_offset > place.end)
        batches = cut_below(batches, place.end, log.config.max_decompressed_bytes)
        new_start = lowest if is_empty or self._given.mirror_retention else place.start
        if new_start > place.start:
            after.append(move_start(place, new_start))
        shipment.add(place, batches, before=before, after=after)
        epoch = max([place.epoch, *(number for number, _ in batches.epochs())])
        taken[partition] = place._replace(start=max(place.start, new_start), end=batches.next_offset, epoch=epoch)

    def _check_history(self, partition: TopicPartition, place: ReplicaPartition, log: Log, end: int) -> None:
        """Raise `ImportMismatch` if the source has other records below the replica's end."""
        reached = log.epoch_end(place.epoch) if place.end > place.start else end
        if place.end > min(reached, end) and place.end > place.start:
            raise ImportMismatch(
                f"{partition[0]}/{partition[1]} was truncated at the source: it continues from offset "
                f"{min(reached, end)} on, but the replica has records up to {place.end}; nothing is shipped over them. "
                f"Ship to another address, or delete the topic in the replica to ship it again"
            )

    def _compare(self, partition: TopicPartition, place: ReplicaPartition, log: Log) -> None:
        """Raise `ImportMismatch` unless the last batch of the replica, as the bucket has it now, is the source's."""
        last = place.end - 1
        if place.start == place.end or last < log.lowest_offset:
            return
        if not is_same_batch(self._session, log, partition[0], place.topic_id, partition[1], last):
            raise ImportMismatch(
                f"{partition[0]}/{partition[1]} has another record at offset {last} than the replica: the replica was "
                f"written to, or it is one of another store; nothing is shipped over it"
            )


def _lag(log: Log, place: ReplicaPartition) -> Lag:
    end, lowest = log.visible_offset, log.lowest_offset
    records = end - max(place.end, lowest)
    if records <= 0:
        return Lag("", 0, 0, 0.0)
    size = (log.size_bytes + log._remote_bytes) * records // max(end - lowest, 1)
    first = log.fetch(max(place.end, lowest), 1, isolation="uncommitted").raw
    oldest = int.from_bytes(first[27:35], "big", signed=True) if first else -1
    return Lag("", records, size, max(now_ms() - oldest, 0) / 1000 if oldest >= 0 else 0.0)


def _sum(one: Lag, other: Lag) -> Lag:
    return Lag(
        one.topic, one.records + other.records, one.size_bytes + other.size_bytes, max(one.seconds, other.seconds)
    )


def replicate(
    path: str | PathLike[str],
    url: str,
    *,
    once: bool = False,
    topics: Iterable[str] = (),
    mirror_retention: bool = False,
    delete: bool = False,
    registry: bool = False,
    options: Mapping[str, str] | None = None,
    stopped: threading.Event | None = None,
    on_round: Callable[[Progress], None] = lambda progress: None,
    **more: Any,
) -> Progress:
    """Replicate the store in a directory to object storage until `stopped` is set or, with `once`, until it is up to
    date.

    Copies `topics`, or all. With `mirror_retention`, records dropped at the source are dropped in the replica as well;
    with `delete`, so are deleted topics and groups; with `registry`, users and ACLs are copied. `options` are those of
    the address. `on_round` is called after each round with the progress.
    """
    given = Options(frozenset(topics), mirror_retention, delete, registry)
    with Replicator(path, url, given=given, options=options, **more) as replicator:
        return replicator.run(once=once, stopped=stopped, on_round=on_round)
