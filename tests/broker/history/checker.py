"""Rules that a history must not violate. Pure functions.

Actors work on two topics, and each records its actions and the responses:

```
producer    ─▶ in     records numbered for each key; idempotent, acks=all
appender    ─▶ in     the same, by the library in another process, while the broker serves the store
writer      ─▶ in     one record for each partition in library transactions, numbered by a name
copier      in ─▶ out in transactions that also commit the offsets of `in`; some are aborted on purpose
reader      ◀─ out    a group that reads committed records
spark       in ─▶ mirror  a streaming query of the library's source and sink, in the long form
```

At the end both topics are read completely. `violations` compares them with the notes:

- *lost*: acknowledged, and not there (or not at that offset); copied by a committed transaction, and not there; an
  input that no committed transaction has copied; a committed record that no reader has seen;
- *duplicated*: one number of a key twice; one input copied twice by committed transactions;
- *reordered*: the numbers of a key, the copies of a partition, or what a reader saw of a partition, out of order;
- *phantom*: a record that was never sent;
- *aborted*: a record of an aborted transaction, returned to a reader of committed records;
- *torn*: some records of a transaction without the others;
- *refused*: a producer got a fatal error without having made a mistake.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

#: A position in a topic: partition and offset.
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation of a rule."""

    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass(frozen=True, slots=True)
class Numbered:
    """A record of `in`: its key, number and position."""

    key: str
    number: int
    place: Place


@dataclass(frozen=True, slots=True)
class Copied:
    """A record of `out`: its transaction, its input and its position."""

    attempt: str
    source: Place
    place: Place


@dataclass(slots=True)
class History:
    """The notes of all actors."""

    #: For each key: numbers below this may have been sent.
    sent: dict[str, int] = field(default_factory=dict)
    #: Acknowledged records: (key, number), and their position if the producer knows it.
    acknowledged: dict[tuple[str, int], Place | None] = field(default_factory=dict)
    #: For each transaction: the inputs that it copies.
    attempts: dict[str, list[Place]] = field(default_factory=dict)
    committed: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    #: Records that a reader saw between two assignments.
    sessions: list[list[Copied]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    #: Records that were sent together: all or none must exist.
    united: list[list[tuple[str, int]]] = field(default_factory=list)


def violations(
    history: History,
    inputs: Sequence[Numbered],
    outputs: Sequence[Copied],
    *,
    is_copied: bool = True,
    is_read: bool = True,
) -> list[Violation]:
    """Check all rules over one history and the final content of the two topics (`outputs`: committed records).

    `is_copied` and `is_read`: the copiers and the readers had enough time to reach the end.
    """
    found: list[Violation] = [Violation("refused", each) for each in history.refused]
    found += _inputs(history, inputs)
    found += _outputs(history, inputs, outputs, is_copied=is_copied)
    found += _sessions(history, outputs, is_read=is_read)
    return found


def mirrored(inputs: Sequence[Numbered], copies: Sequence[Copied], *, is_drained: bool = True) -> list[Violation]:
    """Check a topic that must have each input once, in any order."""
    times, wanted = Counter(each.source for each in copies), {each.place for each in inputs}
    found = [
        Violation("duplicated", f"input {place} is mirrored {count} times")
        for place, count in times.items()
        if count > 1
    ]
    found += [Violation("phantom", f"{place} is mirrored, and no input") for place in times.keys() - wanted]
    if is_drained:
        found += [Violation("lost", f"input {place} is not mirrored") for place in wanted - times.keys()]
    return found


def _inputs(history: History, inputs: Sequence[Numbered]) -> Iterator[Violation]:
    there = {(each.key, each.number): each.place for each in inputs}
    times_of = Counter((each.key, each.number) for each in inputs)
    for record, place in history.acknowledged.items():
        if record not in there:
            yield Violation("lost", f"{record} was acknowledged{f' at {place}' if place else ''}")
        elif place is not None and there[record] != place and times_of[record] == 1:
            yield Violation("lost", f"{record} was acknowledged at {place}, and is at {there[record]}")
    for record, times in times_of.items():
        if times > 1:
            yield Violation("duplicated", f"{record} is there {times} times")
        if not 0 <= record[1] < history.sent.get(record[0], 0):
            yield Violation("phantom", f"{record} was never sent")
    for group in history.united:
        missing = [record for record in group if record not in there]
        if missing and len(missing) < len(group):
            yield Violation("torn", f"{missing} are not there, the others of {group} are")
    yield from _falling("in", {key: [each.number for each in group] for key, group in _by_key(inputs)})


def _by_key(inputs: Sequence[Numbered]) -> Iterator[tuple[str, list[Numbered]]]:
    groups: dict[str, list[Numbered]] = defaultdict(list)
    for each in sorted(inputs, key=lambda each: each.place):
        groups[each.key].append(each)
    return iter(groups.items())


def _falling(where: str, groups: Mapping[object, Iterable[int]]) -> Iterator[Violation]:
    """Return the numbers that decrease. Repeated numbers are duplicates, which another rule reports."""
    for name, numbers in groups.items():
        for before, after in pairwise(numbers):
            if after < before:
                yield Violation("reordered", f"{name} in {where}: {after} comes after {before}")


def _outputs(
    history: History, inputs: Sequence[Numbered], outputs: Sequence[Copied], *, is_copied: bool
) -> Iterator[Violation]:
    copies: dict[str, list[Place]] = defaultdict(list)
    for each in outputs:
        copies[each.attempt].append(each.source)
    for attempt, sources in copies.items():
        wanted = history.attempts.get(attempt)
        if wanted is None:
            yield Violation("phantom", f"transaction {attempt} was never begun")
        elif attempt in history.aborted:
            yield Violation("aborted", f"transaction {attempt} is visible: {len(sources)} records")
        elif set(sources) - set(wanted):
            yield Violation("phantom", f"transaction {attempt} has not sent {sorted(set(sources) - set(wanted))}")
        elif set(sources) != set(wanted):
            yield Violation("torn", f"transaction {attempt}: {len(sources)} of {len(wanted)} records")
    for attempt in history.committed:
        if attempt not in copies and history.attempts.get(attempt):
            yield Violation("lost", f"transaction {attempt} was committed")
    times = Counter(each.source for each in outputs)
    for source, count in times.items():
        if count > 1:
            yield Violation("duplicated", f"input {source} was copied {count} times")
    if is_copied:
        for record in inputs:
            if record.place not in times:
                yield Violation("lost", f"input {record.place} was never copied")
    rows: dict[object, list[int]] = defaultdict(list)
    for each in sorted(outputs, key=lambda each: each.place):
        rows[f"copies of partition {each.source[0]}"].append(each.source[1])
    yield from _falling("out", rows)


def _sessions(history: History, outputs: Sequence[Copied], *, is_read: bool) -> Iterator[Violation]:
    there = {each.place: each for each in outputs}
    seen: set[Place] = set()
    for session in history.sessions:
        rows: dict[object, list[int]] = defaultdict(list)
        for each in session:
            seen.add(each.place)
            rows[f"partition {each.place[0]}"].append(each.place[1])
            if there.get(each.place) == each:
                continue
            kind = "aborted" if each.attempt in history.aborted else "phantom"
            yield Violation(kind, f"a reader saw transaction {each.attempt} at {each.place}")
        yield from _falling("what a reader saw", rows)
    if is_read and history.sessions:
        for place in there.keys() - seen:
            yield Violation("lost", f"no reader saw {place} of out")
