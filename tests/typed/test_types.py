"""mypy knows the types of typed records: correct code passes, and every planted mistake is found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # mypy reads the whole library

RIGHT = """
from dataclasses import dataclass

from sawlog import JSON, Headers, Log, Nullable, Store, Topic, Utf8


@dataclass
class Order:
    id: int


@dataclass
class Trace:
    origin: str


class Roman:
    def encode(self, value: int) -> bytes:
        return b"I" * value

    def decode(self, data: bytes) -> int:
        return len(data)


def use(topic: Topic, log: Log) -> None:
    orders = topic.typed(value=JSON(Order), key=Utf8(), metadata=Headers(Trace), errors_to="orders-bad")
    orders.append(Order(7), key="ada", metadata=Trace("web"))
    orders.append_many([Order(8)], key=lambda order: str(order.id))
    for record in orders.scan():
        number: int = record.value.id
        text: str | None = record.key
        origin: str = record.metadata.origin
    with orders.consumer("billing", start="latest") as consumer:
        for record in consumer:
            number = record.value.id
    plain = log.typed(Nullable(Roman()))
    value: int | None = plain.read(7).value
    key: bytes | None = plain.read(7).key
    headers: tuple[tuple[str, bytes | None], ...] = plain.read(7).metadata
"""

MISTAKES = [
    'orders.append("seven")',
    "orders.append(Order(7), key=7)",
    'orders.append(Order(7), metadata="web")',
    'orders.append_many(["seven"])',
    "orders.append_many([Order(8)], key=lambda order: order.id)",
    "orders.append_many([Order(8)], key=lambda order: order.name)",
    "orders.read(0, 0).value.customer",
    "next(iter(orders.scan())).value + 1",
    "len(orders.read(0, 0).key)",
    'orders.consumer("billing", begin="latest")',
    'orders.consumer("billing", start=1.5)',
    "next(iter(orders.consumer(None))).value.customer",
    "next(iter(orders.consumer(None).drain())).metadata.attempt",
    "topic.typed(Utf8)",
    "topic.typed(value=Utf8(), key=str)",
    "topic.typed(Utf8(), errors_to=7)",
    'log.typed(Utf8(), errors_to="orders-bad")',
    "log.typed(Utf8()).append(7)",
    "log.typed(Roman()).read(0).value.upper()",
]


def test_mypy_finds_each_planted_mistake_and_nothing_else(tmp_path: Path) -> None:
    lines = RIGHT.splitlines()
    source = "\n".join([*lines, *(f"    {each}" for each in MISTAKES), ""])
    (tmp_path / "program.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--python-version", "3.12", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    errors = [line for line in done.stdout.splitlines() if line.startswith("program.py") and " error: " in line]
    found = {int(match[1]) for line in errors if (match := re.match(r"program\.py:(\d+)", line))}
    assert found == set(range(len(lines) + 1, len(lines) + 1 + len(MISTAKES))), done.stdout
