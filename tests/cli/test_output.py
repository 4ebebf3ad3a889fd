"""Every format prints the same rows; bytes survive; no record controls the terminal."""

from __future__ import annotations

import base64
import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sawlog.cli.formats import _unmarked
from sawlog.cli.output import Column, OutputFormat, Printer, cell, plain, visible
from sawlog.display import size_text

COLUMNS = [Column("name"), Column("size_bytes", "size", size_text), Column("value")]
ROWS = [{"name": "a", "size_bytes": 2048, "value": b"x"}, {"name": "bb", "size_bytes": 5, "value": b"\xff"}]


def printed(form: OutputFormat, rows: list[dict[str, object]], columns: list[Column] = COLUMNS) -> str:
    stream = io.BytesIO()
    Printer(form, stream).rows(rows, columns)
    return stream.getvalue().decode()


def test_table_is_aligned_and_readable() -> None:
    assert printed("table", ROWS).splitlines() == [
        "NAME     SIZE  VALUE",
        "a     2.0 KiB  x",
        "bb        5 B  base64:/w==",
    ]


def test_json_is_one_array() -> None:
    assert json.loads(printed("json", ROWS)) == [
        {"name": "a", "size_bytes": 2048, "value": "x"},
        {"name": "bb", "size_bytes": 5, "value": {"base64": "/w=="}},
    ]


def test_json_without_rows_is_an_empty_array() -> None:
    assert json.loads(printed("json", [])) == []


def test_ndjson_is_one_object_per_line() -> None:
    assert [json.loads(line)["name"] for line in printed("ndjson", ROWS).splitlines()] == ["a", "bb"]


def test_csv_has_a_header_and_one_line_per_row() -> None:
    rows = list(csv.reader(io.StringIO(printed("csv", ROWS))))
    assert rows == [["name", "size_bytes", "value"], ["a", "2048", "x"], ["bb", "5", "base64:/w=="]]


def test_csv_without_rows_has_its_header() -> None:
    assert printed("csv", []) == "name,size_bytes,value\n"


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_text_in_json_stays_text(form: OutputFormat) -> None:
    assert "Zürich" in printed(form, [{"name": "Zürich"}])


def test_long_tables_are_printed_to_the_end() -> None:
    rows = [{"name": f"n{number}", "size_bytes": number, "value": None} for number in range(1200)]
    lines = printed("table", rows).splitlines()
    assert len(lines) == 1201
    assert lines[-1].startswith("n1199")


def test_long_cells_are_cut_in_tables_only() -> None:
    row = {"name": "a", "value": b"x" * 500}
    assert "x" * 80 not in printed("table", [row])
    assert "x" * 500 in printed("csv", [row])


def test_control_characters_are_made_visible_in_tables() -> None:
    shown = printed("table", [{"name": "a", "value": "\x1b[2J\nnext\x9b".encode()}])
    assert "\x1b" not in shown
    assert "\\x1b[2J\\nnext" in shown
    assert len(shown.splitlines()) == 2


@given(some.text())
def test_escaped_text_is_printable(text: str) -> None:
    assert visible(text).isprintable()


def parse_cell(text: str) -> bytes:
    """Return the bytes that `cell` encoded."""
    mark = "base64:"
    return base64.b64decode(text.removeprefix(mark), validate=True) if text.startswith(mark) else text.encode()


@given(some.binary())
def test_bytes_survive_a_cell(data: bytes) -> None:
    assert parse_cell(cell(data)) == data


@given(some.one_of(some.none(), some.binary()))
def test_bytes_survive_json(data: bytes | None) -> None:
    assert _unmarked(json.loads(json.dumps(plain(data)))) == data


def test_text_that_looks_encoded_is_encoded() -> None:
    assert cell(b"base64:AAAA") != "base64:AAAA"
    assert parse_cell(cell(b"base64:AAAA")) == b"base64:AAAA"


def test_an_item_is_a_list_for_people_and_an_object_for_programs() -> None:
    stream = io.BytesIO()
    Printer("table", stream).item({"name": "orders", "size_bytes": 2048}, [Column("size_bytes", "size", size_text)])
    assert stream.getvalue().decode().splitlines() == ["name  orders", "size  2.0 KiB"]
    stream = io.BytesIO()
    Printer("json", stream).item({"name": "orders", "tags": ("a", 1)})
    assert json.loads(stream.getvalue()) == {"name": "orders", "tags": ["a", 1]}


def test_wide_characters_count_as_two_columns() -> None:
    lines = printed("table", [{"name": "日本", "value": b"x"}, {"name": "abcd", "value": b"y"}]).splitlines()
    assert lines[1].endswith("x")
    assert lines[1].index("x") == lines[2].index("y") - 2


# --- tables that are too wide for the terminal

WIDE_ROWS = [{"name": "a-long-name" * 4, "size": 12345, "time": "2026-11-17 12:09:39.843", "rare": "x" * 10}]
WIDE_COLUMNS = [
    Column("name"),
    Column("size"),
    Column("time", brief=lambda value: str(value)[:10]),
    Column("rare", rank=1),
]


def lines(width: int | None) -> list[str]:
    stream = io.BytesIO()
    Printer("table", stream, width).rows(WIDE_ROWS, WIDE_COLUMNS)
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
    Printer("csv", stream, 20).rows(WIDE_ROWS, WIDE_COLUMNS)
    assert stream.getvalue().decode().splitlines()[0] == "name,size,time,rare"
