"""`sawlog stats`: correct numbers, and labelled charts."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from sawlog.cli.charts import BarChart, TimeChart, round_steps, svg, text_lines, time_steps
from sawlog.cli.stats import spread
from sawlog.store.directory.store import DirectoryStore

from .conftest import Cli
from .damage import flip_bit, segment_of

SVG = "{http://www.w3.org/2000/svg}"


def test_stats_counts_records_batches_and_bytes(sawlog: Cli, orders: Path) -> None:
    found = sawlog("stats", "--output", "json").ok().json["partitions"]
    assert [(row["partition"], row["records"], row["batches"], row["oldest"], row["newest"]) for row in found] == [
        (0, 10, 10, 1_700_000_000_000, 1_700_000_009_000),
        (1, 5, 5, 1_700_000_100_000, 1_700_000_104_000),
    ]
    assert [row["size_bytes"] for row in found] == [segment_of(orders, partition=n).stat().st_size for n in (0, 1)]
    assert [row["records"] for row in csv.DictReader(sawlog("stats", "--output", "csv").lines)] == ["10", "5"]


def test_rate_adds_up_to_the_records(sawlog: Cli, orders: Path) -> None:
    rate = sawlog("stats", "--output", "json").json["rate"]
    assert sum(each["records_per_second"] * each["step_ms"] / 1000 for each in rate) == pytest.approx(15, abs=0.05)
    assert rate[0]["time"] == 1_700_000_000_000


def test_the_records_of_a_batch_are_spread_over_its_time(sawlog: Cli, data: Path) -> None:
    """Event times: a day's records came in one batch, and an hour of the next day's in another."""
    day = 1_700_000_000_000
    with DirectoryStore.open(data) as store:
        topic = store.create_topic("events", durability="os")
        topic.append_many([(b"%d" % n, None, (), day + 60_000 * n) for n in range(1440)])
        topic.append_many([(b"%d" % n, None, (), day + 86_400_000 + 60_000 * n) for n in range(60)])
    rate = sawlog("stats", "events", "--output", "json").ok().json["rate"]
    assert rate[0]["time"] == day
    counts = [each["records_per_second"] * each["step_ms"] / 1000 for each in rate]
    assert sum(counts) == pytest.approx(1500, abs=5)
    a_minute = rate[0]["step_ms"] / 60_000
    assert all(count == pytest.approx(a_minute, rel=0.1) for count in counts[:-1])


@pytest.mark.parametrize("far", [253_402_300_800_000, 9_223_372_036_854_775])
def test_timestamps_after_the_year_9999_are_shown_as_numbers_and_left_out_of_the_chart(
    sawlog: Cli, data: Path, far: int
) -> None:
    with DirectoryStore.open(data) as store:
        topic = store.create_topic("events", durability="os")
        topic.append(b"near", timestamp=1_700_000_000_000)
        topic.append(b"last day", timestamp=253_402_214_400_000)
        topic.append(b"far", timestamp=far)
    sawlog("stats", "events").ok()
    found = sawlog("stats", "events", "--output", "json").ok().json
    assert (found["partitions"][0]["records"], found["partitions"][0]["newest"]) == (3, far)
    assert max(each["time"] for each in found["rate"]) <= 253_402_214_400_000
    sawlog("stats", "events", "--plot", str(data.parent / "far.svg")).ok()
    assert len(time_steps(0, 253_402_214_400_000)) <= 9


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_oldest_timestamp_can_be_that_of_any_record(sawlog: Cli, data: Path, codec: str) -> None:
    """Within a batch, and among batches."""
    with DirectoryStore.open(data) as store:
        topic = store.create_topic("events", durability="os", compression_type=codec)
        topic.append_many([(b"." * 100, None, (), 1_000 * at) for at in (50, 10, 90)])
        topic.append_many([(b"." * 100, None, (), 1_000 * at) for at in (70, 60, 65)])
    (row,) = sawlog("stats", "events", "--output", "json").ok().json["partitions"]
    assert (row["oldest"], row["newest"], row["records"]) == (10_000, 90_000, 6)
    (row,) = sawlog("stats", "events", "-o", "@0000000055:0000000080", "--output", "json").ok().json["partitions"]
    assert (row["records"], row["batches"]) == (6, 2)
    (row,) = sawlog("stats", "events", "-o", "@0000000000:0000000060", "--output", "json").ok().json["partitions"]
    assert (row["oldest"], row["newest"], row["records"]) == (10_000, 90_000, 3)


def test_a_batch_with_log_append_time_counts_at_one_time(sawlog: Cli, data: Path) -> None:
    with DirectoryStore.open(data) as store:
        topic = store.create_topic("events", durability="os", message_timestamp_type="LogAppendTime")
        topic.append_many([(b"%d" % n, None, (), 1_000 * n) for n in range(10)])
    found = sawlog("stats", "events", "--output", "json").ok().json
    assert len(found["rate"]) == 1
    assert found["rate"][0]["time"] == found["partitions"][0]["newest"]


@given(
    some.lists(some.tuples(some.integers(0, 5000), some.integers(0, 5000), some.integers(1, 100)), min_size=1),
    some.integers(1, 700),
)
def test_spread_equals_a_sum_over_every_millisecond(batches: list[tuple[int, int, int]], step: int) -> None:
    begins, lengths, counts = (np.array(each, np.int64) for each in zip(*batches, strict=True))
    ends = begins + lengths
    each_ms = np.zeros(int(ends.max()) + 1)
    for begin, end, count in zip(begins, ends, counts, strict=True):
        each_ms[begin : end + 1] += count / (end - begin + 1)
    expected = np.add.reduceat(each_ms, range(0, len(each_ms), step))
    assert spread(begins, ends, counts, step) == pytest.approx(expected, abs=1e-6)


def test_stats_can_count_a_range(sawlog: Cli, orders: Path) -> None:
    [row] = sawlog("stats", "orders", "-p", 0, "-o", "2:5", "--output", "json").json["partitions"]
    assert (row["records"], row["newest"]) == (3, 1_700_000_004_000)


def test_terminal_shows_charts_below_the_table(sawlog: Cli, orders: Path) -> None:
    text = sawlog("stats", "orders").ok().out
    assert "Records of orders over time, records/s" in text
    assert "Size by partition" in text
    assert "█" in text
    assert max(len(line) for line in text.splitlines() if "│" in line) <= 100
    assert "█" not in sawlog("stats", "orders", "--no-plot").ok().out


def test_svg_is_well_formed_and_labelled(sawlog: Cli, orders: Path, tmp_path: Path) -> None:
    result = sawlog("stats", "orders", "--plot", tmp_path / "o.svg").ok()
    assert "2 charts" in result.err
    root = ElementTree.parse(tmp_path / "o.svg").getroot()
    texts = [each.text or "" for each in root.iter(f"{SVG}text")]
    assert "Records of orders over time" in texts
    assert {"partition 0", "partition 1"} <= set(texts)
    assert any("records/s" in each for each in texts)
    assert len(list(root.iter(f"{SVG}path"))) == 1


def test_png_without_matplotlib_says_to_ask_for_svg(
    sawlog: Cli, orders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "o.svg" in sawlog("stats", "orders", "--plot", tmp_path / "o.png").failed(1)
    assert not (tmp_path / "o.png").exists()


def test_png_with_matplotlib(sawlog: Cli, orders: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    sawlog("stats", "orders", "--plot", tmp_path / "o.png").ok()
    assert (tmp_path / "o.png").read_bytes().startswith(b"\x89PNG")


def test_other_image_formats_are_a_usage_error(sawlog: Cli, orders: Path, tmp_path: Path) -> None:
    assert "neither .svg nor .png" in sawlog("stats", "--plot", tmp_path / "o.gif").failed(2)


def test_empty_topics_have_a_row_and_no_rate(sawlog: Cli, data: Path) -> None:
    DirectoryStore.open(data).close()
    assert "nothing to count" in sawlog("stats").ok().err
    sawlog("topic", "create", "empty").ok()
    found = sawlog("stats", "--output", "json").ok().json
    assert found["partitions"][0]["records"] == 0
    assert found["rate"] == []
    sawlog("stats").ok()


def test_stats_reports_damage_and_counts_around_it(sawlog: Cli, data: Path) -> None:
    with DirectoryStore.open(data) as store:
        topic = store.create_topic("orders", segment_bytes=2000, durability="os")
        for number in range(30):
            topic.append(b"value %02d " % number + b"x" * 100)
    file = next(f for f in sorted(segment_of(data).parent.glob("*.log"), reverse=True) if int(f.stem) <= 12)
    flip_bit(file, file.read_bytes().index(b"value 12"))
    result = sawlog("stats", "--output", "json").ok()
    assert result.json["partitions"][0]["records"] == 29
    assert "checksum" in result.err


# --- drawing


@given(some.floats(0, 1e15), some.integers(1, 10))
def test_axis_is_round_and_covers_everything(most: float, count: int) -> None:
    steps = round_steps(most, count)
    assert steps[0] == 0
    assert steps[-1] >= most
    assert 2 <= len(steps) <= 2 * count + 3


@given(some.integers(0, 4 * 10**12), some.integers(1, 10**11))
def test_time_axis_lies_inside_and_is_not_crowded(start: int, span: int) -> None:
    steps = time_steps(start, start + span)
    assert len(steps) <= 12
    assert all(start <= at <= start + span for at, _ in steps)


@given(some.lists(some.floats(0, 1e9), max_size=60), some.integers(40, 120))
def test_any_values_can_be_drawn(values: list[float], width: int) -> None:
    charts = [
        TimeChart("over <time>", "a & b", 1_700_000_000_000, 60_000, values),
        BarChart("sizes", "bytes", [f"<{number}>" for number in range(len(values))], values, binary=True),
    ]
    ElementTree.fromstring(svg(charts))
    for chart in charts:
        assert all(len(line) <= max(width, 60) for line in text_lines(chart, width))


@given(some.integers(0, 10**12), some.integers(1, 4000), some.sampled_from([80, 100, 120]))
def test_a_time_chart_fits_the_terminal(start: int, step: int, width: int) -> None:
    lines = list(text_lines(TimeChart("t", "u", start, step, [1.0] * (width - 11)), width))
    assert max(map(len, lines)) <= width


def test_bars_are_as_long_as_their_values() -> None:
    _, first, second = text_lines(BarChart("sizes", "bytes", ["a", "b"], [50.0, 100.0]), 80)
    assert second.count("█") == pytest.approx(2 * first.count("█"), abs=1)


def test_columns_are_as_high_as_their_values() -> None:
    lines = list(text_lines(TimeChart("t", "u", 0, 1000, [0.0, 50.0, 100.0]), 80))
    drawn = [line[11:14].ljust(3) for line in lines[1:9]]
    assert [sum(row[column] == "█" for row in drawn) for column in range(3)] == [0, 4, 8]
