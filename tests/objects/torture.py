"""Real processes that write, read and maintain one store, killed, stopped, resumed, and in conflict.

`python -m tests.objects.torture --seconds 60 --seed 7 [--server moto] [--changes 300] [--bug "no nonce"]`

`acting` and `roles` describe these processes. Answers are believed for about a second, and stops are longer than the
grace period. A seeded wrapper around the bucket makes requests fail without an answer, applied or not, or applies them
later. At the end the processes are killed, garbage is collected, and `verdict` checks the store.

The seed decides the disturbances, and the machine decides the progress in between. So a run cannot be repeated exactly;
a `scenario` can.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from sawlog.errors import SawlogError
from sawlog.store.objects import maintenance, session
from sawlog.store.objects.bucket import Unanswered
from sawlog.store.objects.store import ObjectStore

from . import roles
from .acting import Actor, Cast, Diary, Forked, fork, last_told, told
from .planted import BUGS, planted
from .roles import Site
from .servers import started
from .verdict import Told, wrong_with_bucket, wrong_with_digests, wrong_with_readers, wrong_with_records

#: The grace period. The belief in answers and the length of stops follow from it.
GRACE_S = 1.5
#: Lengths of stops in grace periods: shorter than an answer is believed, longer, and longer than the grace period.
STOPS = (0.05, 0.2, 0.5, 1.5, 2.0, 3.0)
#: Time limit for collection until nothing is left.
PATIENCE_S = 60.0
#: Time in which another writer must take over from the active one, in grace periods.
_SOON = 2.0


@dataclass
class Result:
    """The result of a run."""

    wrong: list[str] = field(default_factory=list)
    acked: int = 0
    kills: int = 0
    stops: int = 0
    #: Number of processes that were replaced while stopped, and resumed beside their successors.
    splits: int = 0
    #: Number of changes of the writer, after a kill or stop of the active one or with two at once.
    changes: int = 0
    commits: int = 0

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.stops} stops, {self.splits} of them replaced, {self.changes} changes of the "
            f"writer, {self.commits} commits, {self.acked} records acknowledged, {len(self.wrong)} wrong"
        )


class Torture:
    """One store, its processes, and the disturbances."""

    #: Number of actors in each role.
    parts: ClassVar[dict[str, int]] = {"write": 3, "read": 2, "maintain": 2}
    #: Roles that count for changes of the writer.
    writers = "write"

    def __init__(self, site: Site, folder: Path, seed: int, *, bug: str | None, leftovers: bool = True) -> None:
        self._site, self._folder, self._bug, self._leftovers = site, folder, bug, leftovers
        self._chance = random.Random(seed)
        self._cast = Cast()
        self.result = Result()

    def run(self, seconds: float, changes: int = 0) -> Result:
        """Disturb for a time or a number of changes of the writer, then return the verdict."""
        self._in_child(self._found)
        try:
            self._begin()
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s and not (changes and self.result.changes >= changes):
                self._disturb()
                self.result.wrong += self._cast.deaths()
                if self.result.wrong:
                    break
            self._end()
        finally:
            self._cast.end()
        self._in_child(self._judge)
        verdict = json.loads((self._folder / "verdict").read_text())
        self.result.wrong += verdict["wrong"]
        self.result.acked, self.result.commits = verdict["acked"], verdict["commits"]
        self.result.kills, self.result.stops, self.result.splits = self._cast.kills, self._cast.stops, self._cast.splits
        return self.result

    def _found(self) -> None:
        self._site.found()

    def _begin(self) -> None:
        for role, count in self.parts.items():
            self._play(role, count, getattr(roles, role), self._site)

    def _play(self, role: str, count: int, work: Callable[[Site, Diary, int], None], site: Site) -> None:
        """Start a number of actors in a role."""

        def planting(diary: Diary, seed: int) -> None:
            with planted(self._bug, is_affected=lambda: diary.number % 2 == 1):
                work(site, diary, seed)

        numbers = itertools.count(1)
        for _ in range(count):
            self._cast.add(Forked(role, self._folder, planting, self._chance, numbers))

    def _in_child(self, work: Callable[[], None]) -> None:
        """Run a function that uses the bucket in a child, since this process must not, and wait for it."""

        def planting() -> None:  # affected like all others: a fold that is equal everywhere shows no difference
            with planted(self._bug, is_affected=lambda: False):
                work()

        died = self._folder / "judge.died"
        _, status = os.waitpid(fork(planting, died), 0)
        if status:
            raise RuntimeError(died.read_text())

    def _end(self) -> None:
        """Called before all are killed."""

    # --- disturbances

    def _disturb(self) -> None:
        time.sleep(self._chance.uniform(0.02, 0.15))
        self._cast.go_on()
        before = last_told(self._folder, self.writers)
        running = self._cast.running()
        active = [each for each in running if each.name == before]
        if not running:
            return
        chosen = active[0] if active and self._chance.random() < 0.7 else self._chance.choice(running)
        self._strike(chosen)
        if chosen.name == before and self._cast.running(self.writers):
            self.result.changes += self._wait_for_another(before)

    def _strike(self, chosen: Actor) -> None:
        """Kill an actor, stop it, or stop it and start a successor meanwhile."""
        how, stop_s = self._chance.random(), self._site.grace_s * self._chance.choice(STOPS)
        if how < 0.4:
            self._cast.kill(chosen)
        elif how < 0.8:
            self._cast.stop(chosen, stop_s)
        else:
            self._cast.split(chosen, stop_s, beside_s=self._site.grace_s)

    def _wait_for_another(self, before: str) -> bool:
        """Wait briefly for another writer to take over, and return True if one did."""
        end_s = time.monotonic() + _SOON * self._site.grace_s
        while time.monotonic() < end_s:
            if last_told(self._folder, self.writers) != before:
                return True
            time.sleep(0.01)
        return False

    # --- the verdict, in a process of its own

    def _judge(self) -> None:
        """Write the defects to a file."""
        acked = Told()
        for topic, number, first, *values in told(self._folder, "write"):
            acked.note((topic, number), range(first, first + len(values)), [each.encode() for each in values])
        end_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                wrong, commits = self._verdict(acked)
                break
            except Unanswered as error:  # on a busy machine answers may come too late to be believed
                if time.monotonic() > end_s:
                    wrong, commits = [f"at the end: {error}"], 0
                    break
            except (SawlogError, AssertionError) as error:
                wrong, commits = [f"at the end: {type(error).__name__}: {error}"], 0
                break
        verdict = {"wrong": wrong, "acked": len(acked.acked), "commits": commits}
        (self._folder / "verdict").write_text(json.dumps(verdict))

    def _verdict(self, acked: Told) -> tuple[list[str], int]:
        with ObjectStore.open(self._site.url, maintenance_interval_s=None) as store:
            wrong = wrong_with_records(store, acked)
            wrong += wrong_with_readers(store, self._folder)
            if self._leftovers:
                self._settle(store)
                wrong += wrong_with_bucket(store._session)
            with ObjectStore.open(self._site.url, "r") as again:
                wrong += wrong_with_digests(store, again)
                wrong += wrong_with_records(again, acked)
            return wrong, store._session.known()

    def _settle(self, store: ObjectStore) -> None:
        """Wait until nothing is left to collect: notes, the floor, garbage and a sweep take time."""
        quiet = 0
        end_s = time.monotonic() + PATIENCE_S
        while quiet < 2 and time.monotonic() < end_s:
            store._maintainer._since_collection = None
            store.maintain()
            quiet = 0 if store._maintainer.collected else quiet + 1
            time.sleep(self._site.grace_s * 1.05)


def make_small() -> None:
    """Lower the sizes at which uploads and consolidation begin, for this process and its children."""
    session.INLINE_BATCH_BYTES = 600
    maintenance._LEAST_EXTENTS = 6


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--changes", type=int, default=0, help="end after so many changes of the writer")
    parser.add_argument("--server", choices=["file", "moto", "seaweedfs"], default="file", help="where the bucket is")
    parser.add_argument("--faults", type=float, default=0.01, help="the share of requests that fail in each way")
    parser.add_argument("--grace", type=float, default=GRACE_S, help="the grace period in seconds; others follow")
    parser.add_argument("--no-leftovers", action="store_true", help="do not wait until nothing is left to collect")
    parser.add_argument("--bug", choices=sorted(BUGS))
    given = parser.parse_args()
    make_small()
    folder = Path(tempfile.mkdtemp(prefix="sawlog-torture-"))
    with ExitStack() as last:
        last.callback(shutil.rmtree, folder, ignore_errors=True)
        url = f"file://{folder}/bucket"
        if given.server != "file":
            server = last.enter_context(started(given.server, folder / "server"))
            url = server.new_url()
            os.environ.update(server.variables, XDG_CACHE_HOME=str(folder / "cache"))
        site = Site(url, given.grace, given.faults)
        made = Torture(site, folder, given.seed, bug=given.bug, leftovers=not given.no_leftovers)
        found = made.run(given.seconds, given.changes)
    sys.stdout.write(f"seed {given.seed}: {found}\n")
    for each in found.wrong[:10]:
        sys.stdout.write(f"    {each}\n")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
