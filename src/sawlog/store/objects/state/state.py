"""`State`: the content of a store after a commit. Every process computes the same state from the same commits.

The fold is deterministic: it depends only on the previous state and the commit, not on the time, the process or earlier
requests. It checks in this order (rule R5 of ADR 25). Does this version know every action and field? Is the commit
known already? Then it has its first outcome, even if that was a rejection. Are the uploads that it refers to above the
floor? Do its conditions hold? Only then is it applied.

An invalid request is rejected and never raises: an exception that every process meets would make the store unusable.
Messages of rejections are not part of the state, so later versions can improve them.

The entries, by the module that defines them:

```
topic/ end/                                      topics.py
extent/ producer/ clean/ epochs/                 records.py
floor void/ nonce/                               uploads.py
group/ offset/ page/ queue/                      groups.py
document/ named/                                 documents.py
counter/                                         mutation.py: how many numbers were handed out
member/ owner/                                   members.py
snapshot/                                        snapshots.py
transaction/ writing/ pending/ open/ aborted/    transactions.py
broker/ served/ claims/                          brokers.py
```

actions.py lists the actions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from . import actions, documents, records, transactions, uploads
from .commit import Commit, Request
from .entries import Entries
from .extents import Extent, entry_name, entry_text, epoch_of
from .mutation import Rejected, quoted
from .records import CompactionState

#: The outcome of a request: {"ok": [a result for each action]} or {"no": [kind, message, number, ...]}.
Outcome = Mapping[str, Any]


class State:
    """The state after `number` commits. Not thread-safe: the journal guards it."""

    def __init__(self, entries: Entries | None = None, number: int = 0) -> None:
        #: Number of folded commits, which is the number of the next one.
        self.number = number
        self.entries = Entries() if entries is None else entries
        #: The base offsets of the extents of each partition, sorted.
        self._bases: dict[tuple[str, int], list[int]] = {}
        self._undo: list[Callable[[], None]] = []
        found: dict[str, list[int]] = {}
        for name in self.entries.of_kind("extent"):
            place, _, base = name.rpartition("/")
            found.setdefault(place, []).append(int(base))
        for place, bases in found.items():
            _, topic, partition = place.split("/")
            self._bases[topic, int(partition)] = sorted(bases)

    # --- reading

    @property
    def digest(self) -> str:
        """The digest: equal for equal states."""
        return self.entries.digest

    @property
    def floor(self) -> int:
        """The commit below which uploads are void: those that began when fewer commits were known."""
        return uploads.floor_of(self)

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return [name.partition("/")[2] for name in self.entries.names("topic/")]

    def topic(self, name: str) -> Mapping[str, Any] | None:
        """Return the entry of a topic, or None."""
        found: Mapping[str, Any] | None = self.entries.get(f"topic/{name}")
        return found

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the lowest and the next offset of a partition, by topic id."""
        start, end = self.entries.get(f"end/{topic}/{partition}", (0, 0))
        return int(start), int(end)

    def has(self, topic: str, partition: int) -> bool:
        """Return whether a partition exists, by topic id."""
        return self.entries.get(f"end/{topic}/{partition}") is not None

    def extents(self, topic: str, partition: int, start: int, end: int | None = None) -> Iterable[Extent]:
        """Yield the extents that contain offsets from `start` on, in order."""
        bases = self.bases(topic, partition)
        for base in bases[max(bisect_right(bases, start) - 1, 0) :]:
            if end is not None and base >= end:
                return
            found = self.extent(topic, partition, base)
            if found.next_offset > start:
                yield found

    def epochs(self, topic: str, partition: int) -> list[tuple[int, int]]:
        """Return (leader epoch, its first offset), oldest first. Only a copy has epochs other than 0."""
        return [(int(epoch), int(first)) for epoch, first in self.entries.get(f"epochs/{topic}/{partition}", ())]

    def offset_at(self, topic: str, partition: int, timestamp: int) -> Extent | None:
        """Return the first extent whose newest record is not older than a timestamp."""
        for extent in self.extents(topic, partition, 0):
            if extent.max_timestamp >= timestamp:
                return extent
        return None

    def stable(self, topic: str, partition: int) -> int:
        """Return the last stable offset: every transaction below it is decided."""
        return transactions.stable(self, topic, partition, self.ends(topic, partition)[1])

    def aborted(self, topic: str, partition: int, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return (producer id, first offset, marker) of the aborted transactions that have offsets in a range."""
        return list(transactions.aborted(self, topic, partition, start, end))

    def referenced(self) -> set[str]:
        """Return the keys of all objects that contain extents."""
        return {self.entries.get(name)[0] for name in self.entries.of_kind("extent")}

    def snapshots(self) -> dict[str, Mapping[str, Any]]:
        """Return the entries of all snapshots, by name."""
        names = self.entries.names("snapshot/")
        return {unquote(name.partition("/")[2]): self.entries.get(name) for name in names}

    def groups(self) -> list[str]:
        """Return the names of all groups, sorted."""
        return sorted(unquote(name.partition("/")[2]) for name in self.entries.names("group/"))

    def group(self, name: str) -> list[str] | None:
        """Return the topics that a group has committed in; None if there is no such group."""
        found = self.entries.get(f"group/{quoted(name)}")
        return None if found is None else list(found)

    def offsets(self, group: str) -> dict[tuple[str, int], tuple[int, str, int]]:
        """Return the committed offsets of a group: (offset, metadata, leader epoch) by topic id and partition."""
        prefix = f"offset/{quoted(group)}/"
        found = {}
        for name in self.entries.names(prefix):
            topic, partition = name.removeprefix(prefix).split("/")
            offset, metadata, epoch = self.entries.get(name)
            found[topic, int(partition)] = (int(offset), str(metadata), int(epoch))
        return found

    def document(self, name: str) -> tuple[int, Mapping[str, Any]]:
        """Return the version and the fields of a document."""
        return documents.found(self, name)

    def clean(self, topic: str, partition: int) -> CompactionState:
        """Return the state of compaction of a partition."""
        return records.clean(self, topic, partition)

    def voided(self, job: str) -> int:
        """Return the commit at which a job was abandoned; -1 if it was not, or that is forgotten."""
        return uploads.voided(self, job)

    def last_of(self, name: str) -> tuple[int, int, list[Any] | None] | None:
        """Return the last number stored under a name, its time, and its parts if they are known."""
        last = self.entries.get(f"named/{quoted(name)}")
        return None if last is None else documents.named(last)

    def names_before(self, time_ms: int) -> list[str]:
        """Return the names last used before a time. Names whose time is unknown are left out."""
        found = self.entries.names("named/")
        old = [each for each in found if 0 < documents.named(self.entries.get(each))[1] < time_ms]
        return [unquote(each.removeprefix("named/")) for each in old]

    def nonces_below(self, number: int) -> int:
        """Return the number of remembered outcomes of commits before `number`."""
        return sum(self.entries.get(name)[1] < number for name in self.entries.names("nonce/"))

    def outcome_of(self, writer: str, sequence: int) -> tuple[int, list[Outcome]] | None:
        """Return the number and the outcomes of a writer's commit, if it is the writer's last known one."""
        found = self.entries.get(f"nonce/{writer}")
        if found is None or found[0] != sequence:
            return None
        return int(found[1]), list(found[2])

    def bases(self, topic: str, partition: int) -> Sequence[int]:
        """Return the base offsets of the extents of a partition, in order."""
        return self._bases.get((topic, partition), ())

    def extent(self, topic: str, partition: int, base: int) -> Extent:
        """Return the extent that starts at `base`."""
        key, position, size, end, newest, digest = self.entries.get(entry_name(topic, partition, base))
        epoch = epoch_of(self.entries.get(f"epochs/{topic}/{partition}", ()), base)
        return Extent(base, int(end), str(key), int(position), int(size), int(newest), str(digest), epoch)

    # --- the fold

    def apply(self, commit: Commit, key: str, inline_at: int) -> list[Outcome]:
        """Fold the next commit, stored in the object `key` with its batches from `inline_at` on, and return the
        outcomes of its requests."""
        for request in commit.requests:
            for action in request:
                actions.check_known(action, key)
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
        """Apply all actions of a request, or none."""
        self._undo.clear()
        try:
            done = {"ok": [actions.ACTIONS[action["do"]].apply(self, action, key, inline_at) for action in request]}
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
        """Set an entry for an action. Rolled back if the request is rejected."""
        before = self.entries.held(name)
        if before is None:
            self._undo.append(lambda: self.entries.drop(name))
        else:
            self._undo.append(lambda: self.entries.put(name, before))
        self.entries.put(name, value)

    def drop(self, name: str) -> None:
        """Remove an entry for an action."""
        before = self.entries.held(name)
        if before is not None:
            self._undo.append(lambda: self.entries.put(name, before))
            self.entries.drop(name)

    def add_extent(self, topic: str, partition: int, extent: Extent) -> None:
        """Add an extent for an action."""
        bases = self._bases.setdefault((topic, partition), [])
        insort(bases, extent.base_offset)
        self._undo.append(lambda: bases.remove(extent.base_offset))
        self.put(entry_name(topic, partition, extent.base_offset), entry_text(extent))

    def drop_extent(self, topic: str, partition: int, base: int) -> None:
        """Remove the extent that starts at `base`, for an action."""
        bases = self._bases[topic, partition]
        del bases[bisect_left(bases, base)]
        self._undo.append(lambda: insort(bases, base))
        self.drop(entry_name(topic, partition, base))

    def copy_extents(self, topic: str, partition: int, to: str) -> None:
        """Reference the extents of a partition under another topic id, for an action."""
        for base in self.bases(topic, partition):
            self.add_extent(to, partition, self.extent(topic, partition, base))
        self.put(f"end/{to}/{partition}", list(self.ends(topic, partition)))

    def drop_partition(self, topic: str, partition: int) -> None:
        """Remove the extents and the offsets of a partition, for an action."""
        for base in list(self.bases(topic, partition)):
            self.drop_extent(topic, partition, base)
        self.drop(f"end/{topic}/{partition}")


def _no(kind: str, message: str, *numbers: int) -> Outcome:
    return {"no": [kind, message, *numbers]}


def _without_text(outcome: Outcome) -> Outcome:
    """Return an outcome as it is remembered, without its message."""
    return {"no": [outcome["no"][0], "", *outcome["no"][2:]]} if "no" in outcome else outcome
