"""`State`: what a store contains after a commit. It is a fold: every process computes the same from the same commits.

Nothing in it depends on time, on the process, or on what was asked before: a commit, and the state before it, say
everything. What is checked here, in this order (rule R5 of ADR 25): does this version know all that it says? is the
commit known already? then it has its first outcome, also if that was a rejection; are the uploads that it refers to
above the floor? do its conditions hold? Only then is it applied.

What a request gets wrong is a rejection, never an exception: one that every process meets would end the store. Texts of
rejections are not part of the state, so that they can be worded better in a later version.

```
floor                                uploads that were begun below this commit are void
topic/<name>                         {"id", "partitions", "settings", "created_ms"}
end/<topic id>/<partition>           [lowest offset, next offset]
extent/<topic id>/<partition>/<base> [key, position, bytes, next offset, largest timestamp]
group/<group>                        the names of the topics that it has committed in
offset/<group>/<topic id>/<number>   [offset, metadata, leader epoch]
named/<name>                         the last number that was stored under a name
producer/<topic id>/<number>/<id>    [epoch, [[first sequence, last sequence, base offset], ...], commit of the last]
document/<name>                      [version, fields]
nonce/<writer>                       [sequence, commit, outcomes]
void/<job>                           the commit at which a job was given up: what it has uploaded is void
member/, owner/                      see folding/members.py
page/, queue/                        see folding/queues.py
snapshot/<name>                      see folding/snapshots.py
clean/<topic id>/<partition>         what compaction has done: [[[offset, time], ...], tombstones that are left, and
                                     below which offset they were dropped]
epochs/<topic id>/<partition>        the leader epochs of a partition that is a copy of another: [[epoch, its first
                                     offset], ...]; see copies.py
counter/<name>                       how many numbers were handed out
transaction/ writing/ pending/ open/ aborted/    folding/transactions.py
broker/ served/ claims/              folding/brokers.py
```

An *extent* is a run of batches in one object: a commit, an upload, or a consolidated segment. The batches in it have
the offsets that follow from its base, one after the other; what is stored in their headers does not count.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple
from urllib.parse import unquote

from ..config import MAX_OFFSET
from .commit import Action, Commit, Request, UpgradeRequired
from .copies import epoch_of, with_epoch
from .entries import Entries
from .folding import book, brokers, members, queues, snapshots, transactions
from .folding.book import Rejected
from .folding.book import quoted as _quoted

#: Batches of a producer that are remembered, as Kafka does.
_REMEMBERED = 5
#: Where the batches of an action are, if they are in the commit itself.
INLINE = ""
#: Uploads: batches before their commit, and consolidated ones. What follows is `<commits known>-...`, after the last /.
STAGED, SEGMENTS = "staged/", "segments/"
#: The kinds of entries that end with their topic, and where in their names its id is.
_OF_TOPICS = (
    ("producer/", 1),
    ("offset/", 2),
    ("owner/", 2),
    ("page/", 2),
    ("clean/", 1),
    ("open/", 1),
    ("aborted/", 1),
    ("epochs/", 1),
)
#: Rounds of compaction that are remembered.
_ROUNDS = 20


class Extent(NamedTuple):
    """Batches that follow each other in one object."""

    base_offset: int
    next_offset: int
    key: str
    position: int
    size_bytes: int
    max_timestamp: int
    #: Not 0 only in a copy of a partition that is stored elsewhere.
    leader_epoch: int = 0


class Clean(NamedTuple):
    """What compaction has done to a partition."""

    #: Up to which offset, and at which time (ms); the last rounds.
    rounds: list[tuple[int, int]]
    #: How many tombstones were left.
    tombstones: int
    #: Below which offset tombstones were dropped.
    dropped_below: int

    @property
    def offset(self) -> int:
        """Below this offset every key occurs once."""
        return self.rounds[-1][0] if self.rounds else 0

    def below(self, time_ms: int) -> int:
        """What was compacted at that time or earlier is below this offset."""
        return max((offset for offset, when in self.rounds if when <= time_ms), default=0)


#: What became of a request: {"ok": [a result for each action]} or {"no": [kind, message, number, ...]}.
Outcome = Mapping[str, Any]


class State:
    """The state after `number` commits. Not safe for threads: the journal guards it."""

    def __init__(self, entries: Entries | None = None, number: int = 0) -> None:
        #: How many commits are in it: the number of the next one.
        self.number = number
        self.entries = Entries() if entries is None else entries
        #: The base offsets of the extents of each partition, in order.
        self._bases: dict[tuple[str, int], list[int]] = {}
        self._undo: list[Callable[[], None]] = []
        found: dict[str, list[int]] = {}
        for name in self.entries.of_kind("extent"):
            place, _, base = name.rpartition("/")
            found.setdefault(place, []).append(int(base))
        for place, bases in found.items():
            _, topic, partition = place.split("/")
            self._bases[topic, int(partition)] = sorted(bases)

    # --- what it says

    @property
    def digest(self) -> str:
        """Equal for equal states."""
        return self.entries.digest

    @property
    def floor(self) -> int:
        """Uploads that were begun when fewer commits were known are void."""
        return int(self.entries.get("floor", 0))

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return [name.partition("/")[2] for name in self.entries.names("topic/")]

    def topic(self, name: str) -> Mapping[str, Any] | None:
        """What is known of a topic."""
        found: Mapping[str, Any] | None = self.entries.get(f"topic/{name}")
        return found

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        """The lowest and the next offset of a partition, by the topic's id."""
        start, end = self.entries.get(f"end/{topic}/{partition}", (0, 0))
        return int(start), int(end)

    def has(self, topic: str, partition: int) -> bool:
        """Whether there is such a partition, by the topic's id."""
        return self.entries.get(f"end/{topic}/{partition}") is not None

    def extents(self, topic: str, partition: int, start: int, end: int | None = None) -> Iterable[Extent]:
        """The extents that contain offsets from `start` on, in order."""
        bases = self._bases.get((topic, partition), [])
        for base in bases[max(bisect_right(bases, start) - 1, 0) :]:
            if end is not None and base >= end:
                return
            found = self._extent(topic, partition, base)
            if found.next_offset > start:
                yield found

    def epochs(self, topic: str, partition: int) -> list[tuple[int, int]]:
        """(leader epoch, its first offset), oldest first. There is more than epoch 0 only in a copy."""
        return [(int(epoch), int(first)) for epoch, first in self.entries.get(f"epochs/{topic}/{partition}", ())]

    def offset_at(self, topic: str, partition: int, timestamp: int) -> Extent | None:
        """The first extent that contains a record that is not older."""
        for extent in self.extents(topic, partition, 0):
            if extent.max_timestamp >= timestamp:
                return extent
        return None

    def stable(self, topic: str, partition: int) -> int:
        """The last stable offset: below it every transaction is decided."""
        return transactions.stable(self, topic, partition, self.ends(topic, partition)[1])

    def aborted(self, topic: str, partition: int, start: int, end: int) -> list[tuple[int, int, int]]:
        """(producer id, first offset, marker) of the aborted transactions that have offsets in a range."""
        return list(transactions.aborted(self, topic, partition, start, end))

    def referenced(self) -> set[str]:
        """The keys of all objects that extents are in."""
        return {self.entries.get(name)[0] for name in self.entries.of_kind("extent")}

    def snapshots(self) -> dict[str, Mapping[str, Any]]:
        """What is known of all snapshots, by name."""
        names = self.entries.names("snapshot/")
        return {unquote(name.partition("/")[2]): self.entries.get(name) for name in names}

    def groups(self) -> list[str]:
        """The names of all groups, sorted."""
        return sorted(unquote(name.partition("/")[2]) for name in self.entries.names("group/"))

    def group(self, name: str) -> list[str] | None:
        """The topics that a group has committed in; None if there is no such group."""
        found = self.entries.get(f"group/{_quoted(name)}")
        return None if found is None else list(found)

    def offsets(self, group: str) -> dict[tuple[str, int], tuple[int, str, int]]:
        """What a group has committed: (offset, metadata, leader epoch) by the topic's id and the partition."""
        prefix = f"offset/{_quoted(group)}/"
        found = {}
        for name in self.entries.names(prefix):
            topic, partition = name.removeprefix(prefix).split("/")
            offset, metadata, epoch = self.entries.get(name)
            found[topic, int(partition)] = (int(offset), str(metadata), int(epoch))
        return found

    def document(self, name: str) -> tuple[int, Mapping[str, Any]]:
        """A small document: its version and its fields."""
        version, fields = self.entries.get(f"document/{name}", (0, {}))
        return int(version), fields

    def clean(self, topic: str, partition: int) -> Clean:
        """What compaction has done."""
        rounds, tombstones, dropped = self.entries.get(f"clean/{topic}/{partition}", ([], 0, 0))
        return Clean([(int(offset), int(when)) for offset, when in rounds], int(tombstones), int(dropped))

    def voided(self, job: str) -> int:
        """The commit at which a job was given up; -1 if it was not, or that is forgotten."""
        if not self.entries.of_kind("void"):  # as nearly always, and a commit may ask thousands of times
            return -1
        return int(self.entries.get(f"void/{_quoted(job)}", -1))

    def last_of(self, name: str) -> int | None:
        """The last number that was stored under a name."""
        last = self.entries.get(f"named/{_quoted(name)}")
        return None if last is None else int(last)

    def nonces_below(self, number: int) -> int:
        """How many commits before that number are remembered with their outcomes."""
        return sum(self.entries.get(name)[1] < number for name in self.entries.names("nonce/"))

    def outcome_of(self, writer: str, sequence: int) -> tuple[int, list[Outcome]] | None:
        """The number and the outcomes of a writer's commit, if it is the last one that is known of it."""
        found = self.entries.get(f"nonce/{writer}")
        if found is None or found[0] != sequence:
            return None
        return int(found[1]), list(found[2])

    def _extent(self, topic: str, partition: int, base: int) -> Extent:
        key, position, size, end, newest = self.entries.get(_extent_name(topic, partition, base))
        epoch = epoch_of(self.entries.get(f"epochs/{topic}/{partition}", ()), base)
        return Extent(base, int(end), str(key), int(position), int(size), int(newest), epoch)

    # --- the fold

    def apply(self, commit: Commit, key: str, inline_at: int) -> list[Outcome]:
        """Fold the next commit, which is in the object `key`, with its batches from a position on; what became of its
        requests."""
        for request in commit.requests:
            for action in request:
                _check_known(action, key)
        writer, sequence = commit.nonce.writer, commit.nonce.sequence
        known = self.entries.get(f"nonce/{writer}")
        if known is not None and known[0] >= sequence:
            late = _no("Expired", "a later commit of this writer is known")
            outcomes = list(known[2]) if known[0] == sequence else [late] * len(commit.requests)
        elif known is None and commit.known < self.floor:
            late = _no("Expired", "it was begun below the floor: nobody knows whether it was applied before")
            outcomes = [late] * len(commit.requests)
        else:
            outcomes = [self._request(request, key, inline_at) for request in commit.requests]
            self.entries.put(f"nonce/{writer}", [sequence, self.number, [_without_text(each) for each in outcomes]])
        self.number += 1
        return outcomes

    def _request(self, request: Request, key: str, inline_at: int) -> Outcome:
        """All of its actions, or none."""
        self._undo.clear()
        try:
            done = {"ok": [_ACTIONS[action["do"]].apply(self, action, key, inline_at) for action in request]}
            self._undo.clear()
            return done
        except Rejected as error:
            self._take_back()
            return _no(error.kind, str(error), *error.numbers)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
            self._take_back()
            return _no("InvalidConfig", "an action has no field that it needs, or a value that it cannot have")

    def _take_back(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def put(self, name: str, value: Any) -> None:
        """Set an entry, for an action: it is taken back if the request is rejected."""
        before = self.entries.held(name)
        if before is None:
            self._undo.append(lambda: self.entries.drop(name))
        else:
            self._undo.append(lambda: self.entries.put(name, before))
        self.entries.put(name, value)

    def drop(self, name: str) -> None:
        """Remove an entry, for an action."""
        before = self.entries.held(name)
        if before is not None:
            self._undo.append(lambda: self.entries.put(name, before))
            self.entries.drop(name)

    def _add_extent(self, topic: str, partition: int, extent: Extent) -> None:
        bases = self._bases.setdefault((topic, partition), [])
        insort(bases, extent.base_offset)
        self._undo.append(lambda: bases.remove(extent.base_offset))
        self.put(_extent_name(topic, partition, extent.base_offset), _extent_text(extent))

    def _drop_extent(self, topic: str, partition: int, base: int) -> None:
        bases = self._bases[topic, partition]
        del bases[bisect_left(bases, base)]
        self._undo.append(lambda: insort(bases, base))
        self.drop(_extent_name(topic, partition, base))

    def copy_extents(self, topic: str, partition: int, to: str) -> None:
        """For an action: refer to the extents of a partition under another id, too."""
        for base in self._bases.get((topic, partition), ()):
            self._add_extent(to, partition, self._extent(topic, partition, base))
        self.put(f"end/{to}/{partition}", list(self.ends(topic, partition)))

    def drop_partition(self, topic: str, partition: int) -> None:
        """For an action: forget the extents and the ends of a partition."""
        for base in list(self._bases.get((topic, partition), ())):
            self._drop_extent(topic, partition, base)
        self.drop(f"end/{topic}/{partition}")

    # --- topics

    def add_topic(self, name: str, made: Mapping[str, Any]) -> None:
        """For an action: enter a new topic; rejected if its name is taken."""
        if self.topic(name) is not None:
            raise Rejected("TopicExists", f"topic {name} already exists")
        folded = name.lower()
        for other in self.topics():
            if other.lower() == folded:
                raise Rejected("InvalidTopicName", f"{name} differs from topic {other} only in case")
        self.put(f"topic/{name}", dict(made))

    def _create_topic(self, action: Action, key: str, inline_at: int) -> None:
        if self.has(action["id"], 0):  # what belongs to a topic is found by its id
            raise Rejected("InvalidConfig", f"there is a topic with the id {action['id']} already")
        made = {"id": action["id"], "partitions": action["partitions"], "settings": action["settings"]}
        if "created_ms" in action:
            made["created_ms"] = int(action["created_ms"])
        self.add_topic(action["name"], made)
        for partition in range(action["partitions"]):
            self.put(f"end/{action['id']}/{partition}", [0, 0])

    def _alter_topic(self, action: Action, key: str, inline_at: int) -> None:
        name = action["name"]
        found = self._topic_of(name, action.get("id"))
        count = found["partitions"] if action.get("partitions") is None else action["partitions"]
        if count < found["partitions"]:
            raise Rejected(
                "InvalidConfig", f"{name} has {found['partitions']} partitions; they can be added but not removed"
            )
        settings = {**found["settings"], **action["settings"]}
        settings = {each: value for each, value in settings.items() if value is not None}
        for partition in range(found["partitions"], count):
            self.put(f"end/{found['id']}/{partition}", [0, 0])
        self.put(f"topic/{name}", {**found, "partitions": count, "settings": settings})

    def _delete_topic(self, action: Action, key: str, inline_at: int) -> None:
        self._forget_topic(action["name"], self._topic_of(action["name"], action.get("id")))

    def _replace_topic(self, action: Action, key: str, inline_at: int) -> None:
        """One topic takes the name of another, which is deleted, and keeps its own id. With `ends` the other one must
        still end there."""
        name, by = action["name"], action["by"]
        if name == by:
            raise Rejected("InvalidConfig", f"the topic {name!r} cannot replace itself")
        old, new = self._topic_of(name, action["id"]), self._topic_of(by, action["by_id"])
        for partition, expected in action.get("ends", ()):
            _, end = self._existing(old["id"], partition)
            if end != expected:
                raise Rejected("OffsetMismatch", f"expected {expected}, but it is {end}", expected, end)
        self._forget_topic(name, old)
        self.drop(f"topic/{by}")
        self.put(f"topic/{name}", new)

    def _forget_topic(self, topic: str, found: Mapping[str, Any]) -> None:
        self.drop(f"topic/{topic}")
        for partition in range(found["partitions"]):
            self.drop_partition(found["id"], partition)
        for prefix, at in _OF_TOPICS:
            for name in self.entries.names(prefix):
                if name.split("/")[at] == found["id"]:
                    self.drop(name)

    def _topic_of(self, name: str, topic_id: str | None) -> Mapping[str, Any]:
        found = self.topic(name)
        if found is None or (topic_id is not None and found["id"] != topic_id):
            raise Rejected("TopicNotFound", f"no topic {name}")
        return found

    # --- records

    def _append(self, action: Action, key: str, inline_at: int) -> list[int]:
        topic, partition = action["topic"], action["partition"]
        start, end = self._existing(topic, partition)
        where = action["key"]
        if where != INLINE:
            self._check_floor(where)
        if action.get("producers"):
            repeated = self._producers(action, topic, partition, end)
            if repeated is not None:
                return repeated
        expected = action.get("expect")
        if expected is not None and expected != end:
            raise Rejected("OffsetMismatch", f"expected {expected}, but it is {end}", expected, end)
        base = end
        for position, size, count, newest in action["extents"]:
            at = position + inline_at if where == INLINE else position
            self._add_extent(topic, partition, _made(end, where or key, at, size, count, newest))
            end += count
        if action.get("transactions"):
            transactions.note(self, topic, partition, base, action["transactions"])
        self.put(f"end/{topic}/{partition}", [start, end])
        return [base, end]

    def _existing(self, topic: str, partition: int) -> tuple[int, int]:
        if snapshots.is_in_snapshot(topic):
            raise Rejected("ReadOnlyLog", "a snapshot does not change; topic.fork() makes a topic of it")
        if not self.has(topic, partition):
            raise Rejected("TopicNotFound", f"the topic with the id {topic} has no partition {partition} any more")
        return self.ends(topic, partition)

    def _check_floor(self, key: str) -> None:
        """An upload that was begun long ago may have been removed, or is about to be."""
        try:
            known, job = begun_at(key), job_of(key)
        except ValueError:
            raise Rejected("InvalidConfig", "what is referred to is no upload") from None
        if known < self.floor:
            raise Rejected("Void", f"{key} was begun below commit {self.floor}, and may be gone: upload it again")
        if job is not None and known <= self.voided(job):
            raise Rejected("Void", f"the job {job!r} was given up, and what it has uploaded may be gone")

    def _producers(self, action: Action, topic: str, partition: int, end: int) -> list[int] | None:
        """Idempotent batches: [id, epoch, first sequence, last sequence, offset from the first record]. The offsets
        of before, if all of them are stored already. Those of a copy were checked where they come from, and are only
        remembered."""
        found: list[int] | None = None
        fresh = 0
        for producer, epoch, first, last, after in action["producers"]:
            name = f"producer/{topic}/{partition}/{producer}"
            known_epoch, batches, _ = self.entries.get(name, (-1, [], 0))
            if epoch < known_epoch and not action.get("copied"):
                raise Rejected("ProducerFenced", f"producer {producer} has epoch {known_epoch}, not {epoch}")
            batches = batches if epoch == known_epoch else []
            if action.get("copied"):
                if epoch >= known_epoch:
                    self.put(name, [epoch, [*batches, [first, last, end + after]][-_REMEMBERED:], self.number])
                continue
            old = next((each for each in batches if each[0] == first and each[1] == last), None)
            if old is not None:
                placed = [old[2], old[2] + (last - first) % 2**31 + 1]
                found = placed if found is None else [min(found[0], placed[0]), max(found[1], placed[1])]
                continue
            expected = (batches[-1][1] + 1) % 2**31 if batches else None
            if (expected is None and first != 0 and known_epoch >= 0) or (expected is not None and first != expected):
                raise Rejected("OutOfOrderSequence", f"producer {producer}: sequence {first}, expected {expected or 0}")
            fresh += 1
            self.put(name, [epoch, [*batches, [first, last, end + after]][-_REMEMBERED:], self.number])
        if found is not None and fresh:
            raise Rejected("OutOfOrderSequence", "some of these batches are stored already, and some are not")
        return found

    def _replace(self, action: Action, key: str, inline_at: int) -> None:
        """Put extents in the place of others that have the same offsets; nothing, if these are not there any more."""
        topic, partition = action["topic"], action["partition"]
        old = [(base, key_, position) for base, key_, position in action["old"]]
        first, end = action["base"], action["end"]
        bases = self._bases.get((topic, partition), [])
        there = bases[bisect_left(bases, first) : bisect_left(bases, end)]
        found = [self._extent(topic, partition, base) for base in there]
        if not found or [(each.base_offset, each.key, each.position) for each in found] != old:
            raise Rejected("Changed", f"{first} to {end} is not what it was")
        for key_ in sorted({each[0] for each in action["new"]}):
            self._check_floor(key_)
        for base in there:
            self._drop_extent(topic, partition, base)
        at = first
        for where, position, size, count, newest in action["new"]:
            self._add_extent(topic, partition, _made(at, where, position, size, count, newest))
            at += count
        if at != end or end != found[-1].next_offset:
            raise Rejected("InvalidConfig", f"what replaces {first} to {end} ends at {at}")

    def _advance(self, action: Action, key: str, inline_at: int) -> None:
        """The first record of an empty partition gets this offset: in a copy of one that does not begin with 0."""
        topic, partition, offset = action["topic"], action["partition"], action["offset"]
        _, end = self._existing(topic, partition)
        if self._bases.get((topic, partition)):
            raise Rejected("Changed", f"the partition {partition} of {topic} is not empty")
        if type(offset) is not int or not end <= offset <= MAX_OFFSET:
            raise Rejected("InvalidConfig", f"an offset that is not possible after {end}")
        self.put(f"end/{topic}/{partition}", [offset, offset])

    def _begin_epoch(self, action: Action, key: str, inline_at: int) -> None:
        """What is placed from now on belongs to this leader epoch, as it does where it is copied from."""
        topic, partition = action["topic"], action["partition"]
        _, end = self._existing(topic, partition)
        name = f"epochs/{topic}/{partition}"
        self.put(name, with_epoch(self.entries.get(name, ()), action["epoch"], end))

    def _compacted(self, action: Action, key: str, inline_at: int) -> None:
        """How far a partition was compacted, when, and how many tombstones are left in it."""
        topic, partition = action["topic"], action["partition"]
        _, end = self._existing(topic, partition)
        before = self.clean(topic, partition)
        rounds = [list(each) for each in before.rounds]
        offset = min(int(action["offset"]), end)
        if offset > before.offset:
            rounds = [*rounds, [offset, int(action["time_ms"])]][-_ROUNDS:]
        dropped = max(before.dropped_below, int(action["dropped_below"]))
        self.put(f"clean/{topic}/{partition}", [rounds, int(action["tombstones"]), dropped])

    def _move_start(self, action: Action, key: str, inline_at: int) -> int:
        """Records below an offset are gone; whole extents with them. How many offsets that are."""
        topic, partition = action["topic"], action["partition"]
        start, end = self._existing(topic, partition)
        offset = int(action["offset"])
        if not 0 <= offset <= end:
            raise Rejected("OffsetOutOfRange", f"there are {start} to {end}, not {offset}", offset, start, end)
        wanted = max(offset, start)
        for base in list(self._bases.get((topic, partition), ())):
            if self._extent(topic, partition, base).next_offset <= wanted:
                self._drop_extent(topic, partition, base)
        self.put(f"end/{topic}/{partition}", [wanted, end])
        transactions.trim(self, topic, partition, wanted)
        return int(wanted - start)

    # --- groups, names, documents

    def _offsets(self, action: Action, key: str, inline_at: int) -> None:
        if not action.get("decided"):
            brokers.check_claim(self, action["group"], action.get("claim"))
        members.check_commit(self, action)
        if action.get("outside"):
            queues.forget(self, action["group"], [row[:2] for row in action["offsets"]])
        group = _quoted(action["group"])
        topics = {*self.entries.get(f"group/{group}", ()), *action["topics"].values()}
        self.put(f"group/{group}", sorted(topics))
        for topic, partition, offset, metadata, epoch in action["offsets"]:
            if offset is None:
                self.drop(f"offset/{group}/{topic}/{partition}")
                continue
            self._existing(topic, partition)
            self.put(f"offset/{group}/{topic}/{partition}", [offset, metadata, epoch])

    def _delete_group(self, action: Action, key: str, inline_at: int) -> None:
        group = _quoted(action["group"])
        if self.entries.get(f"group/{group}") is None:
            raise Rejected("GroupNotFound", f"no group {action['group']!r}")
        brokers.check_claim(self, action["group"], None)
        members.check_empty(self, action["group"])
        queues.forget(self, action["group"])
        self.drop(f"group/{group}")
        self.drop(f"claims/{group}")
        for name in self.entries.names(f"offset/{group}/"):
            self.drop(name)

    def _named(self, action: Action, key: str, inline_at: int) -> None:
        """The rest of the request happens once under this name and number."""
        name = f"named/{_quoted(action['name'])}"
        last = self.entries.get(name)
        if last is not None and action["sequence"] <= last:
            raise Rejected("Done", f"number {action['sequence']} of {action['name']} is stored")
        self.put(name, action["sequence"])

    def _forget_names(self, action: Action, key: str, inline_at: int) -> None:
        for name in action["names"]:
            self.drop(f"named/{_quoted(name)}")

    def _change_document(self, action: Action, key: str, inline_at: int) -> int:
        version, _ = self.document(action["name"])
        if version != action["version"]:
            raise Rejected("Changed", f"the document {action['name']} has version {version}")
        self.put(f"document/{action['name']}", [version + 1, action["fields"]])
        return version + 1

    def _expect_document(self, action: Action, key: str, inline_at: int) -> None:
        """The rest of the request is applied only if a document has not changed."""
        version, _ = self.document(action["name"])
        if version != action["version"]:
            raise Rejected("Changed", f"the document {action['name']} has version {version}")

    def _void(self, action: Action, key: str, inline_at: int) -> None:
        """A job is given up: what it has begun to upload, and no commit has adopted by now, never will be. What it
        begins later, when it is repeated, counts again."""
        self.put(f"void/{_quoted(action['job'])}", self.number)

    def _raise_floor(self, action: Action, key: str, inline_at: int) -> int:
        """Later references to uploads that were begun below this are void. What was remembered for those who refer to
        them is forgotten: nonces, and which jobs were given up. So are producers that have written nothing since."""
        floor = int(action["number"])
        if floor > self.number:
            raise Rejected("InvalidConfig", f"there are {self.number} commits, not {floor}")
        floor = max(self.floor, floor)
        if floor != self.floor:
            self.put("floor", floor)
        for name in self.entries.names("nonce/"):
            if self.entries.get(name)[1] < floor:
                self.drop(name)
        for name in self.entries.names("void/"):
            if self.entries.get(name) < floor:
                self.drop(name)
        transactions.forget_producers(self, floor)
        return floor


class _Known(NamedTuple):
    """What this version knows of an action: what it does, and which fields it may have besides `do`."""

    apply: Callable[[State, Action, str, int], Any]
    fields: frozenset[str]


def _known(apply: Callable[[State, Action, str, int], Any], fields: str) -> _Known:
    return _Known(apply, frozenset(fields.split()))


def _folded(apply: Callable[[State, Action], Any], fields: str) -> _Known:
    """An action of the room `folding`."""
    return _known(lambda state, action, key, inline_at: apply(state, action), fields)


_ACTIONS: dict[str, _Known] = {
    "create topic": _known(State._create_topic, "name id partitions settings created_ms"),
    "alter topic": _known(State._alter_topic, "name id partitions settings"),
    "delete topic": _known(State._delete_topic, "name id"),
    "replace topic": _known(State._replace_topic, "name id by by_id ends"),
    "append": _known(State._append, "topic partition key extents producers expect transactions copied"),
    "advance": _known(State._advance, "topic partition offset"),
    "begin epoch": _known(State._begin_epoch, "topic partition epoch"),
    "replace": _known(State._replace, "topic partition old base end new"),
    "compacted": _known(State._compacted, "topic partition offset time_ms tombstones dropped_below"),
    "move start": _known(State._move_start, "topic partition offset"),
    "commit offsets": _known(State._offsets, "group offsets topics member outside alone claim decided"),
    "delete group": _known(State._delete_group, "group"),
    "once": _known(State._named, "name sequence"),
    "forget names": _known(State._forget_names, "names"),
    "change document": _known(State._change_document, "name version fields"),
    "expect document": _known(State._expect_document, "name version"),
    "void": _known(State._void, "job"),
    "raise floor": _known(State._raise_floor, "number"),
    "take numbers": _folded(book.take, "name count"),
    "save transaction": _folded(transactions.save, "name version fields"),
    "in transaction": _folded(transactions.check_writing, "producer epoch topic partition"),
    "register broker": _folded(brokers.register, "id run host port"),
    "beat": _folded(brokers.beat, "id run"),
    "remove broker": _folded(brokers.remove, "id run beat"),
    "claim group": _folded(brokers.claim, "group id run address epoch"),
    "release group": _folded(brokers.release, "group claim"),
    "join group": _folded(members.join, "group member name process topics timeout_ms time_ms works"),
    "beat member": _folded(members.beat, "group member time_ms"),
    "leave group": _folded(members.leave, "group member"),
    "remove member": _folded(members.remove, "group member beat"),
    "take partitions": _folded(members.take, "group member shares begin"),
    "give up partitions": _folded(members.give_up, "group member shares"),
    "exchange": _folded(queues.exchange, "group member count offsets topics pages"),
    "take snapshot": _folded(snapshots.take, "name topics time_ms"),
    "drop snapshot": _folded(snapshots.drop, "name"),
    "fork topic": _folded(snapshots.fork, "name id source source_id at"),
}
#: The kinds of entries, as they are in a checkpoint.
_KINDS = frozenset(
    {"floor", "topic", "end", "extent", "group", "offset", "named", "producer", "document", "nonce", "void", "clean"}
    | {"counter", "transaction", "writing", "pending", "open", "aborted", "broker", "served", "claims"}
    | {"member", "owner", "page", "queue", "snapshot", "epochs"}
)


def _check_known(action: Action, key: str) -> None:
    """Raise unless this version knows the action with all its fields: it must not go on without them (R8)."""
    known = _ACTIONS.get(str(action.get("do"))) if isinstance(action, Mapping) else None
    if known is None:
        raise UpgradeRequired(f"{key}: unknown action {str(action)[:80]}; a newer sawlog has written it")
    unknown = set(action) - known.fields - {"do"}
    if unknown:
        raise UpgradeRequired(f"{key}: {action['do']!r} with unknown fields {', '.join(sorted(unknown))}")


def check_kinds(kinds: Iterable[str], key: str) -> None:
    """Raise unless this version knows all kinds of entries of a checkpoint."""
    unknown = set(kinds) - _KINDS
    if unknown:
        raise UpgradeRequired(f"{key} has entries that this version does not know: {', '.join(sorted(unknown))}")


def begun_at(key: str) -> int:
    """How many commits were known when an upload was begun; `ValueError` if the key is none of an upload."""
    if not key.startswith((STAGED, SEGMENTS)):
        raise ValueError(key)
    return int(key.rpartition("/")[2].partition("-")[0])


def job_of(key: str) -> str | None:
    """The job whose task has staged an object; None if it is no job's."""
    parts = key.rpartition("/")[2].split("-", 1)[-1].rpartition("-")
    return parts[0] or None if key.startswith(STAGED) else None


def _made(base: int, key: str, position: int, size: int, count: int, newest: int) -> Extent:
    """An extent, as a commit says it: what every reader will rely on."""
    for value, least in ((base, 0), (position, 0), (size, 1), (count, 1), (newest, -1)):
        if type(value) is not int or value < least:
            raise Rejected("InvalidConfig", "an extent with a number that is not possible")
    return Extent(base, base + count, key, position, size, newest)


def _no(kind: str, message: str, *numbers: int) -> Outcome:
    return {"no": [kind, message, *numbers]}


def _without_text(outcome: Outcome) -> Outcome:
    """What is remembered of an outcome."""
    return {"no": [outcome["no"][0], "", *outcome["no"][2:]]} if "no" in outcome else outcome


def _extent_text(extent: Extent) -> bytes:
    """The value of an extent's entry as canonical JSON: written out, since a commit may have thousands of them."""
    numbers = f"{extent.position},{extent.size_bytes},{extent.next_offset},{extent.max_timestamp}"
    return f"[{encode_basestring_ascii(extent.key)},{numbers}]".encode()


def _extent_name(topic: str, partition: int, base: int) -> str:
    return f"extent/{topic}/{partition}/{base:020}"
