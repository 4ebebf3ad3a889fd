"""Models of the commit protocol, small enough to explore all interleavings.

`python -m tests.objects.model` prints for each rule that it is safe, or the shortest story that breaks it.

*Collection* ("made", "noted"): numbers are collected behind checkpoints, which must be confirmed first. Three rules of
ADR 25 together: an answer is believed for a time after the last proof (R1), numbers are deleted a grace period after
an event (R2), and a checkpoint counts once the commit after it exists (R7). A checkpoint can stay unconfirmed for any
time. A process that started just before the confirmation relies on commits that the checkpoint covers. So the grace
period must not begin when the checkpoint is *made*, but with a *note* that is written after its confirmation.

Time is in ticks: an answer is believed for one, the grace period is two. Ages end there, so time itself is unbounded.
Each request is a step: a listing, the read of the commit after a checkpoint, a read, a create, its answer.

*Refusals* ("refused", "owned"): a create is denied, applied or not, answered or not, applied later, or repeated by the
client library and then refused because of itself; the read of the stored commit may be denied as well. A program
repeats an append that has failed, but not one that may be stored. Once a create was sent, the append must count as
failed only when its number is known to belong to another writer ("owned"), not as soon as a request is denied
("refused").

*History* ("before", "after"): a process checks that the bucket still has the last commit that it has folded, and stops
if not. It may be suspended between the requests of that check, while the commit is collected. So the process must
decide after the last answer, not before it, if the commit can have been collected.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

BELIEF, GRACE = 1, 2
#: Numbers of commits, and of writers, each of which has one commit to make.
NUMBERS, WRITERS = 3, 3
#: A number without a commit.
FREE = -1


class Writer(NamedTuple):
    """One writer: its next step, its current number, the ages of its last proof and its last request, and the last
    answer."""

    does: str = "list"
    at: int = 0
    proof: int = 0
    sent: int = 0
    answer: int = FREE


class World(NamedTuple):
    """The state of the model."""

    #: The present and the first commit of each number.
    store: tuple[int, ...] = (FREE,) * NUMBERS
    truth: tuple[int, ...] = (FREE,) * NUMBERS
    #: (number of commits, age) of checkpoints and of notes.
    checkpoints: frozenset[tuple[int, int]] = frozenset()
    notes: frozenset[tuple[int, int]] = frozenset()
    writers: tuple[Writer, ...] = (Writer(),) * WRITERS


Step = tuple[str, World, str]


def steps(world: World, rule: str) -> Iterator[Step]:
    """Yield the possible next steps: name, resulting state, and the violation, if any."""
    yield "a tick", _older(world), ""
    yield from _collects(world, rule)
    for number, writer in enumerate(world.writers):
        for told, after, now, wrong in _STEPS[writer.does](world, number, writer):
            writers = (*after.writers[:number], now, *after.writers[number + 1 :])
            yield f"writer {number} {told}", after._replace(writers=writers), wrong


def _older(world: World) -> World:
    def aged(all_: frozenset[tuple[int, int]]) -> frozenset[tuple[int, int]]:
        return frozenset((count, min(age + 1, GRACE)) for count, age in all_)

    def waiting(writer: Writer) -> Writer:
        if writer.does in ("list", "end"):
            return writer
        sent = min(writer.sent + 1, BELIEF + 1) if writer.does == "hear" else 0
        return writer._replace(proof=min(writer.proof + 1, BELIEF + 1), sent=sent)

    writers = tuple(map(waiting, world.writers))
    return world._replace(checkpoints=aged(world.checkpoints), notes=aged(world.notes), writers=writers)


def _is_confirmed(world: World, count: int) -> bool:
    return count < NUMBERS and world.store[count] != FREE


def _collects(world: World, rule: str) -> Iterator[Step]:
    """Yield the steps of the maintainer, which makes checkpoints, notes confirmed ones, and deletes aged commits."""
    commits = sum(each != FREE for each in world.truth)
    counts = {count for count, _ in world.checkpoints}
    for count in range(1, commits + 1):
        if count not in counts:
            made = world.checkpoints | {(count, 0)}
            yield f"a checkpoint of {count} commits is made", world._replace(checkpoints=made), ""
        elif _is_confirmed(world, count) and count not in {noted for noted, _ in world.notes}:
            yield f"a note: {count} is confirmed", world._replace(notes=world.notes | {(count, 0)}), ""
    for number in range(commits):
        if world.store[number] != FREE and _may_delete(world, number, rule):
            store = (*world.store[:number], FREE, *world.store[number + 1 :])
            yield f"commit {number} is deleted", world._replace(store=store), ""


def _may_delete(world: World, number: int, rule: str) -> bool:
    if rule == "made":
        return any(age >= GRACE and _is_confirmed(world, count) for count, age in world.checkpoints if count > number)
    return any(age >= GRACE for count, age in world.notes if count > number)


# --- a writer

_Answer = Iterator[tuple[str, World, Writer, str]]


def _list(world: World, number: int, writer: Writer) -> _Answer:
    newest = max((count for count, _ in world.checkpoints), default=0)
    yield f"lists the checkpoints: {newest}", world, Writer("confirm", newest, 0), ""


def _confirm(world: World, number: int, writer: Writer) -> _Answer:
    if not writer.at or _is_confirmed(world, writer.at):
        yield "begins there", world, writer._replace(does="read"), ""
        return
    older = max((count for count, _ in world.checkpoints if count < writer.at), default=0)
    yield f"finds it unconfirmed, and looks at {older}", world, writer._replace(at=older), ""


def _read(world: World, number: int, writer: Writer) -> _Answer:
    if writer.at < NUMBERS:
        found = world.store[writer.at]
        yield f"reads {writer.at}: {found}", world, writer._replace(does="hear", answer=found), ""


def _hear(world: World, number: int, writer: Writer) -> _Answer:
    if writer.proof > BELIEF:
        yield "does not believe it", world, Writer(), ""
    elif writer.answer == FREE:
        # Also a proof: it was not collected when the request was sent.
        yield "believes that it is free", world, Writer("create", writer.at, writer.sent), ""
    elif writer.answer == number:
        yield "finds its own", world, Writer("end"), _wrong(world, number, writer.at)
    else:
        yield "goes on", world, Writer("read", writer.at + 1, writer.proof), ""


def _create(world: World, number: int, writer: Writer) -> _Answer:
    if world.store[writer.at] != FREE:
        yield "loses the race", world, writer._replace(does="read"), ""
        return
    store = (*world.store[: writer.at], number, *world.store[writer.at + 1 :])
    truth = world.truth
    if truth[writer.at] == FREE:
        truth = (*truth[: writer.at], number, *truth[writer.at + 1 :])
    after = world._replace(store=store, truth=truth)
    yield f"creates {writer.at}", after, writer._replace(does="acknowledge"), ""


def _acknowledge(world: World, number: int, writer: Writer) -> _Answer:
    if writer.proof > BELIEF:
        # If it was applied, its nonce is in the state; otherwise it tries again.
        known = number in world.truth
        yield "does not believe it", world, Writer("end" if known else "list"), ""
    else:
        yield f"acknowledges {writer.at}", world, Writer("end"), _wrong(world, number, writer.at)


def _wrong(world: World, number: int, at: int) -> str:
    return "" if world.truth[at] == number else f"commit {at} is writer {world.truth[at]}'s"


_STEPS: dict[str, Callable[[World, int, Writer], _Answer]] = {
    "list": _list,
    "confirm": _confirm,
    "read": _read,
    "hear": _hear,
    "create": _create,
    "acknowledge": _acknowledge,
    "end": lambda world, number, writer: iter(()),
}


# --- refused creates


class Program(NamedTuple):
    """A program that appends one record: its next step, its attempt, its current number, and a flag for a create that
    was sent for this number."""

    does: str = "create"
    attempt: int = 0
    at: int = 0
    is_in_doubt: bool = False


#: The attempts of a program, and the programs. Numbers suffice for all of their commits.
ATTEMPTS, PROGRAMS = 2, 2
_Stored = tuple[int, int]


class Attempts(NamedTuple):
    """The state of the model: (program, attempt) at each number, creates in flight, and the programs."""

    store: tuple[_Stored | None, ...] = (None,) * (ATTEMPTS * PROGRAMS)
    late: frozenset[tuple[int, _Stored]] = frozenset()
    programs: tuple[Program, ...] = (Program(),) * PROGRAMS


def attempts(world: Attempts, rule: str) -> Iterator[tuple[str, Attempts, str]]:
    """Yield the possible next steps of programs that append."""
    for number, stored in world.late:
        after = _placed(world, number, stored)._replace(late=world.late - {(number, stored)})
        yield f"a create of {number} arrives", after, _doubled(after)
    for who, program in enumerate(world.programs):
        does = _tried if program.does == "create" else _looked if program.does == "look" else _ended
        for told, after, now in does(world, who, program, rule):
            programs = (*after.programs[:who], now, *after.programs[who + 1 :])
            yield f"program {who} {told}", after._replace(programs=programs), _doubled(after)


def _placed(world: Attempts, number: int, stored: _Stored) -> Attempts:
    if world.store[number] is not None:
        return world
    return world._replace(store=(*world.store[:number], stored, *world.store[number + 1 :]))


def _doubled(world: Attempts) -> str:
    programs = [stored[0] for stored in world.store if stored is not None]
    return next((f"the record of program {each} is stored twice" for each in programs if programs.count(each) > 1), "")


_Tried = Iterator[tuple[str, Attempts, Program]]


def _tried(world: Attempts, who: int, program: Program, rule: str) -> _Tried:
    yield from _denied(world, program, rule)
    stored, look = (who, program.attempt), program._replace(does="look", is_in_doubt=True)
    applied = _placed(world, program.at, stored)
    yield f"gets no answer for a create of {program.at}, which is not applied", world, look
    late = world._replace(late=world.late | {(program.at, stored)})
    yield f"gets no answer for a create of {program.at}, which is on its way", late, look
    if applied is not world:
        yield f"creates {program.at}", applied, program._replace(does="end")
        yield f"creates {program.at}; the client library repeats that, and is refused", applied, look
    else:
        yield f"is refused {program.at}", world, look


def _looked(world: Attempts, who: int, program: Program, rule: str) -> _Tried:
    found = world.store[program.at]
    if found is None:
        yield f"finds nothing at {program.at}", world, program._replace(does="create")
    elif found == (who, program.attempt):
        yield f"finds its own commit at {program.at}", world, program._replace(does="end")
    else:
        yield f"finds another commit at {program.at}", world, Program("create", program.attempt, program.at + 1)
    yield from _denied(world, program, rule)


def _denied(world: Attempts, program: Program, rule: str) -> _Tried:
    if rule == "owned" and program.is_in_doubt:
        yield f"is denied {program.does}, and says that the record may be stored", world, program._replace(does="end")
    elif program.attempt + 1 < ATTEMPTS:
        again = Program("create", program.attempt + 1, program.at)
        yield f"is denied {program.does}, says that the append has failed, and repeats it", world, again


def _ended(world: Attempts, who: int, program: Program, rule: str) -> _Tried:
    return iter(())


# --- a process that checks its history

#: A commit that was the last one this recently cannot have been collected. Less than the grace period.
RECENT = 1
COMMITS = 4


class Checking(NamedTuple):
    """The state of the model: the number of commits, the first one left, confirmed checkpoints and their ages; the
    step of the process, its last folded commit, and the time since that was the last of all; the commits that it
    considers safe from collection, the newest confirmed checkpoint that it knows, and the age of that knowledge."""

    commits: int = 1
    lowest: int = 0
    confirmed: frozenset[tuple[int, int]] = frozenset()
    does: str = "fold"
    seen: int = 0
    seen_age: int = 0
    first: int = 0
    listed: int = 0
    listed_age: int = 0


def checks(world: Checking, rule: str) -> Iterator[tuple[str, Checking, str]]:
    """Yield the possible next steps of a process that checks its history."""
    older = frozenset((count, min(age + 1, GRACE)) for count, age in world.confirmed)
    ages = {name: min(getattr(world, name) + 1, GRACE) for name in ("seen_age", "listed_age")}
    yield "a tick", world._replace(confirmed=older, **ages), ""
    if world.commits < COMMITS:
        yield f"commit {world.commits} is made", world._replace(commits=world.commits + 1), ""
    newest = max((count for count, _ in world.confirmed), default=0)
    for count in range(newest + 1, world.commits):
        yield f"checkpoint {count} is confirmed", world._replace(confirmed=world.confirmed | {(count, 0)}), ""
    for count, age in world.confirmed:
        if age == GRACE and count > world.lowest:
            yield f"commits below {count} are collected", world._replace(lowest=count), ""
    yield from _check_steps(world, rule, newest)


def _check_steps(world: Checking, rule: str, newest: int) -> Iterator[tuple[str, Checking, str]]:
    idle = world._replace(does="fold", first=0, listed=0, listed_age=0)
    if world.does == "fold":
        if world.seen < world.commits - 1:
            yield "folds everything", world._replace(seen=world.commits - 1, seen_age=0), ""
        yield f"lists checkpoints: {newest}", world._replace(does="decide", listed=newest, listed_age=0), ""
    elif world.does == "decide":
        yield "decides what to look at", world._replace(does="look", first=_kept_from(world)), ""
    elif world.seen < world.first:
        yield "has nothing to check", idle, ""
    elif world.seen >= world.lowest:
        yield f"finds {world.seen}", idle, ""
    elif world.does == "look":
        yield f"does not find {world.seen}", world._replace(does="conclude"), ""
    elif rule == "after" and (world.listed_age > BELIEF or world.seen < _kept_from(world)):
        yield "does not believe it", idle, ""
    else:
        yield "stops", idle, f"commit {world.seen} is not lost: it was collected"


def _kept_from(world: Checking) -> int:
    return world.seen if world.seen_age <= RECENT else max(world.seen, world.listed)


# --- all stories

#: The model of each rule.
MODELS: dict[str, tuple[Any, Callable[[Any, str], Iterator[tuple[str, Any, str]]]]] = {
    "made": (World(), steps),
    "noted": (World(), steps),
    "refused": (Attempts(), attempts),
    "owned": (Attempts(), attempts),
    "before": (Checking(), checks),
    "after": (Checking(), checks),
}


def search(rule: str) -> tuple[int, list[str]]:
    """Return the number of states, and the shortest story that violates a rule, if any."""
    first, following = MODELS[rule]
    came: dict[Any, tuple[Any, str] | None] = {first: None}
    border = [first]
    while border:
        later: list[Any] = []
        for world in border:
            for told, after, wrong in following(world, rule):
                if wrong:
                    return len(came), [*_story(came, world), f"{told}: {wrong}"]
                if after not in came:
                    came[after] = (world, told)
                    later.append(after)
        border = later
    return len(came), []


def _story(came: dict[Any, tuple[Any, str] | None], world: Any) -> list[str]:
    told = []
    while (step := came[world]) is not None:
        world = step[0]
        told.append(step[1])
    return told[::-1]


def main() -> None:
    """Print the result for each rule."""
    for rule in MODELS:
        count, story = search(rule)
        sys.stdout.write(f"{rule}: {count} states, {'not safe:' if story else 'safe'}\n")
        for each in story:
            sys.stdout.write(f"    {each}\n")


if __name__ == "__main__":
    main()
