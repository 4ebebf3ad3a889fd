"""A row of the table: two figures, their ratio, the bar it has to reach, and whether it does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rounds import Sample


class Unit(Enum):
    """Unit of a figure."""

    RECORDS = "records a second"
    BYTES = "bytes a second"
    SECONDS = "seconds"
    MEMORY = "bytes"

    @property
    def is_rate(self) -> bool:
        """True if more is better."""
        return self in (Unit.RECORDS, Unit.BYTES)


_STEPS = {
    Unit.RECORDS: ((1e6, "M/s"), (1e3, "k/s"), (1, "/s")),
    Unit.BYTES: ((1e9, "GB/s"), (1e6, "MB/s")),
    Unit.SECONDS: ((1, "s"), (1e-3, "ms"), (1e-6, "µs")),
    Unit.MEMORY: ((1e6, "MB"),),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One number by the wall clock, and the same by CPU time where that means something."""

    unit: Unit
    wall: float
    cpu: float | None = None

    def __str__(self) -> str:
        steps = _STEPS[self.unit]
        scale, name = next((step for step in steps if self.wall >= step[0]), steps[-1])
        number = self.wall / scale
        return f"{number:.{0 if number >= 99.5 else 1 if number >= 9.95 else 2}f} {name}"


def rate(unit: Unit, sample: Sample, amount: float, *, waits: bool = False) -> Figure:
    """`amount` a second. What waits for a disk has no rate by CPU time."""
    return Figure(unit, amount / sample.wall_s, None if waits or not sample.cpu_s else amount / sample.cpu_s)


@dataclass(frozen=True, slots=True)
class Bar:
    """Target of a row: a minimum ratio, or a maximum or minimum figure of sawlog's."""

    ratio: float | None = None
    most: Figure | None = None
    least: Figure | None = None
    percent: bool = False

    def __str__(self) -> str:
        if self.most is not None:
            return f"≤ {self.most}"
        if self.least is not None:
            return f"≥ {self.least}"
        assert self.ratio is not None
        return f"≥ {shown_ratio(self.ratio, percent=self.percent)}"


def times(ratio: float) -> Bar:
    """A multiple of the rival's rate."""
    return Bar(ratio=ratio)


def share(ratio: float) -> Bar:
    """A share of the machine's limit."""
    return Bar(ratio=ratio, percent=True)


def at_most(unit: Unit, number: float) -> Bar:
    """No more than this, whatever others need."""
    return Bar(most=Figure(unit, number))


def at_least(unit: Unit, number: float) -> Bar:
    """No less than this, on whatever machine."""
    return Bar(least=Figure(unit, number))


def shown_ratio(ratio: float, *, percent: bool = False) -> str:
    """For people."""
    if percent:
        return f"{ratio * 100:.0f} %"
    return f"{ratio:.{0 if ratio >= 99.5 else 1 if ratio >= 9.95 else 2}f}×"


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison. `percent`: the rival is the machine's limit, and the ratio a part of it."""

    what: str
    ours: Figure
    against: str = ""
    rival: Figure | None = None
    bar: Bar | None = None
    percent: bool = False

    @property
    def ratio(self) -> float | None:
        """Speed relative to the rival by wall time; above 1 is better."""
        return None if self.rival is None else self._better(self.ours.wall, self.rival.wall)

    @property
    def cpu_ratio(self) -> float | None:
        """Speed relative to the rival by CPU time."""
        if self.rival is None or self.ours.cpu is None or self.rival.cpu is None:
            return None
        return self._better(self.ours.cpu, self.rival.cpu)

    def _better(self, ours: float, rival: float) -> float:
        return ours / rival if self.ours.unit.is_rate else rival / ours

    @property
    def met(self) -> bool | None:
        """True if the target is met by wall time; None without a target."""
        return self._reaches(self.ours.wall, self.ratio)

    @property
    def met_by_cpu(self) -> bool | None:
        """True if the target is met by CPU time; None if CPU time is not comparable."""
        if self.ours.cpu is None:
            return None
        return self._reaches(self.ours.cpu, self.cpu_ratio)

    def _reaches(self, figure: float, ratio: float | None) -> bool | None:
        if self.bar is None:
            return None
        if self.bar.most is not None:
            return figure <= self.bar.most.wall
        if self.bar.least is not None:
            return figure >= self.bar.least.wall
        assert self.bar.ratio is not None
        return None if ratio is None else ratio >= self.bar.ratio
