"""A simulated store that is deleted, rolled back, or loses objects under its running processes. One seed is one story.

    deleted        every object is gone
    rolled back    the bucket returns to an earlier state
    last commit    the newest commit is gone
    sawlog.json    only this object is gone
    careless       the server ignores the conditions of creates from now on

Writers must stop soon, the remains must not open as an intact store, and `repair` must restore a state with everything
that was acknowledged before the loss.
"""

from __future__ import annotations

from contextlib import suppress

from sawlog.errors import AmbiguousAppend, CorruptData, SawlogError, StorageError, UnsafeStorage
from sawlog.store.objects.journal import HISTORY_S, STORE, StoreParameters
from sawlog.store.objects.repair import diagnose, repair
from sawlog.store.objects.state.commit import COMMITS
from sawlog.store.objects.store import ObjectStore

from .planted import planted
from .simulated import Faults, SimulatedBucket, SimulatedClocks, World, determined

KINDS = ("deleted", "rolled back", "last commit", "sawlog.json", "careless")
PARAMETERS = StoreParameters(belief_s=60.0, grace_s=600.0, readers_s=300.0, checkpoint_every=8)
FAULTS = Faults(lost=0.01, applied=0.02, repeated=0.02, denied=0.005, flipped=0.01)
#: Time beyond the interval between two checks in which a writer must notice the loss: requests fail, and it pauses.
_SLACK_S = 15.0
_WRITERS = 3


class Loss:
    """One store, its writers, and its loss."""

    def __init__(self, seed: int, kind: str) -> None:
        self.world = World(seed, FAULTS)
        self.kind = kind
        self.wrong: list[str] = []
        #: Acknowledged values, with time and offset.
        self.acked: dict[bytes, tuple[float, int]] = {}
        #: The removed commit.
        self.lost = b""
        #: The writers that have noticed the loss.
        self.stopped: set[str] = set()

    def open(self) -> ObjectStore:
        """Open the store like a new process."""
        while True:
            try:
                bucket, clocks = SimulatedBucket(self.world), SimulatedClocks(self.world)
                return ObjectStore.open(bucket, parameters=PARAMETERS, maintenance_interval_s=None, clocks=clocks)
            except UnsafeStorage:
                raise
            except StorageError:
                self.world.sleep(0.1)

    def write(self, name: str) -> None:
        """Append until an error stops the writer."""
        topic, number = self.open().topic("t"), 0
        while True:
            number += 1
            value = f"{name}:{number}".encode()
            try:
                offset = topic.append(value).offset
            except CorruptData:
                self.stopped.add(name)
                return
            except (AmbiguousAppend, StorageError):
                continue
            self.acked[value] = (self.world.now_s, offset)
            self.world.sleep(self.world.random.uniform(0, 1))

    def run(self) -> list[str]:
        """Run the story and return the defects."""
        self.open().create_topic("t")
        for number in range(_WRITERS):
            self.world.start(f"w{number}", lambda name=f"w{number}": self.write(name))  # type: ignore[misc]
        backup, backed_up_s = dict(self.world.objects), self.world.now_s
        for step in range(self.world.random.randint(200, 600)):
            self.world.step()
            if step == 100:
                backup, backed_up_s = dict(self.world.objects), self.world.now_s
        lost_s = self.world.now_s
        self._lose(backup)
        while self.world.now_s < lost_s + HISTORY_S + _SLACK_S and self.world.step():
            pass
        if self.kind == "deleted" and len(self.stopped) < _WRITERS:
            self.wrong.append(f"only {self.stopped} have noticed that the store was deleted")
        errors = [str(actor.error) for actor in self.world.actors if actor.error is not None]
        self.world.end()
        self.wrong += errors
        self._judge(backed_up_s if self.kind == "rolled back" else lost_s)
        return self.wrong

    def _lose(self, backup: dict[str, tuple[bytes, float]]) -> None:
        objects = self.world.objects
        if self.kind in ("deleted", "rolled back"):
            objects.clear()
            objects.update(backup if self.kind == "rolled back" else {})
        elif self.kind == "last commit":
            self.lost = objects.pop(max(key for key in objects if key.startswith(COMMITS)))[0]
        elif self.kind == "sawlog.json":
            del objects[STORE]
        self.world.is_careless = self.kind == "careless"

    def _judge(self, until_s: float) -> None:
        if self.kind == "careless":
            with suppress(UnsafeStorage):
                self.open()
                self.wrong.append("a store is opened for writing on a server that ignores conditions")
            return
        if self.kind == "sawlog.json":
            with suppress(CorruptData):
                self.open()
                self.wrong.append("a store is created over the commits of another one")
        try:
            repair(SimulatedBucket(self.world), diagnose(SimulatedBucket(self.world)), "before-repair-1")
            found = self._readable(self.open())
        except SawlogError as error:
            if self.kind != "deleted":
                self.wrong.append(f"it cannot be repaired: {error}")
            return
        must = [value for value, (time_s, _) in self.acked.items() if time_s <= until_s]
        if self.kind == "deleted":
            must = []
        # A writer that continues has seen none of the lost commits, so all its acknowledgements since then are true.
        must += [
            value
            for value, (time_s, _) in self.acked.items()
            if time_s > until_s and value.partition(b":")[0].decode() not in self.stopped
        ]
        for value in must:
            if value in self.lost:
                continue  # it was in the lost commit
            if found.get(value) != self.acked[value][1]:
                self.wrong.append(f"{value!r} was acknowledged at {self.acked[value][1]}, and is at {found.get(value)}")

    def _readable(self, store: ObjectStore) -> dict[bytes | None, int]:
        """Return the readable records. The checkpoint of a writer that has not noticed the loss yet keeps a state with
        lost commits; `verify` reports their records."""
        log = store.topic("t").partition(0)
        found: dict[bytes | None, int] = {}
        for offset in range(log.lowest_offset, log.visible_offset):
            with suppress(StorageError, CorruptData):
                found[log.read(offset).value] = offset
        return found


def run(seed: int, kind: str, bug: str | None = None) -> list[str]:
    """Run one story and return the defects."""
    loss = Loss(seed, kind)
    with determined(loss.world, seed), planted(bug):
        return loss.run()
