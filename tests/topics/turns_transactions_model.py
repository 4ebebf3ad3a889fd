"""A model of transactions among writers that take turns (ADR 33): two partitions, whose locks processes hold together.

A process with the plan "01" or "10" commits one record to each partition, naming them in that order; "0" and "1"
append a record to one partition. Before every step a process may be killed, the power may be cut, and the disk may be
full for the second part of a transaction, which is then rolled back. Opened again, the store is recovered by a process
that takes each partition with an unfinished turn. `explore` visits every reachable state and checks in each of them:

- a record is in a log at most once, and an acknowledged one is there, also after a power cut;
- what is visible stays;
- when no process can take a step, each is finished or dead, and a transaction is in both partitions or in neither.

The disk: a directory of names (`staging/`), whose changes are durable after a sync, and each alone or not at all
before; and logs that keep any beginning that contains what was synced.

`mistakes` are rules of the protocol that are left out, to show that the model notices.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any, NamedTuple

from .turns_model import Violation

_FREE = -1
#: The process that opens the store after a crash.
_OPENER = 9


class Partition(NamedTuple):
    """A log, its lock, and the note of its last turn."""

    log: str = ""
    #: Number of synced and of visible records.
    synced: int = 0
    visible: int = 0
    owner: int = _FREE
    unfinished: bool = False
    #: Step of the owner in placing the committed `intent`.
    rolling: str = ""
    intent: str = ""


class Process(NamedTuple):
    """A process, which appends records with its letter."""

    plan: str
    step: str = "lock 0"
    dead: bool = False
    offsets: tuple[int, ...] = ()
    acknowledged: bool = False


class State(NamedTuple):
    """The state of all processes and both logs."""

    processes: tuple[Process, ...]
    parts: tuple[Partition, Partition] = (Partition(), Partition())
    names: frozenset[str] = frozenset()
    durable: frozenset[str] = frozenset()
    #: Changes of names since the last sync: (old, new), "" for none.
    changes: tuple[tuple[str, str], ...] = ()
    kills: int = 0
    cuts: int = 0
    #: Number of times the disk may be full after the intent was written.
    full: int = 0

    def part(self, number: int, **changes: Any) -> State:
        """With one partition changed."""
        parts = list(self.parts)
        parts[number] = parts[number]._replace(**changes)
        return self._replace(parts=(parts[0], parts[1]))

    def of(self, number: int, **changes: Any) -> State:
        """With one process changed."""
        changed = self.processes[number]._replace(**changes)
        return self._replace(processes=(*self.processes[:number], changed, *self.processes[number + 1 :]))

    def rename(self, old: str, new: str) -> State:
        """Create (no old name) or remove (no new one)."""
        return self._replace(names=(self.names - {old}) | ({new} - {""}), changes=(*self.changes, (old, new)))

    def settled(self) -> State:
        """After a sync of the directory."""
        return self._replace(durable=self.names, changes=())


def _letter(number: int) -> str:
    return "ABC"[number]


def _intent(number: int, offsets: tuple[int, ...]) -> str:
    return f"intent.{_letter(number)}.{offsets[0]}.{offsets[1]}"


def _mark(intent: str, number: int) -> str:
    return f"applied.{intent.split('.')[1]}.{number}"


class Model:
    """The protocol."""

    def __init__(self, mistakes: frozenset[str] = frozenset()) -> None:
        self.mistakes = mistakes

    def _has(self, mistake: str) -> bool:
        return mistake in self.mistakes

    # --- a process

    def work(self, state: State, number: int) -> Iterator[State]:
        """The next step of a process."""
        me = state.processes[number]
        both = len(me.plan) > 1
        name, _, argument = me.step.partition(" ")
        order = me.plan if self._has("locked in the order of the caller") else "".join(sorted(me.plan))
        if name == "lock":
            part = int(order[int(argument)])
            last = int(argument) + 1 == len(order)
            yield from self._lock(state, number, part, ("sync logs" if both else "place 0") if last else "lock 1")
        elif both:
            yield self._commit(state, number, name, argument)
        else:
            yield self._append(state, number, name)

    def _lock(self, state: State, number: int, at: int, following: str) -> Iterator[State]:
        part = state.parts[at]
        if part.owner == number:
            if part.rolling:
                yield self._roll(state, at)
            else:
                yield state.of(number, step=following)
        elif part.owner == _FREE:
            yield self._taken(state, at, number)

    def _taken(self, state: State, at: int, number: int) -> State:
        """A turn begins: if the last one is unfinished, intents are looked for first."""
        looks = state.parts[at].unfinished and not self._has("intents not looked for")
        return state.part(at, owner=number, unfinished=True, rolling="settle" if looks else "")

    def _append(self, state: State, number: int, name: str) -> State:
        me, at = state.processes[number], int(state.processes[number].plan)
        part = state.parts[at]
        if name == "place":
            made = state.part(at, log=part.log + _letter(number))
            return made.of(number, step="finish", offsets=(len(part.log),))
        if name == "finish":  # other processes append while this one syncs
            return state.part(at, owner=_FREE, unfinished=False).of(number, step="sync")
        if name == "sync":
            return state.part(at, synced=len(part.log)).of(number, step="show")
        assert name == "show", me.step
        made = state.part(at, visible=max(part.visible, me.offsets[0] + 1))
        return made.of(number, acknowledged=True, step="done")

    def _commit(self, state: State, number: int, name: str, argument: str) -> State:  # noqa: PLR0911 - one case per step
        me, (first, second) = state.processes[number], state.parts
        letter = _letter(number)
        if me.step == "sync logs":
            offsets = (len(first.log), len(second.log))
            if not self._has("logs not synced before the intent"):
                state = state.part(0, synced=offsets[0]).part(1, synced=offsets[1])
            return state.of(number, step="intent", offsets=offsets)
        intent = _intent(number, me.offsets)
        match name:
            case "intent":
                return state.rename("", intent).of(number, step="sync intent")
            case "sync":
                if argument == "intent":
                    made = state if self._has("intent not synced") else state.settled()
                    return made.of(number, step="place 0")
                if argument == "removal":
                    return state.settled().of(number, step="finish")
                made = state.part(0, synced=len(first.log)).part(1, synced=len(second.log))
                return (state if self._has("parts not synced") else made).of(number, step="show")
            case "place":
                at = int(argument)
                made = state.part(at, log=state.parts[at].log + letter)
                if self._has("turn finished before all is placed"):
                    made = made.part(at, unfinished=False)
                if self._has("part visible when it is placed"):
                    made = made.part(at, visible=len(made.parts[at].log), synced=len(made.parts[at].log))
                return made.of(number, step="sync parts" if at else "place 1")
            case "show":
                made = state.part(0, visible=len(first.log)).part(1, visible=len(second.log))
                return made.of(number, acknowledged=True, step="remove")
            case "withdraw":
                at = int(argument)
                log = state.parts[at].log[: me.offsets[at]]
                return state.part(at, log=log, synced=len(log)).of(number, step="remove" if at else "withdraw 1")
            case "remove":
                return state.rename(intent, "").of(number, step="sync removal")
            case _:
                assert name == "finish", me.step
                made = state.part(0, owner=_FREE, unfinished=False).part(1, owner=_FREE, unfinished=False)
                return made.of(number, step="done")

    # --- rolling forward the intents of dead processes

    def _roll(self, state: State, at: int) -> State:  # noqa: PLR0911 - one case per step
        """The next step of the process that has taken a partition with an unfinished turn."""
        part = state.parts[at]
        match part.rolling:
            case "settle":
                made = state if self._has("found intent not synced") else state.settled()
                return made.part(at, rolling="find")
            case "find":
                # A live process that has written an intent holds both partitions, so these belong to dead ones.
                for name in sorted(name for name in state.names if name.startswith("intent")):
                    if _mark(name, at) not in state.names:
                        return state.part(at, rolling="place", intent=name)
                    if _mark(name, 1 - at) in state.names:
                        return state.part(at, rolling="complete", intent=name)
                return state.part(at, rolling="sweep")
            case "place":
                offset = int(part.intent.split(".")[2 + at])
                there = part.log[offset : offset + 1] if not self._has("placed without a comparison") else ""
                log = part.log if there else part.log + part.intent.split(".")[1]
                return state.part(at, log=log, rolling="sync")
            case "sync":
                return state.part(at, synced=len(part.log), visible=len(part.log), rolling="mark")
            case "mark":
                return state.rename("", _mark(part.intent, at)).part(at, rolling="sync mark")
            case "sync mark":
                return state.settled().part(at, rolling="complete")
            case "complete":
                done = all(_mark(part.intent, number) in state.names for number in (0, 1))
                if (done or self._has("completed after one part")) and part.intent in state.names:
                    return state.rename(part.intent, "").part(at, rolling="sync removal")
                return state.part(at, rolling="find")
            case "sync removal":
                return state.settled().part(at, rolling="find")
            case _:
                left = [name for name in sorted(state.names) if self._is_swept(state, name)]
                if left:
                    return state.rename(left[0], "")
                # Whatever is in the log now stays.
                return state.part(at, synced=len(part.log), visible=len(part.log), rolling="", intent="")

    @staticmethod
    def _is_swept(state: State, name: str) -> bool:
        intent = f"intent.{name.split('.')[1]}."
        return name.startswith("applied") and not any(each.startswith(intent) for each in state.names)

    def recover(self, state: State) -> Iterator[State]:
        """The process that opens the store takes each partition whose last turn is unfinished."""
        for at, part in enumerate(state.parts):
            if part.owner == _OPENER:
                if part.rolling:
                    yield self._roll(state, at)
                else:
                    yield state.part(at, owner=_FREE, unfinished=False)
            elif part.owner == _FREE and part.unfinished:
                yield self._taken(state, at, _OPENER)

    # --- what nobody wants

    @staticmethod
    def disturb(state: State) -> Iterator[State]:
        """A kill, or a power cut."""
        if state.kills:
            for number, process in enumerate(state.processes):
                if not process.dead and process.step != "done":
                    yield _killed(state._replace(kills=state.kills - 1), number)
        if state.full:
            for number, process in enumerate(state.processes):
                if process.step == "place 1" and not process.dead:
                    yield state._replace(full=state.full - 1).of(number, step="withdraw 0")
        if state.cuts:
            yield from _cut(state)

    def steps(self, state: State) -> Iterator[State]:
        """Yield the states after the next steps of all processes."""
        for number, process in enumerate(state.processes):
            if not process.dead and process.step != "done":
                yield from self.work(state, number)
        yield from self.recover(state)


def _killed(state: State, number: int) -> State:
    for at, part in enumerate(state.parts):
        if part.owner == number:
            state = state.part(at, owner=_FREE, rolling="", intent="")
    return state.of(number, dead=True)


def _cut(state: State) -> Iterator[State]:
    """Kill all processes. Any subset of the unsynced changes of names survives, and any unsynced beginning of a log."""
    for number, process in enumerate(state.processes):
        if process.step != "done":
            state = _killed(state, number)
    for count in range(len(state.changes) + 1):
        for kept in combinations(state.changes, count):
            names = state.durable
            for old, new in kept:
                names = (names - {old}) | ({new} - {""})
            for first in range(state.parts[0].synced, len(state.parts[0].log) + 1):
                for second in range(state.parts[1].synced, len(state.parts[1].log) + 1):
                    made = state._replace(names=names, durable=names, changes=(), cuts=state.cuts - 1)
                    for at, end in ((0, first), (1, second)):
                        log, visible = state.parts[at].log[:end], state.parts[at].visible
                        if end < visible:
                            raise Violation(f"a visible record has disappeared: {state}")
                        # The mapped file is not valid after a restart: every turn counts as unfinished.
                        made = made.part(at, log=log, synced=end, visible=visible, owner=_FREE, unfinished=True)
                        made = made.part(at, rolling="", intent="")
                    yield made


def check(state: State) -> None:
    """Check the invariants of every state."""
    for part in state.parts:
        if len(set(part.log)) < len(part.log):
            raise Violation(f"a record is there twice: {state}")
        if part.visible > len(part.log):
            raise Violation(f"a visible record has disappeared: {state}")
    for number, process in enumerate(state.processes):
        for at, offset in zip(sorted(process.plan), process.offsets, strict=False):
            part = state.parts[int(at)]
            if process.acknowledged and part.log[: part.synced][offset : offset + 1] != _letter(number):
                raise Violation(f"an acknowledged record is lost: {state}")


def check_end(state: State) -> None:
    """Check a state in which no process can take a step."""
    for number, process in enumerate(state.processes):
        if not process.dead and process.step != "done":
            raise Violation(f"waits forever: {state}")
        there = [_letter(number) in state.parts[int(at)].log for at in process.plan]
        if len(set(there)) > 1:
            raise Violation(f"half a transaction: {state}")
    if state.names:
        raise Violation(f"not completed: {state}")


def explore(*plans: str, kills: int = 0, cuts: int = 0, full: int = 0, mistakes: frozenset[str] = frozenset()) -> int:
    """Visit all states and return their number; `Violation` if one breaks a promise."""
    model = Model(mistakes)
    start = State(tuple(Process(plan) for plan in plans), kills=kills, cuts=cuts, full=full)
    known, waiting = {start}, [start]
    while waiting:
        state = waiting.pop()
        check(state)
        steps = list(model.steps(state))
        if not steps:
            check_end(state)
        for each in (*steps, *model.disturb(state)):
            if each not in known:
                known.add(each)
                waiting.append(each)
    return len(known)
