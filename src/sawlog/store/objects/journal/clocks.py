"""`Clocks`: how a process measures how long ago something was, and how it waits."""

from __future__ import annotations

from .... import clock


class Clocks:
    """The machine's own. A test may have others."""

    def now_s(self) -> tuple[float, float]:
        """Seconds by a clock that also runs while the machine sleeps, where there is one, and by the wall clock. What
        matters is how far they have moved, and the one that moved further counts."""
        return clock.boot_s(), clock.wall_s()

    def pause(self, seconds: float) -> None:
        """Wait."""
        clock.pause(seconds)


def passed_s(now: tuple[float, float], then: tuple[float, float]) -> float:
    """The time between, as far as it can be known: a clock may have stood still, or been set back."""
    return max(after - before for after, before in zip(now, then, strict=True))
