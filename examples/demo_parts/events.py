"""Realistic events of a shop: a few customers and products get most of the traffic, and some events arrive late.

Everything follows from a seed, so the same events can be generated again. Each click and order has an event time; as on
a busy network, some arrive up to three minutes after events that happened later.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

#: Time of the first event; the events cover half an hour.
START_MS = 1_762_500_000_000
SPAN_MS = 30 * 60_000
LATE_MS = 3 * 60_000
#: Maximum delay of an event: the job waits this long before it closes a window.
WATERMARK = "4 minutes"

CATEGORIES = ("books", "games", "garden", "kitchen", "music", "tools")
PRODUCTS = 400
CUSTOMERS = 5_000


@dataclass(frozen=True, slots=True)
class Event:
    """An event and the topic it goes to."""

    topic: str
    key: bytes
    value: bytes
    time_ms: int


def products(seed: int = 1) -> Iterator[tuple[bytes, bytes]]:
    """Return the catalogue: key and value of each product."""
    random = np.random.default_rng(seed)
    for number in range(PRODUCTS):
        category = CATEGORIES[int(random.integers(len(CATEGORIES)))]
        price_cents = int(random.integers(199, 19_999))
        yield b"p%d" % number, json.dumps({"category": category, "price_cents": price_cents}).encode()


def events(count: int, seed: int = 2) -> Iterator[Event]:
    """Yield `count` clicks and orders in order of arrival; the last ones close the last windows."""
    random = np.random.default_rng(seed)
    happened = np.sort(random.integers(0, SPAN_MS, count))
    late = np.where(random.random(count) < 0.05, random.integers(0, LATE_MS, count), 0)
    order = np.argsort(happened + late, kind="stable")
    customers = (random.zipf(1.3, count) - 1) % CUSTOMERS
    chosen = (random.zipf(1.2, count) - 1) % PRODUCTS
    is_order = random.random(count) < 0.15
    quantities = random.integers(1, 5, count)
    for at in order.tolist():
        time_ms = START_MS + int(happened[at])
        body = {"product": f"p{chosen[at]}", "customer": f"c{customers[at]}", "time_ms": time_ms}
        if is_order[at]:
            body["quantity"] = int(quantities[at])
        topic = "orders" if is_order[at] else "clicks"
        yield Event(topic, b"c%d" % customers[at], json.dumps(body).encode(), time_ms)
    # One more event a day later in each partition, so that no window stays open.
    for topic in ("orders", "clicks"):
        for number in range(64):
            time_ms = START_MS + 24 * 3_600_000
            body = {"product": "p0", "customer": f"c{number}", "time_ms": time_ms, "quantity": 0, "end": True}
            yield Event(topic, b"end %d" % number, json.dumps(body).encode(), time_ms)
