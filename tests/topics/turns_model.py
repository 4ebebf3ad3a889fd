"""A model of writers that take turns (ADR 33), small enough for an exhaustive search.

Two or three processes append to one log. Each has a plan: "a" appends a record, "r" rotates and appends, "t" truncates
the last record. Between any two steps a process may be killed, stopped or continued, and the kernel may fail to write
pages back. `explore` visits every reachable state and checks in each of them, as if the power were cut there, that

- no acknowledged record is lost, none is stored twice, and each is at the acknowledged offset;
- durable <= visible <= written, and records below the durable offset are on the disk;
- no visible record disappears, except by truncation;
- an acknowledged record is visible, and no record is acknowledged after any process has reported a failed fsync;
- a waiting process is overtaken at most once per other process, and as often again for each kill or stop;
- when no process can take a step, each has finished its plan, except those that are dead or stopped.

The kernel: a record is dirty until an fsync covers it. A failed write-back marks it as clean although it is not on the
disk, and counts an error. An fsync reports an error to each file description that is older than the error; a newer
description reports it only if no fsync has reported it yet (Linux 4.13 and later).

`mistakes` are rules of the protocol that are left out, to show that the model notices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

_FREE = -1
#: Status of a record: being written, dirty, on the disk, clean but not on the disk.
_TORN, _DIRTY, _SYNCED, _DROPPED = "tdsx"


class Violation(AssertionError):
    """Raised if a promise is broken."""


class Record(NamedTuple):
    """A record in the log."""

    id: int
    status: str


class Header(NamedTuple):
    """The header of the mapped file. The process in its turn replaces it as a whole."""

    generation: int = 1
    #: The active segment's file.
    file: int = 1
    written: int = 0
    #: Durable end with which the generation began.
    durable: int = 0


class Process(NamedTuple):
    """A process, its row in the mapped file, and its description of the active file."""

    plan: str
    step: str = "out"
    health: str = "alive"
    #: The end of the log, its generation and its file, as this process knows them; generation 0: not open.
    end: int = 0
    generation: int = 0
    file: int = 0
    #: Number of errors that its description has seen.
    errors: int = 0
    #: Id and offset of the record that is not acknowledged yet.
    record: int = -1
    offset: int = -1
    #: Generation and end that its fsync will cover.
    covers: tuple[int, int] = (0, 0)
    #: In its row: the file that it is syncing, the durable end that it has published, and whether it is waiting.
    syncing: int = 0
    durable: tuple[int, int] = (0, 0)
    waiting: bool = False
    #: Turns of other processes since it began to wait.
    overtaken: int = 0


class State(NamedTuple):
    """The state of all processes, the log and the kernel."""

    processes: tuple[Process, ...]
    log: tuple[Record, ...] = ()
    header: Header = Header()
    #: The active file, and whether it is sealed: a rotation is not complete.
    file: int = 1
    sealed: bool = False
    #: Offset at which a durably recorded truncation cuts the log; -1 if there is none.
    cut: int = -1
    #: Who has the flock.
    owner: int = _FREE
    #: Words of the mapped file.
    unfinished: bool = False
    named: int = _FREE
    failed: bool = False
    #: Errors of the active file, and whether an fsync has reported the last one.
    errors: int = 0
    seen: bool = True
    #: (id, offset) of acknowledged records; ids of visible ones; ids of truncated ones.
    acknowledged: frozenset[tuple[int, int]] = frozenset()
    visible: tuple[int, ...] = ()
    truncated: frozenset[int] = frozenset()
    #: True if a caller got the error of a failed fsync and no recovery has run since.
    reported: bool = False
    late: bool = False
    hidden: bool = False
    kills: int = 0
    stops: int = 0
    faults: int = 0

    def of(self, number: int, **changes: Any) -> State:
        """Return a copy with one changed process."""
        changed = self.processes[number]._replace(**changes)
        return self._replace(processes=(*self.processes[:number], changed, *self.processes[number + 1 :]))

    def durable_end(self, *, any_generation: bool = False) -> int:
        """Return the largest published durable end."""
        said = [
            end
            for generation, end in (process.durable for process in self.processes)
            if any_generation or generation == self.header.generation
        ]
        return max([self.header.durable, *said])


class Model:
    """The protocol."""

    def __init__(self, policy: str, patience: int, mistakes: frozenset[str]) -> None:
        self.always = policy == "always"
        #: Maximum number of turns of others while a process waits.
        self.patience = patience
        self.mistakes = mistakes

    def _durable(self, state: State) -> int:
        return state.durable_end(any_generation="durable end without its generation" in self.mistakes)

    def _visible(self, state: State) -> int:
        early = not self.always or "visible before it is durable" in self.mistakes
        return state.header.written if early else self._durable(state)

    # --- one process

    def work(self, state: State, number: int) -> Iterator[State]:  # noqa: PLR0912 - one case per step
        """Yield the states after the next steps of a process."""
        me = state.processes[number]
        match me.step:
            case "out" if me.plan:
                if state.owner == _FREE and self._may_take(state, number):
                    yield self._take(state, number)
                else:
                    yield state.of(number, step="wait", waiting=True, overtaken=0)
            case "wait":
                yield from self._wait(state, number)
            case "sync":
                if self._durable(state) >= me.offset + 1 and me.generation == state.header.generation:
                    yield state.of(number, step="acknowledge")
                else:
                    covers = (me.generation, me.end)
                    yield state.of(number, step="fsync", syncing=me.file, covers=covers)
            case "fsync":
                yield self._fsync(state, number, "publish durable", "tell")
            case "publish durable":
                covers = me.covers
                if "end read after the fsync" in self.mistakes:
                    covers = (state.header.generation, state.header.written)
                yield state.of(number, durable=max(me.durable, covers), syncing=0, step="acknowledge")
            case "tell":
                told = "failure told to no process" not in self.mistakes
                early = "mark removed before the failure is told" in self.mistakes
                if early and me.syncing:
                    yield state.of(number, syncing=0)
                else:
                    yield state._replace(failed=state.failed or told).of(number, step="report", syncing=0)
            case "report":
                # A recovery that came in between has repaired the log.
                reported = state.reported or me.generation == state.header.generation
                yield state._replace(reported=reported).of(number, step="out", generation=0, record=-1)
            case "acknowledge":
                yield self._acknowledge(state, number)
            case _:
                yield from self._turn(state, number)

    def _may_take(self, state: State, number: int) -> bool:
        if state.named in (_FREE, number) or "named process ignored" in self.mistakes:
            return True
        withdrawn = not state.processes[state.named].waiting  # its timeout came first
        return withdrawn and "withdrawn process still named" not in self.mistakes

    def _wait(self, state: State, number: int) -> Iterator[State]:
        me = state.processes[number]
        if not me.waiting:
            yield state.of(number, waiting=True)  # another process has marked this one as failed
        elif state.owner == _FREE:
            if self._may_take(state, number):
                yield self._take(state, number)
            elif state.processes[state.named].health != "alive" and "no grace period" not in self.mistakes:
                yield self._take(state.of(state.named, waiting=False), number)
        elif state.processes[state.owner].health == "stopped":
            # The timeout: nothing is stored.
            yield state.of(number, step="out", plan=me.plan[1:], waiting=False)

    def _take(self, state: State, number: int) -> State:
        for other, process in enumerate(state.processes):
            if other != number and process.step == "wait":
                state = state.of(other, overtaken=process.overtaken + 1)
        return state._replace(owner=number, named=_FREE).of(number, step="begin", waiting=False, overtaken=0)

    def _fsync(self, state: State, number: int, good: str, bad: str) -> State:
        me = state.processes[number]
        if me.file != state.file:  # an earlier segment, which its rotation has synced
            return state.of(number, step=good)
        if me.errors < state.errors:
            return state._replace(seen=True).of(number, step=bad, errors=state.errors)
        log = tuple(each._replace(status=_SYNCED) if each.status == _DIRTY else each for each in state.log)
        return state._replace(log=log).of(number, step=good)

    def _acknowledge(self, state: State, number: int) -> State:
        me = state.processes[number]
        after = state.of(number, step="out", record=-1)
        if state.failed:
            return after
        hidden = me.generation == state.header.generation and self._visible(state) <= me.offset
        return after._replace(
            acknowledged=state.acknowledged | {(me.record, me.offset)},
            late=state.late or state.reported,
            hidden=state.hidden or hidden,
        )

    # --- a turn

    def _turn(self, state: State, number: int) -> Iterator[State]:
        me, header = state.processes[number], state.header
        match me.step:
            case "begin":
                broken = state.failed or (state.unfinished and "unfinished turn ignored" not in self.mistakes)
                yield state._replace(unfinished=True).of(number, step="recover" if broken else "catch up")
            case "catch up":
                same = me.file == header.file or (me.generation and "rotation not noticed" in self.mistakes)
                if me.generation == header.generation and same:
                    end = me.end if "no catch-up" in self.mistakes else header.written
                    yield state.of(number, end=end, step="act")
                else:
                    yield self._opened(state, number).of(number, end=header.written, step="look at syncs")
            case "look at syncs":
                yield from self._look_at_syncs(state, number)
            case "recover" if 0 <= state.cut < header.written and "cut before the end is lowered" not in self.mistakes:
                yield self._lowered(state)
            case "recover":
                log = tuple(each._replace(status=_SYNCED) for each in state.log if each.status != _TORN)
                log = log[: state.cut] if state.cut >= 0 else log
                made = state._replace(log=log, file=state.file + 1, sealed=False, errors=0, seen=True)
                yield made.of(number, step="recovered")
            case "recovered":
                end = len(state.log)
                made = state._replace(header=Header(header.generation + 1, state.file, end, end), failed=False, cut=-1)
                made = made._replace(reported=False, visible=made.visible[:end])
                yield self._opened(made, number).of(number, end=end, step="act")
            case "act":
                yield from self._act(state, number)
            case "give":
                yield self._finish(state, number)
            case "unlock":
                yield state._replace(owner=_FREE).of(number, step=self._after(me))

    @staticmethod
    def _opened(state: State, number: int) -> State:
        errors = state.errors if state.seen else state.errors - 1
        return state.of(number, generation=state.header.generation, file=state.file, errors=errors)

    def _look_at_syncs(self, state: State, number: int) -> Iterator[State]:
        """Check the table after opening the file: an earlier fsync may have failed, which this description would not
        report."""
        me = state.processes[number]
        others = [
            process.health
            for other, process in enumerate(state.processes)
            if other != number and process.syncing == me.file
        ]
        if "syncs not looked at" in self.mistakes:
            yield state.of(number, step="act")
        elif state.failed or "dead" in others:
            yield state.of(number, step="recover")
        elif not others:
            yield state.of(number, step="act")
        elif "stopped" in others:  # the timeout: nothing is stored
            yield state.of(number, step="give", generation=0, plan=me.plan[1:])

    def _act(self, state: State, number: int) -> Iterator[State]:
        me = state.processes[number]
        if me.record >= 0:
            yield from self._write(state, number)
        elif me.plan[0] == "r" and not state.sealed:
            rotated = self._fsync(state, number, "act", "give")
            if rotated.processes[number].step == "give":
                yield rotated._replace(failed=True, reported=True).of(number, plan=me.plan[1:], generation=0)
            else:
                yield rotated._replace(sealed=True)
        elif me.plan[0] == "r":
            header = state.header._replace(file=state.file + 1)
            made = state._replace(file=state.file + 1, sealed=False, errors=0, seen=True, header=header)
            yield self._opened(made, number).of(number, plan="a" + me.plan[1:])
        elif me.plan[0] == "t":
            yield from self._truncate(state, number)
        else:
            new = 10 * number + len(me.plan)
            yield state.of(number, record=new, plan=me.plan[1:])

    def _write(self, state: State, number: int) -> Iterator[State]:
        me = state.processes[number]
        if me.offset < 0 and (me.file != state.file or state.sealed):
            raise Violation(f"written to a file that is sealed or replaced: {state}")
        there = state.log[me.end].id if me.end < len(state.log) else -1
        if me.offset < 0:
            # The bytes at that position are overwritten.
            log = (*state.log[: me.end], Record(me.record, _TORN), *state.log[me.end + 1 :])
            yield state._replace(log=log).of(number, offset=me.end)
        elif there == me.record and state.log[me.end].status == _TORN:
            log = (*state.log[: me.end], Record(me.record, _DIRTY), *state.log[me.end + 1 :])
            made = state._replace(log=log)
            if "unlocked before it is published" in self.mistakes:
                made = made._replace(owner=_FREE)
            yield made
        else:
            header = state.header._replace(written=me.end + 1)
            yield state._replace(header=header).of(number, end=me.end + 1, step="published")

    def _truncate(self, state: State, number: int) -> Iterator[State]:
        me, header = state.processes[number], state.header
        if state.cut < 0 and header.written:
            gone = state.log[header.written - 1].id
            yield state._replace(cut=header.written - 1, truncated=state.truncated | {gone})
        elif state.cut >= 0 and header.written > state.cut:
            yield self._lowered(state).of(number, generation=header.generation + 1, end=state.cut)
        else:
            log = state.log if state.cut < 0 else state.log[: state.cut]
            yield state._replace(log=log, cut=-1).of(number, plan=me.plan[1:], step="give")

    def _lowered(self, state: State) -> State:
        """Return the header with the end lowered to a recorded truncation."""
        header, durable = state.header, min(self._durable(state), state.cut)
        lowered = Header(header.generation + 1, header.file, state.cut, durable)
        return state._replace(header=lowered, visible=state.visible[: state.cut])

    def _finish(self, state: State, number: int) -> State:
        count, named = len(state.processes), _FREE
        for other in ((number + step) % count for step in range(1, count)):
            if state.processes[other].waiting and "no process named" not in self.mistakes:
                named = other
                break
        return state._replace(unfinished=False, named=named).of(number, step="unlock")

    def _after(self, me: Process) -> str:
        if me.record < 0 or not me.generation:
            return "out"
        return "sync" if self.always else "acknowledge"

    # --- walking

    def steps(self, state: State) -> Iterator[State]:
        """Yield the states after the next steps of all processes."""
        for number, process in enumerate(state.processes):
            if process.health != "alive":
                continue
            if process.step == "published":
                # The holder may keep its turn unless a process is waiting; one that waits for the disk gives it up.
                yield state.of(number, step="give")
                if not self.always and process.plan and not any(each.waiting for each in state.processes):
                    yield self._acknowledge(state, number).of(number, step="act", offset=-1)
                continue
            for after in self.work(state, number):
                me = after.processes[number]
                yield after.of(number, offset=-1) if me.step == "out" and me.offset >= 0 else after

    def disturb(self, state: State) -> Iterator[State]:
        """Yield the states after a process is killed, stopped or continued, or a page is not written."""
        for number, process in enumerate(state.processes):
            busy = process.plan or process.step != "out"
            if state.kills and process.health != "dead" and busy:
                owner = _FREE if state.owner == number else state.owner
                yield state._replace(kills=state.kills - 1, owner=owner).of(number, health="dead")
            if state.stops and process.health == "alive" and busy:
                yield state._replace(stops=state.stops - 1).of(number, health="stopped")
            if process.health == "stopped":
                yield state.of(number, health="alive")
        if state.faults and any(each.status == _DIRTY for each in state.log):
            log = tuple(each._replace(status=_DROPPED) if each.status == _DIRTY else each for each in state.log)
            yield state._replace(log=log, errors=state.errors + 1, seen=False, faults=state.faults - 1)

    def seen(self, state: State) -> State:
        """Return a copy that remembers the records that readers see now."""
        end = self._visible(state)
        if end <= len(state.visible):
            return state
        return state._replace(visible=tuple(each.id for each in state.log[:end]))

    def check(self, state: State) -> None:
        """Check the invariants of every state."""
        ids = [each.id for each in state.log]
        sure = next((at for at, each in enumerate(state.log) if each.status != _SYNCED), len(state.log))
        durable, visible, written = self._durable(state), self._visible(state), state.header.written
        whole = sum(each.status != _TORN for each in state.log)
        if len(set(ids)) < len(ids):
            raise Violation(f"a record is there twice: {state}")
        if not durable <= visible <= written <= whole:
            raise Violation(f"durable {durable}, visible {visible}, written {written} of {whole}: {state}")
        if durable > sure:
            raise Violation(f"not on the disk: {state}")
        if tuple(ids[: len(state.visible)]) != state.visible:
            raise Violation(f"a visible record has disappeared: {state}")
        if self.always and len(state.visible) > sure:
            raise Violation(f"a power cut removes a visible record: {state}")
        for record, offset in state.acknowledged:
            if record not in state.truncated and ids[offset : offset + 1] != [record]:
                raise Violation(f"an acknowledged record is lost: {state}")
            if self.always and record not in state.truncated and offset >= sure:
                raise Violation(f"a power cut removes an acknowledged record: {state}")
        if state.late:
            raise Violation(f"acknowledged after a failed fsync was reported: {state}")
        if state.hidden:
            raise Violation(f"acknowledged and not visible: {state}")
        if any(process.overtaken > self.patience for process in state.processes if process.health == "alive"):
            raise Violation(f"overtaken too often: {state}")

    @staticmethod
    def check_end(state: State) -> None:
        """Check a state in which no process can take a step."""
        for process in state.processes:
            if process.health == "alive" and (process.plan or process.step != "out"):
                raise Violation(f"waits forever: {state}")


def explore(
    *plans: str,
    policy: str = "always",
    kills: int = 0,
    stops: int = 0,
    faults: int = 0,
    fair: bool = True,
    mistakes: frozenset[str] = frozenset(),
) -> int:
    """Visit all states and return their number; `Violation` if one breaks a promise. Unless `fair`, a waiting
    process may be overtaken without limit."""
    patience = (len(plans) - 1) * (1 + kills + stops) if fair else sum(map(len, plans))
    model = Model(policy, patience, mistakes)
    start = State(tuple(Process(plan) for plan in plans), kills=kills, stops=stops, faults=faults)
    known, waiting = {start}, [start]
    while waiting:
        state = waiting.pop()
        model.check(state)
        steps = [model.seen(each) for each in model.steps(state)]
        if not steps:
            model.check_end(state)
        for each in (*steps, *map(model.seen, model.disturb(state))):
            if each not in known:
                known.add(each)
                waiting.append(each)
    return len(known)
