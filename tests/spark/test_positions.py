"""Positions: offsets where Kafka has them, everything else under one key that no topic can have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sawlog.errors import InvalidTopicName
from sawlog.spark.options import RESERVED, read_options
from sawlog.spark.subscription import UNKNOWN, EpochPosition, Positions
from sawlog.store.names import check_topic_name

OLD = {"clicks": {"0": 7}, "orders": {"0": 5, "1": 4, "10": 3}}
NEW = Positions(
    {("orders", 0): EpochPosition(5, 2), ("orders", 10): EpochPosition(3, 0), ("clicks", 0): EpochPosition(7)},
    {"orders": "id of orders"},
    "id of the store",
)


def test_no_topic_can_have_the_name_of_the_key() -> None:
    with pytest.raises(InvalidTopicName):
        check_topic_name(RESERVED)


def test_what_is_kept_is_found_again() -> None:
    kept = json.loads(json.dumps(NEW.to_json()))
    assert Positions.from_json(kept) == NEW
    assert json.dumps(Positions.from_json(kept).to_json()) == json.dumps(NEW.to_json())


def test_the_integers_are_where_kafka_has_them() -> None:
    assert NEW.to_json() == {
        "clicks": {"0": 7},
        "orders": {"0": 5, "10": 3},
        "$sawlog": {
            "store": "id of the store",
            "topics": {"orders": "id of orders"},
            "epochs": {"orders": {"0": 2, "10": 0}},
        },
    }
    assert NEW.offsets() == {"clicks": {"0": 7}, "orders": {"0": 5, "10": 3}}


def test_a_checkpoint_of_version_0_2_is_the_same_text_as_long_as_nothing_is_read() -> None:
    found = Positions.from_json(OLD)
    assert found.at["orders", 10] == EpochPosition(3, UNKNOWN)
    assert json.dumps(found.to_json()) == json.dumps(OLD)
    assert found.after({}, NEW, {}) is found


def test_a_partition_of_which_nothing_is_read_keeps_its_entry() -> None:
    now = Positions(
        {("orders", 0): EpochPosition(5, 9), ("orders", 10): EpochPosition(4, 9)}, {"orders": "id of orders"}, "S"
    )
    after = NEW.after({("orders", 10): EpochPosition(4, 9)}, now, {})
    assert after.at == {**NEW.at, ("orders", 10): EpochPosition(4, 9)}
    assert (after.topics, after.store) == ({"orders": "id of orders"}, "S")


def test_all_partitions_of_a_recreated_topic_begin_again_together() -> None:
    """An offset of the old topic beside the id of the new one would be taken for one of the new one."""
    now = Positions(
        {("orders", 0): EpochPosition(9, 0), ("orders", 1): EpochPosition(9, 0)}, {"orders": "another"}, "S"
    )
    begun = {("orders", 0): EpochPosition(0, 0), ("orders", 1): EpochPosition(2, 0)}
    after = NEW.after({("orders", 0): EpochPosition(6, 0)}, now, begun)
    assert after.at == {
        ("clicks", 0): EpochPosition(7),
        ("orders", 0): EpochPosition(6, 0),
        ("orders", 1): EpochPosition(2, 0),
    }
    assert after.topics == {"orders": "another"}


@pytest.mark.parametrize(
    ("topic", "topic_id", "store_id", "recreated"),
    [
        ("orders", "id of orders", "id of the store", False),
        ("orders", "another", "id of the store", True),
        ("orders", "id of orders", "another", True),
        ("clicks", "whatever", "id of the store", False),
        ("clicks", "whatever", "another", True),
    ],
)
def test_what_is_not_known_is_not_taken_for_different(
    topic: str, topic_id: str, store_id: str, recreated: bool
) -> None:
    assert NEW.is_recreated(topic, topic_id, store_id) is recreated
    assert not Positions.from_json(OLD).is_recreated(topic, topic_id, store_id)


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_offsets_that_were_copied_from_a_checkpoint_can_be_given_as_an_option(name: str) -> None:
    given: dict[str, Any] = {"path": "x", "subscribe": "orders,clicks"}
    options = read_options({**given, name: json.dumps(NEW.to_json())}, streaming=False)
    point = options.start if name == "startingOffsets" else options.end
    assert point is not None
    assert point.each == (("clicks", 0, 7), ("orders", 0, 5), ("orders", 10, 3))
