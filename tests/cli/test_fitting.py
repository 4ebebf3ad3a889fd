"""Tables that are too wide for the terminal."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sawlog.cli.output import Column, Printer

ROWS = [{"name": "a-long-name" * 4, "size": 12345, "time": "2026-11-17 12:09:39.843", "rare": "x" * 10}]
COLUMNS = [
    Column("name"),
    Column("size"),
    Column("time", brief=lambda value: str(value)[:10]),
    Column("rare", rank=1),
]


def lines(width: int | None, capsys: pytest.CaptureFixture[str] | None = None) -> list[str]:
    stream = io.BytesIO()
    Printer("table", stream, width).rows(ROWS, COLUMNS)
    return stream.getvalue().decode().splitlines()


def test_a_table_is_narrowed_step_by_step() -> None:
    assert lines(None) == lines(200)
    assert lines(None)[0].split() == ["NAME", "SIZE", "TIME", "RARE"]
    assert lines(80)[0].split() == ["NAME", "SIZE", "TIME", "RARE"]
    assert "2026-11-17 " in lines(80)[1]
    assert "12:09" not in lines(80)[1]
    assert lines(66)[0].split() == ["NAME", "SIZE", "TIME"]
    assert lines(50)[1].startswith("a-long-name")
    assert "…" in lines(50)[1]


@given(some.integers(32, 200))
def test_a_table_is_never_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, lines(width))) <= width


def test_columns_that_are_left_out_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    lines(66)
    assert "not shown (--output csv has it): rare" in capsys.readouterr().err


def test_other_formats_contain_every_column() -> None:
    stream = io.BytesIO()
    Printer("csv", stream, 20).rows(ROWS, COLUMNS)
    assert stream.getvalue().decode().splitlines()[0] == "name,size,time,rare"
