"""Processes that take turns at a log, and consumers that can be killed, stopped and told what to do.

python -m tests.processes.consuming turns DIRECTORY NAME COUNT     appends NAME-0, NAME-1, ... in turns
python -m tests.processes.consuming hold-turn DIRECTORY            appends in a turn, says "ready", never ends it
python -m tests.processes.consuming die-in-turns DIRECTORY FIRST STEP   children die at every STEP-th call of a turn
                                                                         from FIRST on
python -m tests.processes.consuming consume STORE GROUP OPTIONS    prints consumed records and commits (see `consume`)
python -m tests.processes.consuming poll STORE GROUP OPTIONS       polls and commits on command (see `poll`)
python -m tests.processes.consuming die-in-commits STORE [FIRST STEP]   children die at every call of a commit, or
                                                                         at every STEP-th from FIRST on
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from sawlog import LogConfig
from sawlog.errors import GroupFenced
from sawlog.log.shared import SharedLog
from sawlog.storage import FileDirectory
from sawlog.testing import FaultyDirectory
from sawlog.testing.faulty import Call

from .launch import say

SMALL = LogConfig(segment_bytes=1000)


def turns(directory: str, name: str, count: str) -> None:
    shared = SharedLog(FileDirectory(directory), SMALL)
    for number in range(int(count)):
        with shared.turn() as log:
            log.append(f"{name}-{number}".encode())


def hold_turn(directory: str) -> None:
    shared = SharedLog(FileDirectory(directory))
    with shared.turn() as log:
        log.append(b"in the turn")
        say("ready")
        time.sleep(600)


def dying_at(number: int, inner: FileDirectory) -> FaultyDirectory:
    """Return a directory in which the process dies at the call with this number."""
    left = [number]

    def count(call: Call) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    made = FaultyDirectory(inner)
    made.before = count
    return made


def in_child(work: Callable[[], None]) -> bool:
    """Run something in a forked child and return whether it completed. This process has no threads, so it may fork."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            sys.stderr.write(f"in the child: {type(error).__name__}: {error}\n")
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), f"the child ended with {code}"
    return code == 0


def die_in_turns(directory: str, first: str, step: str) -> None:
    """A child dies at call FIRST, the next child STEP calls later and so on, until one completes its turns: the first
    turn of a new log, later turns, rotations, a compaction. After each death, another process finds all acknowledged
    records, and continues."""
    number = int(first) - int(step)
    alive = False
    while not alive:
        number += int(step)
        place = Path(directory) / str(number)
        acknowledged = Path(directory) / f"{number}.acknowledged"
        acknowledged.write_bytes(b"")

        def work(number: int = number, place: Path = place, acknowledged: Path = acknowledged) -> None:
            shared = SharedLog(dying_at(number, FileDirectory(place)), SMALL)
            with acknowledged.open("ab", buffering=0) as file:
                for turn in range(4):
                    with shared.turn() as log:
                        log.append(b"%d" % turn * 400, key=b"%d" % turn)
                    file.write(b"%d\n" % turn)
                with shared.turn() as log:
                    assert len(log.segments) > 1
                    log.compact()

        def check(place: Path = place, acknowledged: Path = acknowledged) -> None:
            told = [line * 400 for line in acknowledged.read_bytes().splitlines()]
            one, other = SharedLog(FileDirectory(place), SMALL), SharedLog(FileDirectory(place), SMALL)
            with one.turn() as log:
                assert log.verify(), "damage"
                values = [record.value for record in log.scan()]
                assert values[: len(told)] == told, "acknowledged and lost"
                assert len(values) <= len(told) + 1, "more than was appended"
                log.append(b"one")
            with other.turn() as log:
                assert [record.value for record in log.scan()] == [*values, b"one"]

        alive = in_child(work)
        assert in_child(check)
    say(number)
    say("good")


def consume(store: str, group: str, options: str) -> None:
    """Read forever; print "got TOPIC PARTITION OFFSET" for each processed record, and after every `every` records
    commit and print "committed {positions}". Ends cleanly at the end of its input."""
    from sawlog.store.directory.store import DirectoryStore

    settings = json.loads(options)
    every = settings.pop("every", 10)
    pause_s = settings.pop("pause_s", 0.0)
    with (
        DirectoryStore.open(store) as opened,
        opened.consumer(group, ["orders"], auto_commit_ms=None, **settings) as consumer,
    ):
        say("ready")
        processed = 0
        while not select.select([sys.stdin], [], [], 0)[0]:
            for record in consumer.poll(0.05, max_records=every):
                say(f"got {record.topic} {record.partition} {record.offset}")
                processed += 1
                time.sleep(pause_s)
            try:
                consumer.commit()
            except GroupFenced:
                say("fenced")
                continue
            positions = {n: consumer.position(topic, n) for topic, n in sorted(consumer.assignment)}
            say(f"committed {json.dumps(positions)}")


def poll(store: str, group: str, options: str) -> None:
    """For each line of input: "poll" prints the number of records, "commit" prints "committed" or "fenced",
    "assignment" prints the partitions."""
    from sawlog.store.directory.store import DirectoryStore

    with DirectoryStore.open(store) as opened, opened.consumer(group, ["orders"], **json.loads(options)) as consumer:
        say("ready")
        for line in sys.stdin:
            command = line.strip()
            try:
                if command == "poll":
                    say(len(consumer.poll(0.2)))
                elif command == "commit":
                    consumer.commit()
                    say("committed")
                elif command == "assignment":
                    say(sorted(n for _, n in consumer.assignment))
            except GroupFenced:
                say("fenced")


def die_in_commits(store: str, first: str = "1", step: str = "1") -> None:
    """A child joins, reads one record of each partition and commits, and dies at the n-th call meanwhile. The next
    child continues at the committed offset before or after, never at another one."""
    from sawlog.store.directory.store import DirectoryStore

    notes = Path(store).with_suffix(".notes")
    notes.write_text("[0, 0]")
    number = int(first) - int(step)
    alive = False
    while not alive:
        number += int(step)

        def work(number: int = number) -> None:
            root = dying_at(number, FileDirectory(store))
            with DirectoryStore.open(root) as opened:
                consumer = opened.consumer("group", ["orders"], auto_commit_ms=None)
                for partition in (0, 1):
                    consumer.seek("orders", partition, number)
                consumer.commit()
                notes.write_text(json.dumps([number, number]))
                os._exit(0)

        def check(number: int = number) -> None:
            told = json.loads(notes.read_text())
            with (
                DirectoryStore.open(store) as opened,
                opened.consumer("group", ["orders"], auto_commit_ms=None) as consumer,
            ):
                assert consumer.assignment == {("orders", 0), ("orders", 1)}, "somebody dead still owns a partition"
                found = [consumer.position("orders", partition) for partition in (0, 1)]
                assert found[0] == found[1], f"half of a commit: {found}"
                assert found in (told, [number, number]), f"committed {told}, found {found}"
                notes.write_text(json.dumps(found))

        alive = in_child(work)
        assert in_child(check)
    say(number)
    say("good")


if __name__ == "__main__":
    {
        "turns": turns,
        "hold-turn": hold_turn,
        "die-in-turns": die_in_turns,
        "consume": consume,
        "poll": poll,
        "die-in-commits": die_in_commits,
    }[sys.argv[1]](*sys.argv[2:])
