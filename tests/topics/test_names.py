"""Valid names of topics; no other name reaches the file system."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog.errors import InvalidTopicName, SawlogError
from sawlog.store.names import check_topic_name, is_topic_name, partition_name, partition_number, quoted, unquoted

from ..looping import for_each


@for_each("name", ["a", "orders", "Orders.v2", "a-b_c", "0", "...", ".hidden", "-", "x" * 249, "tmp", "a.tmp.b"])
def test_kafkas_names_are_taken(name: str) -> None:
    assert check_topic_name(name) == name


@for_each(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc",
        "a\\b",
        "a b",
        "a\n",
        "\n",
        "a\0",
        "ü",
        "a:b",
        "*",
        "x" * 250,
        "a\u2028",
        "a１",
    ],
)
def test_names_that_lead_elsewhere_or_kafka_refuses_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopicName):
        check_topic_name(name)


@for_each("suffix", [".tmp", ".swap", ".deleted", ".torn", ".quarantined", ".TMP", ".Deleted"])
@for_each("stem", ["orders", "", "a.b"])
def test_names_that_look_like_a_state_of_ours_are_refused(stem: str, suffix: str) -> None:
    with pytest.raises(InvalidTopicName, match="reserved for temporary directories"):
        check_topic_name(stem + suffix)


@for_each("name", [None, 7, b"orders", ["orders"]])
def test_only_text_is_a_name(name: object) -> None:
    with pytest.raises(InvalidTopicName):
        check_topic_name(name)


def test_the_error_is_a_value_error_too_and_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="contains '/'") as caught:
        check_topic_name("a/b")
    assert isinstance(caught.value, SawlogError)


@given(st.text(max_size=260))
def test_a_name_that_is_taken_is_one_plain_component_of_a_path(name: str) -> None:
    if is_topic_name(name):
        assert name not in ("", ".", "..")
        assert not set(name) & set('/\\\0\n:*?"<>|')
        assert len(name.encode()) <= 249


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_a_quoted_text_comes_back_and_is_a_plain_file_name(text: str) -> None:
    assert unquoted(quoted(text)) == text
    assert set(quoted(text)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-%")


@given(st.integers(0, 10**9))
def test_a_partition_is_found_again_by_the_name_of_its_directory(number: int) -> None:
    assert partition_number(partition_name(number)) == number


@for_each("name", ["partition-", "partition-01", "partition--1", "partition-1x", "Partition-1", "1", "partition-1\n"])
def test_other_directories_are_no_partitions(name: str) -> None:
    assert partition_number(name) is None
