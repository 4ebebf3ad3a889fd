"""Types as text: read, shown, and refused with the place."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sawlog.errors import InvalidConfig
from sawlog.tables import columns


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("int", pa.int32()),
        ("SMALLINT", pa.int32()),
        ("Long", pa.int64()),
        ("decimal(12, 2)", pa.decimal128(12, 2)),
        ("varchar(20)", pa.string()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("array<map<string, double>>", pa.list_(pa.field("element", pa.map_(pa.string(), pa.float64())))),
        ("struct<a: int, `b c`: array<date>>", None),
    ],
)
def test_a_type_that_is_shown_can_be_read_again(text: str, kind: pa.DataType | None) -> None:
    found = columns.parsed(f"it {text}").field(0).type
    if kind is not None:
        assert found == kind
    assert columns.parsed(f"it {columns.shown(found)}").field(0).type == found


def test_columns_may_have_quotes_comments_and_not_null() -> None:
    found = columns.parsed("id bigint NOT NULL COMMENT 'the, id', `select` string, `x-y.z` struct<deep: boolean>")
    assert found.names == ["id", "select", "x-y.z"]
    assert columns.parsed(columns.shown_schema(found)) == found


def test_a_mistake_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="integr"):
        columns.parsed("id integr")


def test_a_type_without_a_word_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="no columns of the type"):
        columns.shown(pa.duration("s"))
