"""How far a replica is: what was copied, and what it lags behind by topic.

`Replicator`: ships a directory's store to object storage, and goes on with what is new.

It reads the directory, beside whoever writes there, and writes one small file to it: where the replica is (address.py).
What is in the bucket says how far it is: the end of each partition. So it can be killed at any time, and the next one
continues there; nothing is noted elsewhere. A round:

1. What groups have committed is read first, and shipped last: a group is never ahead of the records.
2. Topics are created and changed as in the directory, with the same ids.
3. The next batches of each partition become one commit, which names the end that each partition has: one that has
   another end by now was shipped by somebody else.

Before the first batch of a partition, also if there is none to ship, and whenever its end is not the expected one, the
last batch of the replica is compared with the directory's: records that are not the same, or that were truncated in the
directory, are never shipped over. The rest of the store goes on.
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
from ..directory.replica import ReplicaAddress
from ..directory.store import Store
from ..directory.topic import Topic
from ..objects.bucket.bucket import Unanswered
from ..objects.bucket.connecting import public_options
from ..objects.session import Core, rejection
from ..objects.state.state import Outcome, State
from ..objects.store import ObjectStore
from ..objects.topic import ObjectTopic
from . import roles
from .batches import checked, cut_below, filled, same_at
from .metadata import changed_documents, changed_offsets, topic_actions
from .points import Points
from .roles import record
from .shipment import Place, Shipment, advance, move_start


class Lag(NamedTuple):
    """What of a topic is not copied yet."""

    topic: str
    records: int
    #: About so many: what a partition has left is estimated from its size.
    size_bytes: int
    #: How old the oldest record is that is not copied.
    seconds: float


@dataclass(slots=True)
class Progress:
    """What was done since the beginning, and what is left."""

    rounds: int = 0
    records: int = 0
    size_bytes: int = 0
    #: By topic, those that are behind and those that are not.
    lags: dict[str, Lag] = field(default_factory=dict)
    #: What could not be copied, and why: by topic, or by topic and partition.
    problems: dict[str, str] = field(default_factory=dict)
    #: Offsets that were deleted at the source before they were copied.
    lost: int = 0

    @property
    def lag(self) -> Lag:
        """Of all topics together."""
        all_ = self.lags.values()
        return Lag(
            "all topics",
            sum(each.records for each in all_),
            sum(each.size_bytes for each in all_),
            max((each.seconds for each in all_), default=0.0),
        )

    @property
    def is_caught_up(self) -> bool:
        """Whether nothing was left after the last round."""
        return not self.lag.records


#: A shipment is about this large, and what one partition has in it.
SHIPMENT_BYTES, PART_BYTES = 32 << 20, 8 << 20
#: New records are looked for this often; other changes of the replica and of topics less often.
POLL_S, LOOK_S = 0.5, 2.0
#: So many partitions of which nothing is new are compared in a round: each costs a request, once.
_COMPARED = 20
#: How long to wait for a bucket that does not answer, at most.
_LONGEST_PAUSE_S = 30.0

Share = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Options:
    """What a replica follows of its source besides records, topics and groups."""

    #: Only these topics; all of them if it is empty.
    topics: frozenset[str] = frozenset()
    #: Whether what retention drops at the source is dropped in the replica.
    mirror_retention: bool = False
    #: Whether topics and groups that are deleted at the source are deleted in the replica.
    delete: bool = False
    #: Whether users, their passwords' hashes and ACLs are shipped.
    registry: bool = False


class Replicator(Closing):
    """Ships one store. One thread; several processes may do the same at once."""

    def __init__(
        self,
        path: str | PathLike[str],
        url: str,
        *,
        given: Options | None = None,
        options: Mapping[str, str] | None = None,
        upkeep_interval_s: float | None = 60.0,
    ) -> None:
        self._given = Options() if given is None else given
        self._source = Store.open(path, "r")
        try:
            self._store = ObjectStore.open(url, options=options, upkeep_interval_s=upkeep_interval_s)
        except BaseException:
            self._source.close()
            raise
        self._core: Core = self._store.core
        self._points = Points(self._core)
        self.progress = Progress()
        #: The replica as it is known; empty if it has to be looked at.
        self._places: dict[Share, Place] = {}
        self._topics: list[Topic] = []
        #: Partitions whose last batch was compared; and how many more may be, of which nothing is new.
        self._compared: set[Share] = set()
        self._most_compared = self._may_compare = _COMPARED
        self._looked: Stopwatch | None = None
        self._turn = 0
        #: Whether the last shipment was so large that the next one is not waited for.
        self._is_full = False
        #: Whether a partition has to be looked at again at once.
        self._is_late = False
        #: Under which condition the replica is written.
        self._still: dict[str, object] = {}
        #: What groups had committed, and where partitions ended, when offsets were last shipped.
        self._beside: object = None
        #: When documents were last compared.
        self._documents: Stopwatch | None = None
        roles.claim(self._core, self._source.id, self._source.path)
        #: What is recorded in the directory, when it is.
        self._address = ReplicaAddress(url, public_options(options or {}))

    def close(self) -> None:
        """Close both stores."""
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
        """Ship until it is `stopped`; with `once`, until what there is now was shipped. If the bucket does not answer,
        it is tried again; not with `once`."""
        ended = threading.Event() if stopped is None else stopped
        goal: dict[Share, int] | None = None
        pause_s = POLL_S
        self._most_compared = sys.maxsize if once else _COMPARED
        while not ended.is_set():
            try:
                moved = self.round()
            except (Unanswered, AmbiguousAppend) as error:
                if once:
                    raise
                self._looked = None  # a commit without an answer may be stored
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
            if not once and not self._is_full:  # else a busy source would cost a commit every moment
                ended.wait(POLL_S)
        self._record()
        self._points.keep()
        return self.progress

    def _ends(self) -> dict[Share, int]:
        """Where the partitions of the source end now."""
        offsets = [(each.name, each.offsets()) for each in self._topics]
        return {(name, number): each.next for name, found in offsets for number, each in found.items()}

    def _has_reached(self, goal: Mapping[Share, int]) -> bool:
        left = [share for share, end in goal.items() if share not in self._places or self._places[share].end < end]
        return not self._is_late and all(f"{topic}/{number}" in self.progress.problems for topic, number in left)

    def round(self) -> bool:
        """Ship what there is now, up to a limit; whether there may be more."""
        if self._looked is None or self._looked.elapsed_s >= LOOK_S:
            self._look()
        offsets = {group: self._source.groups.offsets.of(group) for group in self._source.groups.offsets.groups()}
        shipment, self._is_late = Shipment(self._still), False
        self._may_compare = self._most_compared
        taken: dict[Share, Place] = {}
        for topic in self._rotated():
            self._take_topic(topic, shipment, taken)
        ends = {(place.topic_id, place.partition): place.end for place in {**self._places, **taken}.values()}
        if (offsets, ends) != self._beside:
            shipment.actions += changed_offsets(self._core, self._topics, offsets, ends, delete=self._given.delete)
        if self._given.registry and self._looked is not None and self._looked is not self._documents:
            shipment.actions += changed_documents(self._core, self._source)
            self._documents = self._looked
        if not shipment or self._commit(shipment, taken):
            self._beside = offsets, ends
        self._is_full = shipment.size_bytes >= PART_BYTES
        self.progress.rounds += 1
        self.progress.lags = self.lags()
        self._points.keep_sometimes()
        return bool(taken) or self._is_late

    def _commit(self, shipment: Shipment, taken: Mapping[Share, Place]) -> bool:
        outcomes = shipment.commit(self._core)
        if all("ok" in each for each in outcomes):
            self._places.update(taken)
            self.progress.records += shipment.records
            self.progress.size_bytes += shipment.size_bytes
            return True
        self._looked = None  # somebody else has changed it: look, and compare
        self._compared.clear()
        self._note_rejections(outcomes)
        return False

    def _note_rejections(self, outcomes: Iterable[Outcome]) -> None:
        for each in outcomes:
            if "no" in each and each["no"][0] not in ("OffsetMismatch", "Changed", "TopicNotFound", "TopicExists"):
                self.progress.problems["the replica"] = str(rejection(*each["no"]))

    def _rotated(self) -> list[Topic]:
        """The topics, another one first each time: a busy one must not keep the others waiting."""
        self._turn += 1
        at = self._turn % max(len(self._topics), 1)
        return self._topics[at:] + self._topics[:at]

    # --- what there is

    def _look(self) -> None:
        """Look at both stores: which topics there are, and where the partitions of the replica end."""
        self._looked = Stopwatch()
        self.progress.problems.clear()
        self._still = roles.still(self._core, self._source.id)
        wanted = [each for each in self._source if not self._given.topics or each.name in self._given.topics]
        ids = {each.id for each in self._source}
        request, problems = topic_actions(self._core, wanted, self._given, ids)
        for name in self._given.topics - {each.name for each in wanted}:
            problems[name] = f"there is no topic {name} in {self._source.path}"
        self.progress.problems.update(problems)
        for actions in request:
            outcome = self._core.submit([self._still, *actions]).result()
            if "no" in outcome:
                self._looked = None
                self._note_rejections([outcome])
        self._topics = [each for each in wanted if each.name not in problems]
        self._places = self._core.look(self._read_places, fresh=True)
        self._record()

    def _record(self) -> None:
        """Let the directory remember the replica, if this one has all that it needs."""
        record(self._source, self._address, self._places, is_whole=not self._given.topics)

    def _read_places(self, state: State) -> dict[Share, Place]:
        found = {}
        for topic in self._topics:
            entry = state.topic(topic.name)
            if entry is None or entry["id"] != topic.id:
                continue
            for number in range(entry["partitions"]):
                epochs = state.epochs(topic.id, number)
                ends = state.ends(topic.id, number)
                found[topic.name, number] = Place(topic.id, number, *ends, epochs[-1][0] if epochs else 0)
        return found

    # --- partitions

    def lags(self) -> dict[str, Lag]:
        """What is not shipped now, by topic."""
        found = {topic.name: Lag(topic.name, 0, 0, 0.0) for topic in self._topics}
        for topic in self._topics:
            for number in range(topic.partitions):
                place = self._places.get((topic.name, number))
                with suppress(TopicNotFound, OffsetOutOfRange, CorruptBatch, StorageError):  # `round` says so
                    if place is not None:
                        found[topic.name] = _sum(found[topic.name], _lag(topic.partition(number), place))
        return found

    def _take_topic(self, topic: Topic, shipment: Shipment, taken: dict[Share, Place]) -> None:
        """Add the next batches of each partition."""
        for number in range(topic.partitions):
            share = topic.name, number
            place = self._places.get(share)
            if place is None:
                continue  # it was added a moment ago
            try:
                log = topic.partition(number)
                if shipment.size_bytes < SHIPMENT_BYTES:
                    self._take(share, place, log, shipment, taken)
            except TopicNotFound:
                self._looked = None
                break
            except OffsetOutOfRange:
                self._is_late = True  # its beginning was dropped at this moment
            except (ImportMismatch, CorruptBatch, StorageError) as error:
                self.progress.problems[f"{topic.name}/{number}"] = str(error)

    def _take(self, share: Share, place: Place, log: Log, shipment: Shipment, taken: dict[Share, Place]) -> None:
        lowest, end = log.lowest_offset, log.visible_offset  # of the log, wherever its records are
        self._check_history(share, place, log, end)
        if self._given.mirror_retention and place.start < lowest <= place.end:
            shipment.actions.append(move_start(place, lowest))
            self._places[share] = place = place._replace(start=lowest)
        is_behind = place.end < end
        if share not in self._compared and (is_behind or self._may_compare > 0):
            self._may_compare -= not is_behind
            self._compare(share, place, log)
            self._compared.add(share)
        if not is_behind:
            return
        is_empty = place.start == place.end
        start = max(place.end, lowest)
        page = log.fetch(start, PART_BYTES, isolation="uncommitted")
        if not page.buffers and is_empty:  # all records are dropped
            shipment.actions.append(advance(place, start))
            taken[share] = place._replace(start=start, end=start)
            return
        if start > place.end and not is_empty:
            self.progress.lost += start - place.end
        batches, before, after = filled(page.raw, place.end, start, place.epoch), [], []
        if is_empty:  # it begins there; the first batch may begin before the partition does
            batches = checked(page.raw)
            before += [advance(place, batches.base_offset)] * (batches.base_offset > place.end)
        batches = cut_below(batches, place.end, log.config.max_decompressed_bytes)
        new_start = lowest if is_empty or self._given.mirror_retention else place.start
        if new_start > place.start:
            after.append(move_start(place, new_start))
        shipment.add(place, batches, before=before, after=after)
        epoch = max([place.epoch, *(number for number, _ in batches.epochs())])
        taken[share] = place._replace(start=max(place.start, new_start), end=batches.next_offset, epoch=epoch)

    def _check_history(self, share: Share, place: Place, log: Log, end: int) -> None:
        """Refuse what is no copy of this partition any more: the source has other records below the replica's end."""
        reached = log.epoch_end(place.epoch) if place.end > place.start else end
        if place.end > min(reached, end) and place.end > place.start:
            raise ImportMismatch(
                f"{share[0]}/{share[1]} was truncated at the source: it continues from offset {min(reached, end)} on, "
                f"but the replica has records up to {place.end}; nothing is shipped over them. Ship to another "
                f"address, or delete the topic in the replica to ship it again"
            )

    def _compare(self, share: Share, place: Place, log: Log) -> None:
        """The last batch of the replica, as the bucket has it now, must be the source's."""
        last = place.end - 1
        if place.start == place.end or last < log.lowest_offset:
            return
        replica = ObjectTopic(self._core, share[0], place.topic_id).partition(share[1]).uncached()
        theirs = replica.fetch(last, 1, isolation="uncommitted").raw
        if not same_at(log.fetch(last, 1, isolation="uncommitted").raw, theirs, last):
            raise ImportMismatch(
                f"{share[0]}/{share[1]} has another record at offset {last} than the replica: the replica was written "
                f"to, or it is one of another store; nothing is shipped over it"
            )


