"""A shop's sales of a year as Arrow columns, and their totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: The fields of a value; the table has them as columns.
SCHEMA = "product string, customer string, quantity int, cents bigint"
CHUNK = 250_000
#: Share of the sales that are newer than the table.
TAIL = 0.02
_START_MS = 1_735_689_600_000
_YEAR_MS = 365 * 86_400_000
_PRODUCTS, _CUSTOMERS = 400, 5_000


@dataclass(slots=True)
class Totals:
    """Totals of the sales."""

    sales: int = 0
    cents: int = 0
    customers: Counter[str] = field(default_factory=Counter)

    def best(self, count: int) -> list[tuple[str, int]]:
        """Return the customers with the most sales, with the number of sales."""
        return sorted(self.customers.items(), key=lambda each: (-each[1], each[0]))[:count]


def sales(first: int, last: int, total: int, totals: Totals, seed: int = 3) -> Iterator[pa.Table]:
    """Yield the sales from number `first` up to `last` of `total` in the year, by time, and add them to `totals`."""
    for start in range(first, last, CHUNK):
        count = min(CHUNK, last - start)
        random = np.random.default_rng((seed, start))
        customers = (random.zipf(1.3, count) - 1) % _CUSTOMERS
        products = (random.zipf(1.2, count) - 1) % _PRODUCTS
        quantities = random.integers(1, 5, count)
        cents = quantities * (199 + products * 37)
        times = _START_MS + np.arange(start, start + count) * (_YEAR_MS / total)
        totals.sales += count
        totals.cents += int(cents.sum())
        for number, times_bought in enumerate(np.bincount(customers, minlength=_CUSTOMERS).tolist()):
            totals.customers[f"c{number}"] += times_bought
        yield pa.table(
            {
                "key": _joined("c", customers).cast(pa.binary()),
                "value": _value(products, customers, quantities, cents),
                "timestamp": pa.array(times.astype(np.int64)).cast(pa.timestamp("ms", "UTC")),
            }
        )


def _joined(*parts: str | np.ndarray) -> pa.Array:
    """Concatenate texts and numbers row by row."""
    texts = [part if isinstance(part, str) else pa.array(part).cast(pa.string()) for part in parts]
    return pc.binary_join_element_wise(*texts, "")


def _value(products: np.ndarray, customers: np.ndarray, quantities: np.ndarray, cents: np.ndarray) -> pa.Array:
    texts = ('{"product": "p', products, '", "customer": "c', customers, '", "quantity": ', quantities)
    return _joined(*texts, ', "cents": ', cents, "}").cast(pa.binary())
