"""A model of the handover (ADR 18), small enough for an exhaustive search.

A caller commits an intent with one part of two batches for each of two partitions. Each partition is held by a process
of its own. Between any two steps any process may die, release its lock, append a record of its own, or the power may be
cut. After a death, other processes take the locks, receive requests of the caller, or open the store. `explore` visits
every reachable state and checks in each of them:

- a batch of a part is in a log at most once, and the two batches of a part are adjacent;
- acknowledged records exist;
- visible records belong to a durable intent, so none is rolled back;
- if the caller got an acknowledgement, the transaction is stored, even after a power cut;
- when no process has a step left, the parts are in both logs or in neither, and `staging/` is empty.

The disk: a directory of names whose changes are durable after a sync, and before that individually or not at all; and
logs, of which any prefix survives that contains the synced part.

`mistakes` are rules of the protocol that are left out, to show that the model notices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

INTENT = "intent"


class Violation(AssertionError):
    """Raised if a promise is broken."""


class Partition(NamedTuple):
    """A log and the owner of its lock."""

    #: "" (none), "holder" (from the beginning), "caller", "other".
    owner: str = "holder"
    #: The owner's step in placing the part; "" if it is idle.
    step: str = ""
    #: "0" and "1" are the batches of the part, "x" is another writer's record.
    log: str = ""
    #: Length of the synced part of the log.
    durable: int = 0
    #: The offset in the note that the owner has written or found.
    at: int = -1
    #: True if the owner was connected to the caller, and so notices its death.
    connected: bool = True
    #: Records of others that were acknowledged.
    others: int = 0
    shown: bool = False


class State(NamedTuple):
    """The state of all processes and the disk."""

    parts: tuple[Partition, Partition] = (Partition(), Partition())
    names: frozenset[str] = frozenset()
    durable: frozenset[str] = frozenset()
    #: Changes of names since the last sync: (old, new), "" for none.
    changes: tuple[tuple[str, str], ...] = ()
    #: The caller's step, or "dead".
    caller: str = "commit"
    acknowledged: bool = False
    #: The step of the process that completes the intent of a dead caller; "" if there is none.
    completer: str = ""
    #: Number of deaths, releases and records of other writers that may still follow.
    deaths: int = 0
    cuts: int = 0
    releases: int = 0
    records: int = 0

    def part(self, number: int, **changes: Any) -> State:
        """Return a copy with one changed partition."""
        parts = list(self.parts)
        parts[number] = parts[number]._replace(**changes)
        return self._replace(parts=(parts[0], parts[1]))

    def rename(self, old: str, new: str) -> State:
        """Return a copy after a create (no old name), a removal (no new name) or a rename."""
        names = (self.names - {old}) | ({new} - {""})
        return self._replace(names=names, changes=(*self.changes, (old, new)))

    def synced(self) -> State:
        """Return a copy after a sync of the directory."""
        return self._replace(durable=self.names, changes=())


@dataclass(frozen=True)
class Rules:
    """The protocol, without the steps named in `mistakes`."""

    mistakes: frozenset[str] = frozenset()

    def has(self, mistake: str) -> bool:
        """Return whether the protocol makes this mistake."""
        return mistake in self.mistakes


def _kind(state: State, kind: str, number: int) -> str:
    """Return the name of the note ("at") or the mark ("applied") of a part; "" if there is none."""
    return next((name for name in state.names if name.startswith(f"{kind}.{number}.")), "")


# --- the steps of each side


def place(state: State, number: int, rules: Rules) -> State:  # noqa: PLR0911 - one case per step
    """Yield the states after the next step of the process that holds a partition and places the part."""
    part = state.parts[number]
    log = part.log
    match part.step:
        case "mark?":
            if rules.has("intent checked before the mark"):
                return state.part(number, step="late mark?" if INTENT in state.names else "")
            return state.part(number, step="" if _kind(state, "applied", number) else "intent?")
        case "late mark?":
            return state.part(number, step="" if _kind(state, "applied", number) else "sync before")
        case "intent?":
            return state.part(number, step="sync before" if INTENT in state.names else "")
        case "sync before":
            durable = part.durable if rules.has("log not synced before the note") else len(log)
            return state.part(number, step="note", durable=durable)
        case "note":
            known = _kind(state, "at", number)
            if known and not rules.has("note ignored"):
                found = state.part(number, step="sync note", at=int(known.rpartition(".")[2]))
                return found.part(number, step="append") if rules.has("found note not synced") else found
            if rules.has("no note"):
                return state.synced().part(number, step="append", at=len(log))
            made = state.rename(known, f"at.{number}.{len(log)}")
            return made.part(number, step="sync note", at=len(log))
        case "sync note":
            return (state if rules.has("note not synced") else state.synced()).part(number, step="append")
        case "append":
            there = len(log) - part.at
            if there >= 2:
                return state.part(number, step="sync after")
            return state.part(number, log=log + "01"[max(there, 0)])
        case "sync after":
            if not rules.has("marked before it is synced"):
                state = state.part(number, durable=len(log), shown=True)
            return state.part(number, step="mark")
        case "mark":
            made = state.rename(_kind(state, "at", number), f"applied.{number}.{part.at}")
            return made.part(number, step="sync mark")
        case "sync mark":
            return state.synced().part(number, step="", at=-1)
    raise AssertionError(part.step)


def call(state: State, rules: Rules) -> Iterator[State]:
    """Yield the states after the next steps of the caller."""
    match state.caller:
        case "commit":
            yield state.rename("", INTENT)._replace(caller="sync")
        case "sync":
            yield state.synced()._replace(caller="wait")
        case "wait":
            yield from _tell(state)
            placed = all(_kind(state, "applied", number) for number in (0, 1))
            if placed or (rules.has("completed too soon") and _kind(state, "applied", 0)):
                yield state._replace(caller="complete", acknowledged=placed)
        case "complete":
            yield state.rename(INTENT, "")._replace(caller="sync completion")
        case "sync completion":
            yield (state if rules.has("marks removed first") else state.synced())._replace(caller="clean")
        case "clean":
            left = sorted(state.names)
            yield state.rename(left[0], "") if left else state._replace(caller="done")


def _tell(state: State) -> Iterator[State]:
    """Yield the states after a message to the holder of a partition, or after the caller takes a free lock."""
    for number, part in enumerate(state.parts):
        if _kind(state, "applied", number):
            continue
        if not part.owner:
            yield state.part(number, owner="caller", step="mark?", at=-1)
        elif not part.step:
            yield state.part(number, step="mark?", connected=True)


def complete(state: State, rules: Rules) -> Iterator[State]:
    """Yield the states after a step that completes the intent of a dead caller. The process holds the lock of the
    caller's file, so there is only one."""
    match state.completer:
        case "":
            if INTENT in state.names and all(_kind(state, "applied", number) for number in (0, 1)):
                yield state.rename(INTENT, "")._replace(completer="sync")
            elif INTENT not in state.names and state.names:
                # The remains are removed, but the removal of the intent may not be durable yet.
                yield state._replace(completer="clean" if rules.has("swept without a sync") else "sync")
        case "sync":
            yield state.synced()._replace(completer="clean")
        case "clean":
            left = sorted(state.names - {INTENT})
            yield state.rename(left[0], "") if left else state._replace(completer="")