def _lag(log: Log, place: Place) -> Lag:
    """What a partition lags behind."""
    end, lowest = log.visible_offset, log.lowest_offset
    records = end - max(place.end, lowest)
    if records <= 0:
        return Lag("", 0, 0, 0.0)
    size = (log.size_bytes + log.remote_bytes) * records // max(end - lowest, 1)
    first = log.fetch(max(place.end, lowest), 1, isolation="uncommitted").raw
    oldest = int.from_bytes(first[27:35], "big", signed=True) if first else -1
    return Lag("", records, size, max(now_ms() - oldest, 0) / 1000 if oldest >= 0 else 0.0)


def _sum(one: Lag, other: Lag) -> Lag:
    return Lag(
        one.topic,
        one.records + other.records,
        one.size_bytes + other.size_bytes,
        max(one.seconds, other.seconds),
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
    """Ship the store in a directory to object storage, until it is `stopped`; with `once`, what there is now.

    Of `topics`, or of all; with `mirror_retention` records that were dropped at the source are dropped in the replica,
    too, with `delete` topics and groups that were deleted, with `registry` users and ACLs are shipped. `options` are
    those of the address, `on_round` is called after each round with what was done, and what is left.
    """
    given = Options(frozenset(topics), mirror_retention, delete, registry)
    with Replicator(path, url, given=given, options=options, **more) as replicator:
        return replicator.run(once=once, stopped=stopped, on_round=on_round)
