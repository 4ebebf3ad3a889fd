"""`Entries`: the state of a store as a flat map from names to values, with an incremental digest; `MutableState`: its
content, with rollback.

The digest is the sum of the hashes of all entries, each as a line `["name",value]` of canonical JSON. So a change costs
one hash, however many entries there are, and two processes that arrive at the same entries in any order have the same
digest.

A state has a hundred thousand entries, of which few are ever read. So a value may be kept as its JSON text (`bytes`,
which JSON does not have) and is parsed on first use. Changed entries are hashed once, when the digest is next read.
That cannot fail: `put` refuses values that JSON cannot express.

Actions work on a `MutableState` and refuse with `Rejected`. The modules of the actions list the entries.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from .commit import Extent, begun_at, canonical, epoch_of, job_of

_MODULUS = 1 << 256


class Entries:
    """Names and JSON values. Values are never changed in place."""

    __slots__ = ("_all", "_kinds", "_pending", "_sum")

    def __init__(self, all_: Iterable[tuple[str, Any]] = ()) -> None:
        self._all: dict[str, Any] = {}
        #: The names of each kind, the part before the first slash: extents far outnumber everything else.
        self._kinds: dict[str, set[str]] = {}
        #: The texts of entries whose hashes are not in the sum yet.
        self._pending: dict[str, bytes] = {}
        self._sum = 0
        for name, value in all_:
            self.put(name, value)

    @classmethod
    def of_lines(cls, lines: Iterable[bytes]) -> Entries:
        """Create entries from the output of `lines`. The digest is that of these bytes; nothing else is checked."""
        made = cls()
        all_, kinds, sha256 = made._all, made._kinds, hashlib.sha256
        total = 0
        for line in lines:
            total += int.from_bytes(sha256(line).digest(), "big")
            start, _, text = line[2:-1].partition(b'",')
            name = json.loads(line)[0] if b"\\" in start else start.decode()
            kind = name.partition("/")[0]
            if kind not in kinds:
                kinds[kind] = set()
            kinds[kind].add(name)
            all_[name] = json.loads(line)[1] if b"\\" in start else text
        made._sum = total % _MODULUS
        return made

    def lines(self) -> Iterator[bytes]:
        """Yield all entries, ordered by name, as the digest sees them. No line contains a newline."""
        for name in sorted(self._all):
            yield _line(name, self._text(name))

    @property
    def digest(self) -> str:
        if self._pending:
            added = sum(_hash(name, text) for name, text in self._pending.items())
            self._sum = (self._sum + added) % _MODULUS
            self._pending.clear()
        return f"{self._sum:064x}"

    @property
    def kinds(self) -> set[str]:
        """The kinds of entries present."""
        return {kind for kind, names in self._kinds.items() if names}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, self.get(name)) for name in self._all)

    def get(self, name: str, default: Any = None) -> Any:
        value = self._all.get(name, default)
        if type(value) is bytes:
            value = self._all[name] = json.loads(value)
        return value

    def held(self, name: str) -> Any:
        """Return a value as it is kept, perhaps as text, for restoring it later; None if there is no such name."""
        return self._all.get(name)

    def put(self, name: str, value: Any) -> None:
        """Set an entry to a value or to its canonical text. Raises `ValueError` or `TypeError` if JSON cannot express
        it."""
        text = value if type(value) is bytes else canonical(value)
        if name not in self._all:
            self._kinds.setdefault(name.partition("/")[0], set()).add(name)
        elif name not in self._pending:
            self._subtract(name)
        self._all[name] = value
        self._pending[name] = text

    def drop(self, name: str) -> None:
        if name not in self._all:
            return
        if name in self._pending:
            del self._pending[name]
        else:
            self._subtract(name)
        del self._all[name]
        self._kinds[name.partition("/")[0]].discard(name)

    def names(self, prefix: str) -> list[str]:
        """Return the names with a prefix, sorted."""
        kind, slash, _ = prefix.partition("/")
        names = self._kinds.get(kind, ()) if slash else self._all
        return sorted(name for name in names if name.startswith(prefix))

    def of_kind(self, kind: str) -> Collection[str]:
        """Return the names of one kind, unordered."""
        return self._kinds.get(kind, ())

    def _subtract(self, name: str) -> None:
        self._sum = (self._sum - _hash(name, self._text(name))) % _MODULUS

    def _text(self, name: str) -> bytes:
        value = self._pending.get(name) or self._all[name]
        return value if type(value) is bytes else canonical(value)


def _line(name: str, text: bytes) -> bytes:
    return b"[%b,%b]" % (canonical(name), text)


def _hash(name: str, text: bytes) -> int:
    return int.from_bytes(hashlib.sha256(_line(name, text)).digest(), "big")


class CompactionState(NamedTuple):
    """The state of compaction of a partition."""

    #: (offset, time in ms) of the last rounds: how far each one compacted.
    rounds: list[tuple[int, int]]
    #: Number of tombstones left.
    tombstones: int
    #: The offset below which tombstones were dropped.
    dropped_below: int

    @property
    def offset(self) -> int:
        """The offset below which every key occurs once."""
        return self.rounds[-1][0] if self.rounds else 0

    def below(self, time_ms: int) -> int:
        """Return the offset below which the partition was compacted at that time."""
        return max((offset for offset, when in self.rounds if when <= time_ms), default=0)


#: Separates the id of a topic from the name of a snapshot.
MARK = "@"


class Rejected(Exception):
    """A request that is not applied: the kind of error, a message, and the numbers for the error."""

    def __init__(self, kind: str, message: str, *numbers: int) -> None:
        self.kind = kind
        self.numbers = numbers
        super().__init__(message)


class MutableState:
    """The entries of a store, as actions see and change them. Topics are identified by id unless stated otherwise.
    Changes are rolled back if their request is rejected."""

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
        return self.entries.digest

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return [name.partition("/")[2] for name in self.entries.names("topic/")]

    def topic(self, name: str) -> Mapping[str, Any] | None:
        """Return the entry of a topic, or None."""
        found: Mapping[str, Any] | None = self.entries.get(f"topic/{name}")
        return found

    def partitions(self) -> Iterator[tuple[str, str, int]]:
        """Yield the name and the id of the topic, and the number, of every partition."""
        for name in self.topics():
            entry = self.entries.get(f"topic/{name}")
            for number in range(entry["partitions"]):
                yield name, entry["id"], number

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the lowest and the next offset of a partition, by topic id."""
        start, end = self.entries.get(f"end/{topic}/{partition}", (0, 0))
        return int(start), int(end)

    def has(self, topic: str, partition: int) -> bool:
        """Return whether a partition exists, by topic id."""
        return self.entries.get(f"end/{topic}/{partition}") is not None

    def bases(self, topic: str, partition: int) -> Sequence[int]:
        """Return the base offsets of the extents of a partition, in order."""
        return self._bases.get((topic, partition), ())

    def extent(self, topic: str, partition: int, base: int) -> Extent:
        key, position, size, end, newest, digest = self.entries.get(entry_name(topic, partition, base))
        epoch = epoch_of(self.entries.get(f"epochs/{topic}/{partition}", ()), base)
        return Extent(base, int(end), str(key), int(position), int(size), int(newest), str(digest), epoch)

    @property
    def floor(self) -> int:
        """The floor: an upload is void if it began when fewer commits were known."""
        return int(self.entries.get("floor", 0))

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
        opened = self.entries.get(f"open/{topic}/{partition}", {})
        return min([self.ends(topic, partition)[1], *(int(first) for first, _, _ in opened.values())])

    def aborted(self, topic: str, partition: int, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return (producer id, first offset, marker) of the aborted transactions that have offsets in a range."""
        known = self.entries.get(f"aborted/{topic}/{partition}", ())
        return [tuple(each) for each in known if each[2] >= start and each[1] < end]

    def referenced(self) -> set[str]:
        """Return the keys of all objects that contain extents."""
        return {self.entries.get(name)[0] for name in self.entries.of_kind("extent")}

    def snapshots(self) -> dict[str, Mapping[str, Any]]:
        names = self.entries.names("snapshot/")
        return {unquote(name.partition("/")[2]): self.entries.get(name) for name in names}

    def groups(self) -> list[str]:
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
        """Return the version and the fields of a document. A document that was never stored has version 0."""
        version, fields = self.entries.get(f"document/{name}", (0, {}))
        return int(version), fields

    def clean(self, topic: str, partition: int) -> CompactionState:
        rounds, tombstones, dropped = self.entries.get(f"clean/{topic}/{partition}", ([], 0, 0))
        return CompactionState([(int(offset), int(when)) for offset, when in rounds], int(tombstones), int(dropped))

    def voided(self, job: str) -> int:
        """Return the commit at which a job was abandoned; -1 if it was not, or that is forgotten."""
        if not self.entries.of_kind("void"):  # the common case, and a commit may ask thousands of times
            return -1
        return int(self.entries.get(f"void/{quoted(job)}", -1))

    def last_of(self, name: str) -> tuple[int, int, list[Any] | None] | None:
        """Return the last number stored under a name, its time, and its parts if they are known."""
        last = self.entries.get(f"named/{quoted(name)}")
        return None if last is None else (int(last[0]), int(last[1]), last[2])

    def names_before(self, time_ms: int) -> list[str]:
        """Return the names last used before a time. Names whose time is unknown are left out."""
        found = self.entries.names("named/")
        return [unquote(each.removeprefix("named/")) for each in found if 0 < self.entries.get(each)[1] < time_ms]

    def nonces_below(self, number: int) -> int:
        """Return the number of remembered outcomes of commits before `number`."""
        return sum(self.entries.get(name)[1] < number for name in self.entries.names("nonce/"))

    def outcome_of(self, writer: str, sequence: int) -> tuple[int, list[Any]] | None:
        """Return the number and the outcomes of a writer's commit, if it is the writer's last known one."""
        found = self.entries.get(f"nonce/{writer}")
        if found is None or found[0] != sequence:
            return None
        return int(found[1]), list(found[2])

    def existing(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the lowest and the next offset of a writable partition; reject if it does not exist."""
        if is_in_snapshot(topic):
            raise Rejected("ReadOnlyLog", "a snapshot does not change; topic.fork() makes a topic of it")
        if not self.has(topic, partition):
            raise Rejected("TopicNotFound", f"the topic with the id {topic} has no partition {partition} any more")
        return self.ends(topic, partition)

    def check_floor(self, key: str) -> None:
        """Reject an upload that was begun so long ago that it may have been removed."""
        known, job = begun_at(key), job_of(key)
        if known is None:
            raise Rejected("InvalidConfig", "the key is not that of an upload")
        if known < self.floor:
            raise Rejected("Void", f"{key} was begun below commit {self.floor}, and may be gone: upload it again")
        if job is not None and known <= self.voided(job):
            raise Rejected("Void", f"the job {job!r} was abandoned, and its uploads may be gone")

    # --- changing, for actions

    def _take_back(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def put(self, name: str, value: Any) -> None:
        """Set an entry. Rolled back if the request is rejected."""
        before = self.entries.held(name)
        if before is None:
            self._undo.append(lambda: self.entries.drop(name))
        else:
            self._undo.append(lambda: self.entries.put(name, before))
        self.entries.put(name, value)

    def drop(self, name: str) -> None:
        before = self.entries.held(name)
        if before is not None:
            self._undo.append(lambda: self.entries.put(name, before))
            self.entries.drop(name)

    def put_or_drop(self, name: str, value: Any) -> None:
        """Set an entry, or remove it if the value is empty."""
        if value:
            self.put(name, value)
        else:
            self.drop(name)

    def add_extent(self, topic: str, partition: int, extent: Extent) -> None:
        bases = self._bases.setdefault((topic, partition), [])
        insort(bases, extent.base_offset)
        self._undo.append(lambda: bases.remove(extent.base_offset))
        self.put(entry_name(topic, partition, extent.base_offset), entry_text(extent))

    def drop_extent(self, topic: str, partition: int, base: int) -> None:
        bases = self._bases[topic, partition]
        del bases[bisect_left(bases, base)]
        self._undo.append(lambda: insort(bases, base))
        self.drop(entry_name(topic, partition, base))

    def copy_extents(self, topic: str, partition: int, to: str) -> None:
        """Reference the extents of a partition under another topic id."""
        for base in self.bases(topic, partition):
            self.add_extent(to, partition, self.extent(topic, partition, base))
        self.put(f"end/{to}/{partition}", list(self.ends(topic, partition)))

    def drop_partition(self, topic: str, partition: int) -> None:
        for base in list(self.bases(topic, partition)):
            self.drop_extent(topic, partition, base)
        self.drop(f"end/{topic}/{partition}")


def entry_name(topic: str, partition: int, base: int) -> str:
    return f"extent/{topic}/{partition}/{base:020}"


def entry_text(extent: Extent) -> bytes:
    """Return the value of an extent's entry as canonical JSON. Formatted by hand, since a commit may have thousands of
    them."""
    numbers = f"{extent.position},{extent.size_bytes},{extent.next_offset},{extent.max_timestamp}"
    return f'[{encode_basestring_ascii(extent.key)},{numbers},"{extent.digest}"]'.encode()


def is_in_snapshot(topic_id: str) -> bool:
    """Return whether an id is that of a topic in a snapshot, which is read-only."""
    return MARK in topic_id


def quoted(name: str) -> str:
    return quote(name, safe="")


def take_numbers(state: MutableState, name: str, count: int) -> int:
    """Allocate numbers from a counter and return the first. They are never handed out again."""
    if type(count) is not int or not 0 < count <= 1 << 20:
        raise Rejected("InvalidConfig", "a number of numbers that is not possible")
    first = int(state.entries.get(f"counter/{quoted(name)}", 0))
    state.put(f"counter/{quoted(name)}", first + count)
    return first
