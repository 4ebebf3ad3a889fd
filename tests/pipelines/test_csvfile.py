"""CSV is read according to RFC 4180; an error names file, row and line. Without Spark."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from sawlog.pipelines.csvfile import BadRow, CsvFile


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"id,at\n1,2026-01-01\n2\n", r"row 2, line 3: 1 cells, but 2 columns"),
        (b'id,at\n1,"a\nb"c\n', r"row 1, line 3: .*expected after"),
        (b'id,at\n1,"never closed\n', r"row 1, line 2: unexpected end of data"),
        (b"at,id\n1,2\n", r"line 1: the header is at,id, expected id,at"),
        (b"id,at\n1,2026-01-01\n\xff,\n", r"row 2, line 3: not UTF-8"),
        (b'"id,at\n', r"line 1: unexpected end of data"),
        (b"\xff\n", r"line 1: not UTF-8"),
    ],
)
def test_an_error_names_file_row_and_reason_in_one_line(tmp_path: Path, text: bytes, complaint: str) -> None:
    path = tmp_path / "b.csv"
    path.write_bytes(text)
    with pytest.raises(BadRow) as raised:
        list(CsvFile(str(path)).rows(["id", "at"]))
    assert re.match(rf"{path}, {complaint}", str(raised.value)), str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("packed", [False, True])
def test_rows_have_numbers_and_the_lines_on_which_they_end(tmp_path: Path, packed: bool) -> None:
    text = b'\xef\xbb\xbfid,at\r\n1,"a ""b"", c"\r\n\r\n01,"two\nlines"\r\n'
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    path.write_bytes(gzip.compress(text) if packed else text)
    file = CsvFile(f"file://{path}")
    assert file.names() == ["id", "at"]
    assert [(number, row.line, row.cells) for number, row in file.rows(["ID", "At"])] == [
        (1, 2, ["1", 'a "b", c']),
        (2, 5, ["01", "two\nlines"]),
    ]


def test_a_file_without_a_header_and_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"x,y\n")
    assert CsvFile(str(path), header=False).names() == ["_c0", "_c1"]
    path.write_bytes(b"")
    assert CsvFile(str(path)).names() is None
    with pytest.raises(BadRow, match="cannot be read"):
        CsvFile(str(tmp_path / "absent.csv")).names()
