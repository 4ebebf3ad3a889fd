"""Small files: any tool can read them, and a damaged one is never believed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog.errors import CorruptFile
from sawlog.storage import MemoryDirectory, checksummed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = {"id": "0b5c", "partitions": 4, "settings": {"retention.ms": 7, "text": 'a"}\n  "crc32c": "'}}


@given(st.dictionaries(st.text().filter(lambda name: name != "crc32c"), JSON, max_size=5))
def test_what_was_stored_comes_back(fields: dict[str, object]) -> None:
    assert checksummed.decode(checksummed.encode(fields), "here") == fields


def test_a_document_is_json_for_other_programs() -> None:
    found = json.loads(checksummed.encode(FIELDS))
    assert found.pop("crc32c")
    assert found == FIELDS


def test_any_changed_bit_is_noticed() -> None:
    good = checksummed.encode(FIELDS)
    for position in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[position] ^= 1 << bit
            with pytest.raises(CorruptFile, match="here"):
                checksummed.decode(bytes(bad), "here")


def test_any_missing_or_added_end_is_noticed() -> None:
    good = checksummed.encode(FIELDS)
    for size in range(len(good)):
        with pytest.raises(CorruptFile):
            checksummed.decode(good[:size], "here")
    for more in (b"\n", b"x", b"\0" * 100, good):
        with pytest.raises(CorruptFile):
            checksummed.decode(good + more, "here")


def test_a_field_of_another_type_is_corruption() -> None:
    directory = MemoryDirectory()
    checksummed.store(directory, "file", {"number": True})
    fields = checksummed.load(directory, "file")
    with pytest.raises(CorruptFile, match="number"):
        checksummed.field(fields, "number", int, "file")
    with pytest.raises(CorruptFile, match="missing"):
        checksummed.field(fields, "missing", str, "file")
