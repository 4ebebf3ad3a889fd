"""Fits a table into the width of a terminal.

A table that is too wide is made narrower step by step, until it fits: columns that have a shorter form use it, columns
with a rank are left out, those with the highest rank first, and the widest column is cut. Programs read the other
formats, which always have everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

GAP = 2
#: A column is not cut below this width.
_NARROWEST = 8


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name (used in every format except table), its title in a table, and how a table shows a value."""

    name: str
    title: str = ""
    shown: Callable[[Any], str] | None = None
    #: Whether a table shortens a long cell.
    cut: bool = True
    #: How a table shows a value where there is little space.
    brief: Callable[[Any], str] | None = None
    #: Above 0: left out where there is little space, the highest first.
    rank: int = 0
    #: The width that cells are cut to; 0: the usual one.
    width: int = 0

    @property
    def heading(self) -> str:
        """The table's title."""
        return (self.title or self.name.replace("_", " ")).upper()


#: The widths of columns, headings included, as these rows need them.
Measure = Callable[[Sequence[Column]], list[int]]


def fitted(columns: Sequence[Column], measure: Measure, most: int) -> list[Column]:
    """The columns in the form in which the table is at most that wide, as far as that can be reached."""
    kept = list(columns)
    if _total(measure(kept)) <= most:
        return kept
    kept = [replace(column, shown=column.brief) if column.brief is not None else column for column in kept]
    for leaving in sorted((column for column in kept if column.rank), key=lambda column: -column.rank):
        if _total(measure(kept)) <= most:
            return kept
        kept.remove(leaving)
    return _cut(kept, measure(kept), most)


def _cut(columns: list[Column], widths: list[int], most: int) -> list[Column]:
    """Cut the widest column of those that may be cut by what is too much."""
    over = _total(widths) - most
    able = [number for number, column in enumerate(columns) if column.cut and widths[number] > _NARROWEST]
    if over <= 0 or not able:
        return columns
    widest = max(able, key=lambda number: widths[number])
    columns[widest] = replace(columns[widest], width=max(widths[widest] - over, _NARROWEST))
    return columns


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)
