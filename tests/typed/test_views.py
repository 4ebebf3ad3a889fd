"""Typed views: what goes in comes out, what does not parse is told or kept, and nothing is dropped."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sawlog
from sawlog import JSON, Bytes, Headers, Log, Nullable, Store, Utf8
from sawlog.errors import DecodeFailed, InvalidConfig, InvalidRecord, InvalidRecordType


@dataclass(frozen=True)
class Order:
    id: int
    customer: str
    amount: float = 0.0


@dataclass(frozen=True)
class Trace:
    origin: str
    attempt: int = 1


FIRST, SECOND = Order(1, "ada", 10.0), Order(2, "bob", 7.25)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with sawlog.open(tmp_path / "data", maintenance_interval_s=None) as made:
        made.create_topic("orders")
        yield made


def with_a_bad_one_between(store: Store) -> None:
    orders = store["orders"].typed(value=JSON(Order), key=Utf8())
    orders.append(FIRST, key="ada")
    store["orders"].append(b"{broken", b"eve", (("trace", b"7"),), 1234)
    orders.append(SECOND, key="bob")


def test_what_is_appended_is_read_as_the_same_objects(store: Store) -> None:
    orders = store["orders"].typed(value=JSON(Order), key=Utf8(), metadata=Headers(Trace))
    assert orders.append(FIRST, key="ada", metadata=Trace("web"), timestamp=5) == (0, 0)
    assert orders.append_many([SECOND], key=lambda order: order.customer, metadata=lambda _: Trace("app", 2)) == {
        0: range(1, 2)
    }
    one, two = orders.scan()
    assert (one.value, one.key, one.metadata, one.timestamp) == (FIRST, "ada", Trace("web"), 5)
    assert (two.value, two.key, two.metadata) == (SECOND, "bob", Trace("app", 2))
    assert (two.topic, two.partition, two.offset) == ("orders", 0, 1)
    assert orders.read(0, 1) == two
    assert list(orders) == [one, two]


def test_other_programs_see_plain_bytes_and_headers(store: Store) -> None:
    store["orders"].typed(JSON(Order), Utf8(), metadata=Headers(Trace)).append(FIRST, "ada", Trace("wéb"))
    (record,) = store["orders"].scan()
    assert record.value == b'{"id":1,"customer":"ada","amount":10.0}'
    assert record.key == b"ada"
    assert record.headers == (("origin", "wéb".encode()), ("attempt", b"1"))


def test_a_record_that_does_not_parse_is_an_error_that_carries_it(store: Store) -> None:
    with_a_bad_one_between(store)
    orders = store["orders"].typed(value=JSON(Order))
    scan = orders.scan()
    assert next(scan).value == FIRST
    with pytest.raises(DecodeFailed, match=r"^orders/0 offset 1: the value cannot be decoded: ") as caught:
        next(scan)
    assert (caught.value.part, caught.value.record.value) == ("value", b"{broken")
    assert (caught.value.record.topic, caught.value.record.partition, caught.value.record.offset) == ("orders", 0, 1)
    assert next(scan).value == SECOND  # the scan continues
    assert next(scan, None) is None
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.record) == (str(caught.value), caught.value.record)
    with pytest.raises(DecodeFailed):
        orders.read(0, 1)


def test_bad_records_go_to_the_topic_of_choice(store: Store) -> None:
    with_a_bad_one_between(store)
    orders = store["orders"].typed(value=JSON(Order), errors_to="orders-bad")
    assert "orders-bad" not in store.topics()
    assert [record.value for record in orders.scan()] == [FIRST, SECOND]
    (bad,) = store["orders-bad"].scan()
    assert (bad.value, bad.key, bad.timestamp) == (b"{broken", b"eve", 1234)
    assert bad.headers[:4] == (
        ("trace", b"7"),
        ("sawlog.error.topic", b"orders"),
        ("sawlog.error.partition", b"0"),
        ("sawlog.error.offset", b"1"),
    )
    assert bad.headers[4] == ("sawlog.error.part", b"value")
    assert bad.headers[5][0] == "sawlog.error.reason"


def test_a_bad_key_or_bad_metadata_is_found_too(store: Store) -> None:
    store["orders"].append(b"text", b"\xff")
    store["orders"].append(b"text", b"key", (("attempt", b"many"), ("origin", b"web")))
    with pytest.raises(DecodeFailed, match="the key cannot be decoded"):
        list(store["orders"].typed(Utf8(), Utf8()))
    with pytest.raises(DecodeFailed, match=r"the metadata cannot be decoded: the field 'origin' is missing"):
        list(store["orders"].typed(Utf8(), metadata=Headers(Trace)))


def test_a_consumer_goes_past_a_bad_record_only_when_asked_to(store: Store) -> None:
    with_a_bad_one_between(store)
    orders = store["orders"].typed(value=JSON(Order))
    got: list[Order] = []
    with pytest.raises(DecodeFailed), orders.consumer("billing") as consumer:
        got.extend(record.value for record in consumer.drain())
    (row,) = store.groups.describe("billing").rows
    assert row.committed == 1  # the bad one was not processed
    with orders.consumer("billing") as consumer:
        feed = consumer.drain()
        with pytest.raises(DecodeFailed):
            next(feed)
        assert [record.value for record in feed] == [SECOND]
    (row,) = store.groups.describe("billing").rows
    assert row.lag == 0


def test_a_consumer_copies_bad_records_before_it_commits(store: Store) -> None:
    with_a_bad_one_between(store)
    with store["orders"].typed(value=JSON(Order), errors_to="orders-bad").consumer("billing") as consumer:
        assert [record.value for record in consumer.drain()] == [FIRST, SECOND]
    assert [record.value for record in store["orders-bad"].scan()] == [b"{broken"]


def test_poll_returns_what_is_before_a_bad_record_and_then_raises(store: Store) -> None:
    with_a_bad_one_between(store)
    with store["orders"].typed(value=JSON(Order)).consumer("billing", auto_commit_ms=None) as consumer:
        assert [record.value for record in consumer.poll(5.0)] == [FIRST]
        consumer.commit()
        assert store.groups.describe("billing").rows[0].committed == 1
        with pytest.raises(DecodeFailed):
            consumer.poll(5.0)
        assert [record.value for record in consumer.poll(5.0)] == [SECOND]
        assert consumer.poll(0.0) == []


def test_a_log_without_a_store_has_the_same_view() -> None:
    log, bad = Log.in_memory(), Log.in_memory()
    numbers = log.typed(JSON(int), errors_to=bad)
    assert numbers.append(7) == 0
    log.append(b"seven")
    assert numbers.append_many([8, 9], timestamp=lambda number: number) == range(2, 4)
    assert [record.value for record in numbers.scan()] == [7, 8, 9]
    assert [record.value for record in bad] == [b"seven"]
    assert bad[0].headers[0] == ("sawlog.error.offset", b"1")
    assert numbers.read(3).timestamp == 9
    assert [record.value for record in numbers.follow(2, timeout=0.01)] == [8, 9]


def test_a_scan_of_many_chunks_finds_every_record_in_order(store: Store) -> None:
    numbers = store["orders"].typed(JSON(int), errors_to="bad")
    for first in range(0, 1000, 100):
        numbers.append_many(range(first, first + 100))
        store["orders"].append(b"x%d" % first)
    assert [record.value for record in numbers] == list(range(1000))
    assert [record.value for record in store["bad"].scan()] == [b"x%d" % first for first in range(0, 1000, 100)]


def test_a_tombstone_needs_nullable(store: Store) -> None:
    kept = store.create_topic("kept", cleanup_policy="compact")
    plain, nullable = kept.typed(JSON(Order), Utf8()), kept.typed(Nullable(JSON(Order)), Utf8())
    nullable.append(FIRST, "ada")
    nullable.append(None, "ada")
    assert [record.value for record in nullable] == [FIRST, None]
    with pytest.raises(DecodeFailed, match="tombstone"):
        list(plain)
    with pytest.raises(InvalidRecordType):
        plain.append(None, "ada")  # type: ignore[arg-type]


def test_nothing_is_appended_if_one_value_is_of_another_type(store: Store) -> None:
    orders: Any = store["orders"].typed(value=JSON(Order), key=Utf8(), metadata=Headers())
    for call in (
        lambda: orders.append({"id": 1}),
        lambda: orders.append(FIRST, key=7),
        lambda: orders.append(FIRST, metadata={"a": 1}),
        lambda: orders.append(FIRST, metadata={1: "a"}),
        lambda: orders.append(FIRST, metadata="a"),
        lambda: orders.append_many([FIRST, "second"]),
        lambda: orders.append(dataclasses.replace(FIRST, amount=float("nan"))),
        lambda: store["orders"].typed(Bytes()).append("text"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidRecord):
            call()
    assert store["orders"].describe().records == 0


class Roman:
    """A user-defined serializer: two methods."""

    def encode(self, value: int) -> bytes:
        return b"I" * value

    def decode(self, data: bytes) -> int:
        if set(data) - {ord("I")}:
            raise LookupError(f"not Roman: {data!r}")
        return len(data)


def test_a_serializer_of_ones_own_needs_two_methods(store: Store) -> None:
    numbers = store["orders"].typed(Roman())
    numbers.append(3)
    store["orders"].append(b"IV")
    scan = numbers.scan()
    assert next(scan).value == 3
    with pytest.raises(DecodeFailed, match="not Roman") as caught:
        next(scan)
    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store["orders"].typed(Utf8),
        lambda store: store["orders"].typed("utf8"),
        lambda store: store["orders"].typed(Utf8(), errors_to="orders"),
        lambda store: store["orders"].typed(Utf8(), errors_to=7),
        lambda store: Log.in_memory().typed(Utf8(), errors_to="orders-bad"),
        lambda store: Headers(int),
        lambda store: JSON(object),
        lambda store: JSON("Order"),
    ],
)
def test_a_wrong_view_is_refused_when_it_is_made(store: Store, call: Any) -> None:
    with pytest.raises(InvalidConfig):
        call(store)


def test_a_failing_scan_returns_what_it_had_before(store: Store) -> None:
    from sawlog.typed.codec import BadRecords, Codec
    from sawlog.typed.serializers import Unchanged
    from sawlog.typed.views import typed_scan

    def records() -> Iterator[sawlog.Record]:
        yield sawlog.Record(b"one")
        raise OSError("the disk is gone")

    scan = typed_scan(Codec(Utf8(), Bytes(), Unchanged()), records(), BadRecords())
    assert next(scan).value == "one"
    with pytest.raises(OSError, match="the disk is gone"):
        next(scan)
