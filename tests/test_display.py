"""Prompts and notebooks show the essentials, quickly, and never raise."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

import sawlog
from sawlog import Log, Record, Store
from sawlog.display import bytes_text, counted, size_text, time_text


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with sawlog.open(tmp_path / "data") as opened:
        orders = opened.create_topic("orders", 2, retention_ms=1000)
        orders.append_many([(b"value-%d" % number, b"key") for number in range(10)])
        opened.groups.commit("billing", {("orders", 0): 1})
        yield opened


def html(thing: object) -> str:
    """Return the notebook's HTML after checking that it is well formed."""
    found: str = thing._repr_html_()  # type: ignore[attr-defined]
    ElementTree.fromstring(found)
    return found


def test_a_log_says_where_it_is_and_what_it_contains(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        log.append_many([b"first", b"<script>alert(1)</script>"])
        assert repr(log) == f"<Log {tmp_path}/log offsets 0..2, 105 B in 1 segment>"
        assert "first" in html(log)
        assert "&lt;script&gt;" in html(log)
        assert "<script>" not in html(log)
    assert repr(log) == f"<Log {tmp_path}/log closed>"
    assert "closed" in html(log)


def test_a_topic_shows_settings_partitions_and_the_newest_records(store: Store) -> None:
    topic = store["orders"]
    assert repr(topic).startswith("<Topic orders: 2 partitions, 10 records, ")
    assert repr(topic).endswith("B, retention.ms=1000>")
    found = html(topic)
    for text in ("Topic orders: 2 partitions, 10 records", "retention.ms=1000", "next offset", "value-9", "created 20"):
        assert text in found, text
    assert "value-0" not in found


def test_a_store_shows_topics_and_groups(store: Store) -> None:
    assert repr(store) == f"<Store {store.path}: 1 topic>"
    found = html(store)
    for text in ("1 topic, 1 group", "orders", "retention.ms=1000", "groups: billing"):
        assert text in found, text
    store.close()
    assert repr(store) == f"<Store {store.path} closed>"
    assert "closed" in html(store)


def test_a_record_shows_its_fields() -> None:
    record = Record(b'{"id": 7}', b"k\x00\xff", [("trace", b"on"), ("none", None)], 1_700_000_000_000, 5)
    found = html(record)
    for text in (
        "offset",
        '<td style="text-align:right">5</td>',
        "{&quot;id&quot;: 7}",
        "6b 00 ff",
        "header trace",
        "(9 B)",
    ):
        assert text in found, text
    assert "none" in html(Record())
    assert "…" in html(Record(b"x" * 10_000))


def test_a_store_of_many_topics_shows_some(tmp_path: Path) -> None:
    with sawlog.open(tmp_path / "data") as store:
        for number in range(53):
            store.create_topic(f"t{number:02}")
        found = html(store)
    assert "53 topics" in found
    assert "t49" in found
    assert "t50" not in found
    assert "… and 3 topics more" in found


# --- never


def test_a_log_is_shown_at_once_during_an_append(tmp_path: Path) -> None:
    began, may_end = threading.Event(), threading.Event()

    def chunks() -> Iterator[bytes]:
        yield b"x"
        began.set()
        may_end.wait(60)

    with Log.open(tmp_path / "log") as log:
        log.append(b"before")
        thread = threading.Thread(target=log.append_stream, args=(chunks(),))
        thread.start()
        assert began.wait(60)
        assert "offsets 0..1" in repr(log)
        assert "before" in html(log)
        may_end.set()
        thread.join()


def test_a_topic_whose_lock_is_held_does_not_keep_a_notebook_waiting(store: Store) -> None:
    topic = sawlog.open(store.path, mode="r")["orders"]
    with topic._partitions._lock:
        shown: list[str] = []
        thread = threading.Thread(target=lambda: shown.extend((repr(topic), html(topic))))
        thread.start()
        thread.join(60)
        assert shown[0] == "<Topic orders: 2 partitions, retention.ms=1000>"
        assert "busy: it took too long to look" in shown[1]


def test_damage_is_shown_and_not_raised(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        log.append_many([b"x" * 100] * 3)
    segment = next((tmp_path / "log").glob("*.log"))
    raw = bytearray(segment.read_bytes())
    raw[100] ^= 1
    segment.write_bytes(raw)
    with Log.open(tmp_path / "log", mode="r") as log:
        assert "offsets" in repr(log)
        assert "Corrupt" in html(log)


def test_a_deleted_topic_is_shown_and_not_raised(store: Store) -> None:
    topic = store["orders"]
    store.delete_topic("orders")
    assert repr(topic).startswith("<Topic orders: 2 partitions")
    assert "TopicNotFound" in html(topic)


def test_a_record_that_is_too_large_to_show_is_left_out(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        log.append(b"y" * (2 << 20))
        assert "yyy" not in html(log)
        assert "2.0 MiB" in html(log)


def test_async_ones_show_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_async(tmp_path / "data") as store:
            topic = await store.create_topic("orders")
            await topic.append(b"hello")
            assert "orders" in html(store)
            assert "hello" in html(topic)
            assert "hello" in html(topic.partition(0))

    asyncio.run(main())


# --- words


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (None, ""),
        (b"", ""),
        (b"abc", "abc"),
        ("ü\n".encode(), "ü\n"),
        (b"\x00\x01", "00 01"),
        (b"\xff", "ff"),
        ("é".encode() * 300, "é" * 120 + "…"),
    ],
)
def test_bytes_are_text_where_they_can_be_printed(data: bytes | None, shown: str) -> None:
    assert bytes_text(data) == shown


def test_sizes_and_times_are_readable() -> None:
    assert [size_text(each) for each in (None, 5, 1229, 64 << 20)] == ["", "5 B", "1.2 KiB", "64.0 MiB"]
    assert time_text(-1) == ""
    assert time_text(10**18) == str(10**18)
    assert time_text(1_700_000_000_000).startswith("2023-11-1")


# --- numbers with their nouns


def test_a_number_agrees_with_its_noun() -> None:
    assert [counted(number, "topic") for number in (0, 1, 2, 1204)] == [
        "0 topics",
        "1 topic",
        "2 topics",
        "1,204 topics",
    ]
    assert [counted(number, "batch", "batches") for number in (1, 2)] == ["1 batch", "2 batches"]


#: A number directly before a noun in the plural, but not a limit, a rate, or "3 of 4 partitions".
_DISAGREES = re.compile(
    r"(?<!of )(?<!at most )(?<!more than )(?:\{[^{}]*\}|%s|%d) "
    r"(?:topics|partitions|groups|records|rules|members|segments|batches|users|brokers|problems)\b(?!/s|=)"
)


@pytest.mark.parametrize("part", ["cli", "broker", "log"])
def test_no_message_says_1_topics(part: str) -> None:
    lines = [
        f"{path.name}: {line.strip()}"
        for path in sorted((Path(sawlog.__file__).parent / part).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if _DISAGREES.search(line) and "do not fit" not in line
    ]
    assert lines == [], "use display.counted"
