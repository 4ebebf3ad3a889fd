"""Format strings of `read -f`, byte for byte."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sawlog import Record
from sawlog.cli.formats import compile_format

from ..looping import for_each

RECORD = Record(
    b"value\xff", b"key", (("a", b"1"), ("b", None)), 1_793_520_000_123, offset=42, topic="orders", partition=3
)
NOTHING = Record(None, None, (), None, offset=7)


def shown(form: str, record: Record = RECORD) -> bytes:
    return compile_format(form)(record)


@for_each(
    ("form", "expected"),
    [
        ("%t[%p] at %o", b"orders[3] at 42"),
        ("%k=%v", b"key=value\xff"),
        ("%s", b"value\xff"),
        ("%k{hex} %v{hex}", b"6b6579 76616c7565ff"),
        ("%v{base64}", b"dmFsdWX/"),
        ("%k{json}", b'"key"'),
        ("%v{json}", b'{"base64": "dmFsdWX/"}'),
        ("%h", b"a=1,b="),
        ("%h{json}", b'[["a", "1"], ["b", null]]'),
        ("%T", b"1793520000123"),
        ("%K %S %V %H", b"3 6 6 2"),
        ("100%%", b"100%"),
        (r"a\nb\tc\r\0\\\x41\xff", b"a\nb\tc\r\0\\A\xff"),
        ("%k{", b"key{"),
        ("%o{hex}", b"42{hex}"),
        ("", b""),
    ],
)
def test_format_prints(form: str, expected: bytes) -> None:
    assert shown(form) == expected


def test_null_is_empty_in_bytes_and_minus_one_in_lengths() -> None:
    assert shown("%k|%v|%K|%S|%h|%d|%k{json}", NOTHING) == b"||-1|-1|||null"


def test_time_follows_strftime_in_local_time() -> None:
    local = datetime.fromtimestamp(1_793_520_000).astimezone()
    assert shown("%d{%Y-%m-%d %H:%M}").decode() == local.strftime("%Y-%m-%d %H:%M")
    assert datetime.fromisoformat(shown("%d").decode()).timestamp() == 1_793_520_000.123


@for_each(
    ("form", "complaint"),
    [
        ("%x", "%x is not known"),
        ("%v{rot13}", "hex, base64 or json"),
        (r"\q", "not an escape"),
        ("50%", "write it twice"),
        ("\\", "write it twice"),
    ],
)
def test_an_invalid_format_is_refused_with_the_choices(form: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        compile_format(form)


@given(some.text().filter(lambda text: "%" not in text and "\\" not in text))
def test_text_without_directives_is_printed_unchanged(text: str) -> None:
    assert shown(text) == text.encode("utf-8", "surrogateescape")


@given(some.text(alphabet="%\\ktvspohTdKSVHx4{}jsonhe n", max_size=12))
def test_any_text_is_a_format_or_refused(form: str) -> None:
    try:
        made = compile_format(form)
    except ValueError:
        return
    assert isinstance(made(RECORD), bytes)
