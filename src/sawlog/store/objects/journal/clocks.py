"""`Clocks`: how a process measures elapsed time, and how it sleeps."""

from __future__ import annotations

from .... import clock


class Clocks:
    """The clocks of the machine. Tests substitute their own."""

    def now_s(self) -> tuple[float, float]:
        """Return seconds by a clock that keeps running while the machine sleeps, where available, and by the wall
        clock. Only differences matter, and the larger one counts."""
        return clock.boot_s(), clock.wall_s()

    def pause(self, seconds: float) -> None:
        clock.pause(seconds)


def passed_s(now: tuple[float, float], then: tuple[float, float]) -> float:
    """Return the elapsed time, as far as it can be known: one clock may have stopped or been set back."""
    return max(after - before for after, before in zip(now, then, strict=True))
