"""A busy hour of a shop: realistic JSON orders, the same in every run.

Nothing is random. The number of an order is hashed to 64 bits, which determine its fields, so any order can be
generated again from its number alone. The tour compares the log with orders generated this way.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

#: The hour that the orders fall into.
START = datetime(2026, 3, 2, 9, tzinfo=UTC)
MINUTES = 60
_START_MS, _HOUR_MS = int(START.timestamp() * 1000), MINUTES * 60_000

#: Countries and their share of orders, in 64ths.
_SHARES = {"US": 17, "DE": 11, "GB": 9, "FR": 8, "JP": 7, "BR": 5, "IN": 4, "SE": 3}
COUNTRIES = tuple(_SHARES)
_COUNTRY_OF = np.repeat(np.arange(len(COUNTRIES)), list(_SHARES.values()))
_CUSTOMERS = tuple(f"c{number:05}" for number in range(20_000))
_KEYS = tuple(customer.encode() for customer in _CUSTOMERS)
_ITEMS = tuple(f'"sku":"A-{1000 + number}","items":{1 + number % 3}' for number in range(600))
_PRICES = np.array([(499 + number * number % 9_973) * (1 + number % 3) for number in range(600)])

#: Approximate size of an order in the log.
ORDER_BYTES = 125

#: value, key, timestamp in ms
Order = tuple[bytes, bytes, int]


@dataclass(frozen=True, slots=True)
class Orders:
    """Some orders, and their total price."""

    records: list[Order]
    cents_by_country: NDArray[np.int64]

    @property
    def value_bytes(self) -> int:
        """Size of all values, without keys."""
        return sum(len(value) for value, _, _ in self.records)


def orders(first: int, last: int, total: int) -> Orders:
    """Return the orders with first <= number < last, out of `total` in the hour."""
    numbers = np.arange(first, last, dtype=np.uint64)
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    country = _COUNTRY_OF[(mixed % np.uint64(64)).astype(np.int64)]
    customer = (mixed >> np.uint64(17)) % np.uint64(len(_CUSTOMERS))
    items = ((mixed >> np.uint64(33)) % np.uint64(len(_ITEMS))).astype(np.int64)
    cents = _PRICES[items]
    columns = (customer, country, items, cents, _times(numbers, total))
    records = [
        (
            f'{{"order":{number},"customer":"{_CUSTOMERS[who]}","country":"{COUNTRIES[where]}",{_ITEMS[what]},'
            f'"cents":{price},"status":"paid"}}'.encode(),
            _KEYS[who],
            when,
        )
        for number, who, where, what, price, when in zip(
            range(first, last), *(column.tolist() for column in columns), strict=True
        )
    ]
    by_country = np.zeros(len(COUNTRIES), np.int64)
    np.add.at(by_country, country, cents)
    return Orders(records, by_country)


def _times(numbers: NDArray[np.uint64], total: int) -> NDArray[np.int64]:
    """Return the time of an order. The rate varies, but times never go backwards."""
    part = numbers / total
    waves = 0.35 * np.sin(2 * np.pi * part) / (2 * np.pi) + 0.25 * np.sin(10 * np.pi * part) / (10 * np.pi)
    return _START_MS + ((part + waves) * _HOUR_MS).astype(np.int64)
