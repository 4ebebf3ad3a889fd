"""Actors: the processes of a test run, each with a role, shared by all harnesses over a bucket.

    start, kill, stop, resume   control an `Actor`; `again` returns its successor in the role after a kill
    say                         append a line to a diary that survives a kill: acknowledgements with their offsets, and
                                records that were read
    told                        the diaries of all actors that have played a role

An actor is a forked process (`Forked`) or a program (`roles.Broker`). A `Cast` controls all actors: it resumes them
after a stop and reports every actor that has ended by itself, which is always a defect. The process with the cast opens
no bucket and starts no threads, because obstore must not be used before a fork.
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

#: Interval at which a process checks that its parent is alive.
_LOOK_S = 1.0


class Diary:
    """The diary of one process, named after its role and a number."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.number = int(name.rpartition("-")[2])
        self._file = os.open(folder / f"{name}.told", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(self, *what: object) -> None:
        """Append a line that survives a kill of this process."""
        os.write(self._file, json.dumps(what).encode() + b"\n")


def told(folder: Path, role: str) -> Iterator[list[Any]]:
    """Return the diaries of all actors of a role. An unterminated last line does not count."""
    for file in sorted(folder.glob(f"{role}-*.told")):
        for line in file.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield json.loads(line)


def last_told(folder: Path, role: str) -> str:
    """Return the actor of a role with the latest entry; empty if there is none."""
    found = [(file.stat(), file.stem) for file in folder.glob(f"{role}-*.told")]
    return max(((stat.st_mtime_ns, name) for stat, name in found if stat.st_size), default=(0, ""))[1]


class Actor(Protocol):
    """The parent's handle of a process with a role."""

    role: str
    name: str

    def start(self) -> None:
        """Start the process."""

    def kill(self) -> None:
        """Send SIGKILL, even while it is stopped."""

    def stop(self) -> None:
        """Send SIGSTOP."""

    def resume(self) -> None:
        """Send SIGCONT."""

    def again(self) -> Actor:
        """Return the successor in the role, not started."""

    def death(self) -> str:
        """Return the reason if it has ended by itself; empty while it runs."""


#: The work of a forked process, given its diary and a seed.
Work = Callable[[Diary, int], None]


class Forked:
    """A forked process. All actors of one role share `numbers`, so that their names differ."""

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
    """Fork a process that runs `work` and return its id. It ends with its parent, and writes a failure to a file."""
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _child(work, died, parent)
    return pid


def _child(work: Callable[[], None], died: Path, parent: int) -> NoReturn:
    """Run in the forked child. Never returns to the parent's code."""
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
    """Return the failure of a process that has ended by itself."""
    return died.read_text().strip().splitlines()[-1] if died.exists() else "without a word"


class Cast:
    """The actors of a run."""

    def __init__(self) -> None:
        self._actors: list[Actor] = []
        #: Stopped actors, with the end of their stop.
        self._stopped: dict[str, float] = {}
        #: Actors that were replaced while stopped, with the end of the time in which they run beside their successors.
        self._replaced: dict[str, float] = {}
        self.kills = self.stops = self.splits = 0

    def add(self, actor: Actor) -> None:
        """Start an actor."""
        actor.start()
        self._actors.append(actor)

    def running(self, *roles: str) -> list[Actor]:
        """Return the actors that are not stopped."""
        found = [each for each in self._actors if each.name not in self._stopped]
        return [each for each in found if not roles or each.role in roles]

    def kill(self, actor: Actor) -> None:
        """Kill an actor and start its successor."""
        self.kills += 1
        self._end(actor)
        if self._replaced.pop(actor.name, None) is None:
            self.add(actor.again())

    def _end(self, actor: Actor) -> None:
        actor.kill()
        self._actors.remove(actor)
        self._stopped.pop(actor.name, None)

    def stop(self, actor: Actor, seconds: float) -> None:
        """Stop an actor for a time."""
        self.stops += 1
        actor.stop()
        self._stopped[actor.name] = time.monotonic() + seconds

    def split(self, actor: Actor, seconds: float, beside_s: float) -> None:
        """Stop an actor while its successor plays the role; then both do, for a while. An actor that was replaced
        before is only stopped: a second successor would stay, and two movers with one transactional id fence each other
        forever."""
        self.stop(actor, seconds)
        if actor.name in self._replaced:
            return
        self.splits += 1
        self._replaced[actor.name] = time.monotonic() + seconds + beside_s
        self.add(actor.again())

    def go_on(self) -> None:
        """Resume actors at the end of their stop; end replaced ones when their time is over."""
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
        """Resume all actors and end the replaced ones."""
        for actor in list(self._actors):
            if actor.name in self._replaced:
                self._end(actor)
            elif actor.name in self._stopped:
                self._resume(actor)
        self._replaced.clear()

    def deaths(self) -> list[str]:
        """Return the actors that have ended by themselves, with the reason."""
        found = []
        for actor in list(self._actors):
            reason = actor.death()
            if reason:
                self._actors.remove(actor)
                found.append(f"{actor.name} ended by itself: {reason}")
        return found

    def end(self, *roles: str) -> None:
        """Kill all actors, or those of some roles."""
        for actor in list(self._actors):
            if not roles or actor.role in roles:
                self._end(actor)
