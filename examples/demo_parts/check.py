"""The expected output of the job, computed without Spark, and its comparison with the actual output."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

import sawlog

MINUTE_MS = 60_000

#: (minute, category) -> clicks, orders, cents.
Totals = dict[tuple[int, str], tuple[int, int, int]]


@dataclass(slots=True)
class Comparison:
    """The result of a comparison."""

    expected: Totals
    found: Totals
    doubled: list[tuple[int, str]] = field(default_factory=list)

    @property
    def missing(self) -> list[tuple[int, str]]:
        """Windows that the job did not write."""
        return sorted(self.expected.keys() - self.found.keys())

    @property
    def wrong(self) -> list[tuple[int, str]]:
        """Windows with wrong numbers, and unexpected windows."""
        return sorted(key for key, totals in self.found.items() if self.expected.get(key) != totals)


def expected(store: sawlog.Store) -> Totals:
    """Compute the expected result by reading the topics from end to end."""
    catalogue = {record.key: json.loads(record.value or b"null") for record in store["products"].scan()}
    totals: dict[tuple[int, str], list[int]] = {}
    for topic in ("clicks", "orders"):
        for record in store[topic].scan():
            event = json.loads(record.value or b"null")
            if event.get("end"):
                continue  # from the next day: its window is never closed
            product = catalogue[event["product"].encode()]
            key = event["time_ms"] // MINUTE_MS * MINUTE_MS, product["category"]
            one = totals.setdefault(key, [0, 0, 0])
            if topic == "clicks":
                one[0] += 1
            else:
                one[1] += 1
                one[2] += event["quantity"] * product["price_cents"]
    return {key: (clicks, orders, cents) for key, (clicks, orders, cents) in totals.items()}


def compare(store: sawlog.Store) -> Comparison:
    """Compare the topic `revenue` with the expected result."""
    seen: Counter[tuple[int, str]] = Counter()
    found: Totals = {}
    for record in store["revenue"].scan():
        row = json.loads(record.value or b"null")
        key = row["minute_ms"], row["category"]
        seen[key] += 1
        found[key] = row["clicks"], row["orders"], row["cents"]
    return Comparison(expected(store), found, sorted(key for key, times in seen.items() if times > 1))