def find(state: State, rules: Rules) -> Iterator[State]:
    """Yield the states after a process gets a free lock, a holder notices the death of the caller, or a process opens
    the store."""
    for number, part in enumerate(state.parts):
        if not part.owner:
            yield state.part(number, owner="other", step="mark?", connected=False, at=-1)
            continue
        told = part.connected or not rules.has("openers ask nobody")
        if told and state.caller == "dead" and not part.step and INTENT in state.names:
            yield state.part(number, step="mark?", connected=False)


# --- what nobody wants


def disturb(state: State, rules: Rules) -> Iterator[State]:
    """Yield the states after a death, a power cut, a released lock, or a record of another writer."""
    if state.deaths:
        fewer = state._replace(deaths=state.deaths - 1)
        if state.caller not in ("dead", "done"):
            dead = fewer._replace(caller="dead")
            for number, part in enumerate(dead.parts):
                if part.owner == "caller":
                    dead = dead.part(number, owner="", step="")
            yield dead
        if state.completer:
            yield fewer._replace(completer="")
        for number, part in enumerate(state.parts):
            if part.owner in ("holder", "other"):
                yield fewer.part(number, owner="", step="", connected=False)
    if state.cuts:
        yield from _cut(state)
    for number, part in enumerate(state.parts):
        between = rules.has("appends between note and mark") and part.step in ("append", "sync after")
        if part.owner and (not part.step or between):
            if state.records and not (between and part.owner == "caller"):
                made = state._replace(records=state.records - 1)
                log = part.log + "x"
                durable = part.durable if rules.has("log not synced before the note") else len(log)
                yield made.part(number, log=log, durable=durable, others=part.others + (durable == len(log)))
            if state.releases and not part.step and part.owner != "caller":
                yield state._replace(releases=state.releases - 1).part(number, owner="", connected=False)


