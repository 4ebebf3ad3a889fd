"""Everything that the readers of a topic have seen, and the rules it must obey: the promise of `readers`.

Values are unique and identify their records. The witness is told about appends, removals and rollbacks, and about the
records that each reader, group and planner sees. It checks these rules:

    I1  Every record that is in the log at the end was delivered to each group and each planner at some time.
    I2  A record that was seen stays, at its offset, until the work drops it (truncate, trim, compaction): under
        "always" also in a power cut; otherwise durable records in a power cut, and all records in a kill.
    I3  No reader sees a record that is rolled back, one that was never sent, or a part of an append.
    I4  durable <= visible <= written <= next, at every look.
    I5  Leader epochs never go down, and each batch has the epoch that the list says.

After a power cut nothing is published, and readers see every whole batch until there is a writer again: then parts of
an append that was in progress may be seen (they stay, as the rest of I2 says).

Readers look in the middle of operations, where an error would pass for one of the disk. Violations are therefore
collected (`trouble`), and `check` raises them when the operation is over, or after recovery from a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

PARTITIONS = 2
#: (visible end, leader epoch) as published.
Told = tuple[int, int]


def named(value: bytes | None) -> str:
    """Return the name in a value, without its padding."""
    return "nothing" if value is None else value.partition(b":")[0].decode()


@dataclass(frozen=True)
class Append:
    """One append: values by partition."""

    parts: Mapping[int, tuple[bytes, ...]]
    #: True while it has neither returned nor failed.
    under_way: bool = True
    #: True if it was interrupted; parts of it may exist.
    broken: bool = False


@dataclass(frozen=True)
class View:
    """One partition as a reader sees it at one moment."""

    who: str
    lowest: int
    end: int
    #: offset -> (value, epoch of its batch)
    rows: Mapping[int, tuple[bytes, int]]
    epochs: Sequence[tuple[int, int]]


@dataclass
class Witness:
    """Records that the readers of one topic have seen; see the module docstring."""

    always: bool
    appends: list[Append] = field(default_factory=list)
    #: value -> the number of its append
    sent: dict[bytes, int] = field(default_factory=dict)
    #: Values that no reader may see: rolled back, or truncated for good.
    banned: set[bytes] = field(default_factory=set)
    #: Values that may disappear: a truncation, trim or compaction of them was requested.
    going: set[bytes] = field(default_factory=set)
    #: Trimmed ones among them: if the checkpoint is lost they may return.
    trimmed: set[bytes] = field(default_factory=set)
    #: By partition: offset -> value, as a reader saw it.
    seen: list[dict[int, bytes]] = field(default_factory=lambda: [{} for _ in range(PARTITIONS)])
    #: By partition: a power cut loses no record below this offset.
    durable: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    #: By partition: the highest leader epoch that a reader saw.
    epoch: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    #: Partitions whose epochs are lost and which no writer has opened since.
    unknown: set[int] = field(default_factory=set)
    #: By partition: values published since the machine was started.
    told: list[list[Told]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    #: By partition: an older value that was put back.
    restored: list[Told | None] = field(default_factory=lambda: [None] * PARTITIONS)
    #: True if the published values are of this boot and there was a writer since.
    is_published: bool = True
    #: True after any power cut: records may be lost whose epoch only the checkpoint knows.
    was_cut: bool = False
    #: By group or planner: the values that were delivered to it.
    got: dict[str, set[bytes]] = field(default_factory=dict)
    #: By planner: its checkpoint, which survives everything.
    plans: dict[str, object] = field(default_factory=dict)
    #: True if the group "old" has committed without an epoch.
    old: bool = False
    trouble: list[str] = field(default_factory=list)

    def copy(self) -> Witness:
        """Return a copy."""
        return replace(
            self,
            appends=list(self.appends),
            sent=dict(self.sent),
            banned=set(self.banned),
            going=set(self.going),
            trimmed=set(self.trimmed),
            seen=[dict(each) for each in self.seen],
            durable=list(self.durable),
            epoch=list(self.epoch),
            unknown=set(self.unknown),
            told=[list(each) for each in self.told],
            restored=list(self.restored),
            got={name: set(each) for name, each in self.got.items()},
            plans=dict(self.plans),  # a planner replaces its own as a whole
            trouble=list(self.trouble),
        )

    def complain(self, rule: str, what: str) -> None:
        """Record a violation. Only the first few are kept."""
        if len(self.trouble) < 5:
            self.trouble.append(f"{rule}: {what}")

    def check(self) -> None:
        """Raise the collected violations."""
        assert not self.trouble, "; ".join(self.trouble)

    # --- what is done

    def send(self, parts: Mapping[int, Sequence[bytes]]) -> int:
        """Announce an append of these values and return its number."""
        number = len(self.appends)
        self.appends.append(Append({partition: tuple(values) for partition, values in parts.items()}))
        for values in parts.values():
            self.sent.update(dict.fromkeys(values, number))
        return number

    def stored(self, number: int) -> None:
        """Record that the append has returned."""
        self.appends[number] = replace(self.appends[number], under_way=False)

    def doubt(self, number: int) -> None:
        """Record that the append and the log have failed: the next open decides which records exist."""
        self.appends[number] = replace(self.appends[number], under_way=False, broken=True)

    def refuse(self, number: int, only: Iterable[bytes] | None = None) -> None:
        """Record that the append failed, or that these of its values were rolled back. The log continues, and no
        reader sees them."""
        values = {value for part in self.appends[number].parts.values() for value in part}
        values = values if only is None else set(only)
        for partition, there in enumerate(self.seen):
            for offset in [offset for offset, value in there.items() if value in values]:
                shown = named(there.pop(offset))
                self.complain("I3", f"offset {offset} of {partition} was shown, and is taken back: {shown}")
        self.banned |= values
        if only is None:
            self.stored(number)

    def begin_truncation(self, partition: int, offset: int) -> None:
        """Announce a truncation of the records from `offset` on."""
        self.going.update(value for at, value in self.seen[partition].items() if at >= offset)
        self.durable[partition] = min(self.durable[partition], offset)

    def end_truncation(self, partition: int, offset: int) -> None:
        """Record that the truncation is final."""
        there = self.seen[partition]
        self.banned.update(value for at, value in there.items() if at >= offset)
        self.seen[partition] = {at: value for at, value in there.items() if at < offset}

    def begin_trim(self, partition: int, offset: int) -> None:
        """Announce a trim of the records below `offset`."""
        below = {value for at, value in self.seen[partition].items() if at < offset}
        self.going |= below
        self.trimmed |= below

    def end_trim(self, partition: int, offset: int) -> None:
        """Record that the trim is final."""
        self.seen[partition] = {at: value for at, value in self.seen[partition].items() if at >= offset}

    # --- what happens

    def crash(self, *, power_cut: bool) -> None:
        """Record a crash: the operations in progress are unfinished."""
        for number, each in enumerate(self.appends):
            if each.under_way:
                self.doubt(number)
        if not power_cut:
            return
        self.was_cut = True
        self.is_published = False
        self.told = [[] for _ in range(PARTITIONS)]
        self.restored = [None] * PARTITIONS
        if not self.always:
            for partition in range(PARTITIONS):
                kept = {at: value for at, value in self.seen[partition].items() if at < self.durable[partition]}
                lost = set(self.seen[partition].values()) - set(kept.values())
                self.appends = [
                    replace(each, broken=True) if lost.intersection(each.parts.get(partition, ())) else each
                    for each in self.appends
                ]
                self.seen[partition] = kept

    def take_over(self, partition: int, there: set[bytes]) -> None:
        """Record the values that a new writer has found: records that were about to be dropped and still exist stay."""
        known = self.seen[partition]
        self.unknown.discard(partition)
        self.seen[partition] = {at: value for at, value in known.items() if value not in self.going or value in there}
        self.going -= there

    def lose_epochs(self, partition: int) -> None:
        """Record that only the batches still show the epochs. Until there is a writer, readers check positions only
        against the end."""
        self.epoch[partition] = 0
        self.unknown.add(partition)

    # --- what is seen

    def tell(self, partition: int, told: Told | None) -> None:
        """Record the published value."""
        if told is not None and told != self.restored[partition]:
            self.restored[partition] = None
            if not self.told[partition] or self.told[partition][-1] != told:
                self.told[partition].append(told)

    def look(self, partition: int, view: View) -> None:
        """Check a complete read of a partition."""
        rows = {offset: value for offset, (value, _) in view.rows.items()}
        self._check_staying(partition, view, rows)
        self._check_sent(partition, view.who, rows)
        if self.is_published:
            self._check_whole(partition, view, set(rows.values()))
        self._check_epochs(partition, view)
        self.seen[partition].update(rows)

    def _check_staying(self, partition: int, view: View, rows: Mapping[int, bytes]) -> None:
        short = self.restored[partition] is not None
        for offset, value in self.seen[partition].items():
            if value in self.going or (short and offset >= view.end):
                continue
            if rows.get(offset) != value:
                what = "is gone" if offset not in rows else f"is {named(rows[offset])} now"
                self.complain(
                    "I2",
                    f"offset {offset} of {partition} was seen as {named(value)}, and {what} for {view.who}, which sees "
                    f"{view.lowest} to {view.end}",
                )

    def _check_sent(self, partition: int, who: str, rows: Mapping[int, bytes]) -> None:
        for offset, value in rows.items():
            if value in self.banned:
                self.complain("I3", f"{who} sees at offset {offset} of {partition} what was taken back: {named(value)}")
            elif value not in self.sent:
                self.complain("I3", f"{who} sees at offset {offset} of {partition} what nobody sent: {named(value)}")

    def _check_whole(self, partition: int, view: View, values: set[bytes]) -> None:
        for each in self.appends:
            part = each.parts.get(partition, ())
            if len(part) > 1 and not each.broken:
                there = values.intersection(part)
                missing = set(part) - there - self.going - self.banned
                if there and missing and (self.restored[partition] is None):
                    self.complain("I3", f"{view.who} sees {len(there)} of the {len(part)} records of one append")

    def _check_epochs(self, partition: int, view: View) -> None:
        entries = list(view.epochs)
        if entries != sorted(entries) or len({start for _, start in entries}) < len(entries):
            self.complain("I5", f"{view.who} sees epochs that do not go up in {partition}: {entries}")
        current = entries[-1][0]
        if self.restored[partition] is None and partition not in self.unknown:
            if current < self.epoch[partition]:
                self.complain("I5", f"{partition} was in epoch {self.epoch[partition]}, {view.who} sees {current}")
            if self.told[partition]:  # the published value is durable; a new name of a file may not be
                self.epoch[partition] = max(self.epoch[partition], current)
            for offset, (value, epoch) in view.rows.items():
                said = max((each for each, start in entries if start <= offset), default=entries[0][0])
                # After an interrupted truncation, the new epoch may be there before the dropped records are gone.
                if epoch != said and value not in self.going:
                    self.complain(
                        "I5", f"offset {offset} of {partition} is of epoch {epoch}; {view.who} sees the list {entries}"
                    )
                    break

    def deliver(self, name: str, partition: int, offset: int, value: bytes) -> None:
        """Record a delivery to a group or a planner."""
        self.got.setdefault(name, set()).add(value)
        self._check_sent(partition, name, {offset: value})
        known = self.seen[partition].setdefault(offset, value)
        if known != value and known not in self.going:
            both = f"was seen as {named(known)}, and is {named(value)} for {name}"
            self.complain("I2", f"offset {offset} of {partition} {both}")
        self.seen[partition][offset] = value

    def check_delivered(self, partition: int, values: Iterable[bytes]) -> None:
        """Check that every group and planner, after draining the partition, has received these values."""
        for name, got in self.got.items():
            skipped = [value for value in values if value not in got]
            if skipped:
                which = f"{len(skipped)} records of {partition}, the first {named(skipped[0])}"
                self.complain("I1", f"{name} never got {which}")
