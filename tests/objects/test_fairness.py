"""Writers of one bucket give way: continuous commits of one do not starve the others, however slow the bucket is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sawlog.store.objects.journal import Journal

from .simulated import SimulatedBucket, SimulatedClocks, World

#: Maximum number of commits of others while a writer waits for its own.
_MOST = 500


class SlowBucket(SimulatedBucket):
    """A bucket whose delay is half before a request and half before its answer."""

    def __init__(self, world: World, latency_s: float) -> None:
        super().__init__(world)
        self._way_s = latency_s / 2

    def create(self, key: str, data: bytes) -> bool:
        """See `Bucket`."""
        self._world.sleep(self._way_s)
        made = super().create(key, data)
        self._world.sleep(self._way_s)
        return made

    def get(self, key: str) -> bytes | None:
        """See `Bucket`."""
        self._world.sleep(self._way_s)
        found = super().get(key)
        self._world.sleep(self._way_s)
        return found

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """See `Bucket`. All requests at the same time."""
        self._world.sleep(self._way_s)
        found = [SimulatedBucket.get(self, key) for key in keys]
        self._world.sleep(self._way_s)
        return found


@pytest.mark.alternating
@pytest.mark.parametrize("latency_s", [0.05, 0.5, 5.0])
@pytest.mark.parametrize("others", [1, 2])
def test_a_writer_that_commits_continuously_does_not_starve_others(latency_s: float, others: int) -> None:
    world = World(seed=7)
    done: list[int] = []

    def busy() -> None:
        journal = Journal(SlowBucket(world, latency_s), clocks=SimulatedClocks(world))
        while True:
            journal.commit([[]])
            journal.back_off()

    def late() -> None:
        journal = Journal(SlowBucket(world, latency_s), clocks=SimulatedClocks(world))
        world.sleep(100 * latency_s)  # the others believe that they are alone
        for _ in range(3):
            before = len(world.creators)
            journal.commit([[]])
            done.append(len(world.creators) - before)

    for number in range(others):
        world.start(f"busy-{number}", busy)
    waiting = world.start("late", late)
    try:
        while not waiting.has_ended and len(world.creators) < 100 + 2 * _MOST:
            assert world.step()
    finally:
        world.end()
    assert len(done) == 3, f"{done}, and then kept out of {len(world.creators)} commits"
    assert max(done) <= _MOST