def _cut(state: State) -> Iterator[State]:
    """All processes die. Any subset of the name changes survives, and of a log any prefix with the synced part."""
    everyone_dead = state._replace(caller="dead", completer="", cuts=state.cuts - 1)
    for count in range(len(state.changes) + 1):
        for kept in combinations(state.changes, count):
            names = state.durable
            for old, new in kept:
                names = (names - {old}) | ({new} - {""}) if not old or old in names else names
            for first in range(state.parts[0].durable, len(state.parts[0].log) + 1):
                for second in range(state.parts[1].durable, len(state.parts[1].log) + 1):
                    made = everyone_dead._replace(names=names, durable=names, changes=())
                    for number, end in ((0, first), (1, second)):
                        log = state.parts[number].log[:end]
                        made = made.part(
                            number, owner="", step="", at=-1, connected=False, log=log, durable=end, shown=False
                        )
                    yield made


# --- walking


def work(state: State, rules: Rules) -> Iterator[State]:
    """Yield the states after the next step of every process."""
    for number, part in enumerate(state.parts):
        if part.step:
            yield place(state, number, rules)
    if state.caller == "dead":
        yield from complete(state, rules)
    else:
        yield from call(state, rules)
    yield from find(state, rules)


def check(state: State) -> None:
    """Check the invariants of every state."""
    for part in state.parts:
        if part.log.count("0") > 1 or part.log.count("1") > 1:
            raise Violation(f"a batch is there twice: {state}")
        if "1" in part.log and "01" not in part.log:
            raise Violation(f"a batch is missing, or apart: {state}")
        if part.log[: part.durable].count("x") < part.others:
            raise Violation(f"an acknowledged record is lost: {state}")
        if state.acknowledged and "01" not in part.log[: part.durable]:
            raise Violation(f"the caller got an acknowledgement: {state}")
        if part.shown and INTENT not in state.durable and not (state.acknowledged or _completes(state)):
            raise Violation(f"a part is visible that a power cut rolls back: {state}")


def _completes(state: State) -> bool:
    """Return whether the intent may be removed: all of it is placed, durably."""
    return all("01" in part.log[: part.durable] for part in state.parts)


def check_end(state: State) -> None:
    """Check the invariants of a final state."""
    there = ["01" in part.log for part in state.parts]
    if len(set(there)) > 1 or any(part.log.count("0") != part.log.count("1") for part in state.parts):
        raise Violation(f"a part of a transaction: {state}")
    if INTENT in state.names or state.names:
        raise Violation(f"not completed: {state}")


def explore(
    *, deaths: int = 0, cuts: int = 0, releases: int = 0, records: int = 0, mistakes: frozenset[str] = frozenset()
) -> int:
    """Visit all states and return their number; `Violation` if one breaks a promise."""
    rules = Rules(mistakes)
    start = State(deaths=deaths, cuts=cuts, releases=releases, records=records)
    seen, waiting = {start}, [start]
    while waiting:
        state = waiting.pop()
        check(state)
        working = list(work(state, rules))
        if not working and state.caller != "commit":
            check_end(state)
        for each in (*working, *disturb(state, rules)):
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    return len(seen)
