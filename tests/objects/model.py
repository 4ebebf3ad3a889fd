"""A model of numbers that are collected behind checkpoints which must be confirmed first; all interleavings of it.

`python -m tests.objects.model` says for each rule whether it is safe, or shows the shortest story in which it is not.

Three rules of ADR 25 together: an answer is believed for a time after the last proof (R1), numbers are deleted a grace
period after something (R2), and a checkpoint counts when the commit after it is there (R7). A checkpoint can lie
unconfirmed for any time. Whoever began just before it was confirmed relies on commits that it covers; so the grace
period must not be counted from when the checkpoint was *made*, but from a *note* that is written when it is confirmed.

Time is in ticks: an answer is believed for one, the grace period is two. Ages end there, so time itself is unbounded.
Requests are steps of their own: a listing, the look at the commit after a checkpoint, a read, a create, its answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

BELIEF, GRACE = 1, 2
#: Numbers of commits, and of writers, each of which has one commit to make.
NUMBERS, WRITERS = 3, 3
#: A place where nothing is.
FREE = -1


class Writer(NamedTuple):
    """One writer: what it does next, the number it is at, how old its last proof and its last request are, and what it
    was answered."""

    does: str = "list"
    at: int = 0
    proof: int = 0
    sent: int = 0
    answer: int = FREE


class World(NamedTuple):
    """Everything."""

    #: What is at each number now, and what was first.
    store: tuple[int, ...] = (FREE,) * NUMBERS
    truth: tuple[int, ...] = (FREE,) * NUMBERS
    #: (how many commits it has, how old it is) of checkpoints and of notes.
    checkpoints: frozenset[tuple[int, int]] = frozenset()
    notes: frozenset[tuple[int, int]] = frozenset()
    writers: tuple[Writer, ...] = (Writer(),) * WRITERS


Step = tuple[str, World, str]


def steps(world: World, rule: str) -> Iterator[Step]:
    """What may happen next: what it is, what it leads to, and what is wrong with that."""
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
    """The maintainer: makes checkpoints, notes which are confirmed, deletes what is behind one for long enough."""
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
        # That is a proof, too: it was not collected when the request was sent.
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
        # Its nonce is in the state, if it was applied; else it tries again.
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


def search(rule: str) -> tuple[int, list[str]]:
    """How many states there are, and the shortest story that ends badly, if there is one."""
    first = World()
    came: dict[World, tuple[World, str] | None] = {first: None}
    border = [first]
    while border:
        later: list[World] = []
        for world in border:
            for told, after, wrong in steps(world, rule):
                if wrong:
                    return len(came), [*_story(came, world), f"{told}: {wrong}"]
                if after not in came:
                    came[after] = (world, told)
                    later.append(after)
        border = later
    return len(came), []


def _story(came: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    told = []
    while (step := came[world]) is not None:
        world = step[0]
        told.append(step[1])
    return told[::-1]


def main() -> None:
    """Say what is safe."""
    for rule in ("made", "noted"):
        count, story = search(rule)
        sys.stdout.write(f"{rule}: {count} states, {'not safe:' if story else 'safe'}\n")
        for each in story:
            sys.stdout.write(f"    {each}\n")


if __name__ == "__main__":
    main()
