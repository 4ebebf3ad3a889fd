"""Act two: read the orders back, as records, as Arrow, and by offset."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, perf_counter_ns

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from sawlog import Log

from .orders import COUNTRIES, MINUTES, START, orders
from .screen import Screen, duration, size
from .writing import Written

_WANTED = pj.ParseOptions(
    explicit_schema=pa.schema([("country", pa.string()), ("cents", pa.int64())]),
    unexpected_field_behavior="ignore",
)


def play(screen: Screen, path: Path, written: Written, lookups: int) -> None:
    """Read the same log three times."""
    screen.act(
        "Read",
        "Beside any writer, without a lock: as Python records, as Arrow (no Python object per record), and one "
        "record at a time by its offset.",
    )
    with Log.open(path, mode="r") as log:
        _as_records(screen, log, written)
        _as_arrow(screen, log, written)
        _by_offset(screen, log, lookups, written.orders)


def _as_records(screen: Screen, log: Log, written: Written) -> None:
    began = perf_counter()
    offset, value_bytes = 0, 0
    for record in log.scan():
        if record.offset != offset:
            break
        offset += 1
        value_bytes += len(record.value or b"")
    screen.result("scan as records", offset, "orders", perf_counter() - began)
    screen.check(
        (offset, value_bytes) == (written.orders, written.value_bytes),
        f"scan(): {offset:,} records in order, {size(value_bytes)} of JSON, as written",
    )
    screen.line()


def _as_arrow(screen: Screen, log: Log, written: Written) -> None:
    minutes: Counter[int] = Counter()
    parsed: list[pa.Table] = []
    rows, reading, computing = 0, 0.0, 0.0
    batches = iter(log.scan_arrow(columns=("timestamp", "value")))
    while True:
        began = perf_counter()
        batch = next(batches, None)
        read = perf_counter()
        reading += read - began
        if batch is None:
            break
        rows += batch.num_rows
        parsed.append(_parse(batch["value"]))
        minutes.update(_per_minute(batch["timestamp"]))
        computing += perf_counter() - read
    began = perf_counter()
    sums = pa.concat_tables(parsed).group_by("country").aggregate([("cents", "sum")])
    cents = dict(zip(sums["country"].to_pylist(), sums["cents_sum"].to_pylist(), strict=True))
    computing += perf_counter() - began
    screen.result("scan as Arrow", rows, "orders", reading)
    screen.result("parse JSON and sum, pyarrow", rows, "orders", computing)
    _draw(screen, cents, [minutes[minute] for minute in range(MINUTES)])
    screen.check(
        cents == dict(zip(COUNTRIES, written.cents_by_country.tolist(), strict=True)),
        f"scan_arrow(): revenue by country right to the cent, {sum(cents.values()) / 100:,.2f} in all",
    )
    screen.check(
        sum(minutes[minute] for minute in range(MINUTES)) == written.orders,
        f"each of the {written.orders:,} orders lies in a minute of its hour",
    )


def _parse(values: pa.Array) -> pa.Table:
    """Parse the JSON of a whole batch at once: joined by newlines, it is a JSON Lines file in memory."""
    lines = pc.binary_join(pa.ListArray.from_arrays([0, len(values)], values), b"\n")[0]
    return pj.read_json(pa.BufferReader(lines.as_buffer()), parse_options=_WANTED)


def _per_minute(times: pa.Array) -> dict[int, int]:
    minutes = pc.minutes_between(pa.scalar(START, times.type), times)
    return {each["values"]: each["counts"] for each in pc.value_counts(minutes).to_pylist()}


def _draw(screen: Screen, cents: dict[str, int], minutes: list[int]) -> None:
    ranked = dict(sorted(cents.items(), key=lambda item: -item[1]))
    screen.bars("Revenue by country", ranked, [f"{each / 100:,.2f}" for each in ranked.values()])
    screen.line()
    end = START + timedelta(minutes=MINUTES)
    screen.skyline(f"Orders a minute: {min(minutes):,} to {max(minutes):,}", minutes, f"{START:%H:%M}", f"{end:%H:%M}")
    screen.line()


def _by_offset(screen: Screen, log: Log, lookups: int, total: int) -> None:
    chance = random.Random(4)
    found, times = [], []
    for offset in [chance.randrange(total) for _ in range(lookups)]:
        began = perf_counter_ns()
        record = log.read(offset)
        times.append(perf_counter_ns() - began)
        found.append((offset, (record.value, record.key, record.timestamp)))
    screen.result("read by offset, at random", lookups, "reads", sum(times) / 1e9)
    right = sum(order == orders(offset, offset + 1, total).records[0] for offset, order in found)
    middle, late = median(times) / 1e9, quantiles(times, n=100)[-1] / 1e9
    screen.check(
        right == lookups,
        f"read(): {right:,} of {lookups:,} right, median {duration(middle)}, 99 % within {duration(late)}",
    )
