"""Processes that play roles, and the few words that every harness over a bucket uses for them.

    start, kill, stop, resume   what is done to an `Actor`; `again` is who plays its role after it was killed
    say                         what it notes, a line at a time, in a file that stays when it is killed: what it was
                                told (acknowledged, and where), and what it has read
    told                        what all who have played a role have noted

An actor is a forked process (`Forked`) or a program (`roles.Broker`). A `Cast` is all of them: it resumes those whose
stop is over, and says who has ended by itself, which nobody may. The process that has a cast opens no bucket and has no
threads: obstore must not be used before a fork.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, Protocol

#: How often a process looks whether the one that started it is still there.
_LOOK_S = 1.0


class Diary:
    """What one process notes. Its name is that of its role, and a number."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.number = int(name.rpartition("-")[2])
        self._file = os.open(folder / f"{name}.told", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(self, *what: object) -> None:
        """One line, which stays when this process is killed."""
        os.write(self._file, json.dumps(what).encode() + b"\n")


def told(folder: Path, role: str) -> Iterator[list[Any]]:
    """What everybody noted who has played a role; a last line without an end was never said."""
    for file in sorted(folder.glob(f"{role}-*.told")):
        for line in file.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield json.loads(line)


def last_told(folder: Path, role: str) -> str:
    """Who of a role noted something last; empty if nobody has."""
    found = [(file.stat(), file.stem) for file in folder.glob(f"{role}-*.told")]
    return max(((stat.st_mtime_ns, name) for stat, name in found if stat.st_size), default=(0, ""))[1]


class Actor(Protocol):
    """A process with a role, as its parent knows it."""

    role: str
    name: str

    def start(self) -> None:
        """Begin."""

    def kill(self) -> None:
        """SIGKILL, also if it is stopped."""

    def stop(self) -> None:
        """SIGSTOP."""

    def resume(self) -> None:
        """SIGCONT."""

    def again(self) -> Actor:
        """Who plays the role next; not started."""

    def death(self) -> str:
        """Why it has ended by itself; empty if it runs."""


#: What a forked process does: with a diary of its own, and a seed.
Work = Callable[[Diary, int], None]


class Forked:
    """A process that does a piece of work. Those who play one role share its `numbers`, so each has another name."""

    def __init__(self, role: str, folder: Path, work: Work, chance: random.Random, numbers: Iterator[int]) -> None:
        self.role, self.name = role, f"{role}-{next(numbers)}"
        self._folder, self._work, self._chance, self._numbers = folder, work, chance, numbers
        self._pid = 0

    def start(self) -> None:
        """See `Actor`."""
        seed = self._chance.getrandbits(32)
        self._pid = fork(lambda: self._work(Diary(self._folder, self.name), seed), self._died)

    @property
    def _died(self) -> Path:
        return self._folder / f"{self.name}.died"

    def kill(self) -> None:
        """See `Actor`."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def stop(self) -> None:
        """See `Actor`."""
        os.kill(self._pid, signal.SIGSTOP)

    def resume(self) -> None:
        """See `Actor`."""
        os.kill(self._pid, signal.SIGCONT)

    def again(self) -> Forked:
        """See `Actor`."""
        return Forked(self.role, self._folder, self._work, self._chance, self._numbers)

    def death(self) -> str:
        """See `Actor`."""
        pid, _ = os.waitpid(self._pid, os.WNOHANG)
        return why(self._died) if pid else ""


def fork(work: Callable[[], None], died: Path) -> int:
    """Start a process that does a piece of work and ends, also if its parent does; returns its id. If it fails, it says
    why in a file."""
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _child(work, died, parent)
    return pid


def _child(work: Callable[[], None], died: Path, parent: int) -> NoReturn:
    """A forked process: it never returns to what its parent was doing."""
    code = 1
    try:
        faulthandler.disable()
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        work()
        code = 0
    except BaseException:
        died.write_text(traceback.format_exc())
    finally:
        os._exit(code)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def why(died: Path) -> str:
    """What a process said that has ended by itself."""
    return died.read_text().strip().splitlines()[-1] if died.exists() else "without a word"


class Cast:
    """All actors of a run."""

    def __init__(self) -> None:
        self._actors: list[Actor] = []
        #: Those that are stopped, and until when.
        self._stopped: dict[str, float] = {}
        #: Those that others have replaced while they were stopped: until when they go on beside them.
        self._replaced: dict[str, float] = {}
        self.kills = self.stops = self.splits = 0

    def add(self, actor: Actor) -> None:
        """Let somebody begin."""
        actor.start()
        self._actors.append(actor)

    def running(self, *roles: str) -> list[Actor]:
        """Who is not stopped."""
        found = [each for each in self._actors if each.name not in self._stopped]
        return [each for each in found if not roles or each.role in roles]

    def kill(self, actor: Actor) -> None:
        """Kill somebody, and let another one play its role."""
        self.kills += 1
        self._end(actor)
        if self._replaced.pop(actor.name, None) is None:
            self.add(actor.again())

    def _end(self, actor: Actor) -> None:
        actor.kill()
        self._actors.remove(actor)
        self._stopped.pop(actor.name, None)

    def stop(self, actor: Actor, seconds: float) -> None:
        """Stop somebody for so long."""
        self.stops += 1
        actor.stop()
        self._stopped[actor.name] = time.monotonic() + seconds

    def split(self, actor: Actor, seconds: float, beside_s: float) -> None:
        """Stop somebody for so long while another one plays its role; then both do, for a while. Who was replaced
        already is only stopped: it has a successor, and with two of them a role has more players for good. Two movers
        with one transactional id fence each other again and again, and neither gets anywhere."""
        self.stop(actor, seconds)
        if actor.name in self._replaced:
            return
        self.splits += 1
        self._replaced[actor.name] = time.monotonic() + seconds + beside_s
        self.add(actor.again())

    def go_on(self) -> None:
        """Resume those whose stop is over; end those who were replaced."""
        now_s = time.monotonic()
        for actor in list(self._actors):
            if self._stopped.get(actor.name, now_s) < now_s:
                self._resume(actor)
            elif self._replaced.get(actor.name, now_s) < now_s:
                self._end(actor)
                del self._replaced[actor.name]

    def _resume(self, actor: Actor) -> None:
        del self._stopped[actor.name]
        actor.resume()

    def resume_all(self) -> None:
        """Let everybody go on, and nobody twice."""
        for actor in list(self._actors):
            if actor.name in self._replaced:
                self._end(actor)
            elif actor.name in self._stopped:
                self._resume(actor)
        self._replaced.clear()

    def deaths(self) -> list[str]:
        """Who has ended by itself, and why."""
        found = []
        for actor in list(self._actors):
            reason = actor.death()
            if reason:
                self._actors.remove(actor)
                found.append(f"{actor.name} ended by itself: {reason}")
        return found

    def end(self, *roles: str) -> None:
        """Kill all, or those with these roles."""
        for actor in list(self._actors):
            if not roles or actor.role in roles:
                self._end(actor)
