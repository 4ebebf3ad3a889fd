"""`python -m tests.broker.soak --minutes 30`, from the top of the repository: one broker process, for a long time.

Producers, transactions and groups run and are checked as in a history (`history/`). Clients are killed all the time,
the broker is not. Two more topics are kept small by retention and compaction. Every few seconds the memory and the
descriptors of the broker are measured.

At the end there must be no violation in the history, the compacted topic must have the last value of each key,
retention must have removed records, and memory and descriptors must not have grown from the second quarter to the last
one. Caches, threads and arenas grow in the first quarter.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import sawlog

from ..faults.report import say
from .history.actors import common
from .history.run import Actor, Outcome, kill_a_client, play
from .serving import PATIENCE_S, Serving

EXPIRING, LATEST = "expiring", "latest"
KEYS = 500
SEGMENT_BYTES = 1 << 18
RETENTION_BYTES = 1 << 20
CAST = {"producer": 1, "copier": 2, "reader": 2}
#: Mean interval between kills, and interval between samples of the broker.
KILL_EVERY_S, LOOK_EVERY_S = 6.0, 2.0
#: Growth that is allowed at the end: allocators are not exact.
MEMORY_BYTES, DESCRIPTORS = 16 << 20, 12


@dataclass(slots=True)
class Gauge:
    """Samples of the memory and descriptors of a process."""

    pid: int
    memory: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def look(self) -> None:
        """Take a sample."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None
        self.memory.append(int(found[1]) * 1024)
        self.descriptors.append(len(os.listdir(f"/proc/{self.pid}/fd")))

    def growth(self) -> list[str]:
        """Return the quantities that grew from the second quarter to the last."""
        found = []
        for name, values, allowed in (
            ("memory", self.memory, MEMORY_BYTES),
            ("descriptors", self.descriptors, DESCRIPTORS),
        ):
            quarter = len(values) // 4
            before, after = statistics.median(values[quarter : 2 * quarter]), statistics.median(values[-quarter:])
            if after > before + allowed:
                found.append(f"{name} has grown from {before:,.0f} to {after:,.0f}")
        return found

    def __str__(self) -> str:
        shown = [f"{size / (1 << 20):.0f}" for size in self.memory[:: max(len(self.memory) // 10, 1)]]
        files = [str(count) for count in self.descriptors[:: max(len(self.descriptors) // 10, 1)]]
        return f"memory in MiB: {' '.join(shown)}; descriptors: {' '.join(files)}"


class Churn:
    """Writes to topics that maintenance keeps small, and records their expected content."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="churn")
        self._error: BaseException | None = None
        self.sent: Counter[str] = Counter()
        #: The last number of each key that was acknowledged, and the last that was sent.
        self.acknowledged: dict[str, int] = {}
        self.latest: dict[str, int] = {}

    def start(self) -> None:
        """Create the topics and start writing."""
        small = {"segment.bytes": str(SEGMENT_BYTES)}
        topics = [
            NewTopic(EXPIRING, 1, 1, config={**small, "retention.bytes": str(RETENTION_BYTES)}),
            NewTopic(LATEST, 1, 1, config={**small, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}),
        ]
        admin = AdminClient(common(self._address))  # keep a reference: its futures fail when it is collected
        for future in admin.create_topics(topics).values():
            future.result(PATIENCE_S)
        self._thread.start()

    def stop(self) -> None:
        """Wait until everything is acknowledged."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            producer = Producer({**common(self._address), "enable.idempotence": True, "linger.ms": 20})
            rng, number = random.Random(7), 0
            while not self._stop.wait(0.05):
                for _ in range(20):
                    number += 1
                    self._send(producer, f"key-{rng.randrange(KEYS)}", number, rng.randbytes(400))
                producer.poll(0)
            assert not producer.flush(PATIENCE_S), "records were not acknowledged"
        except BaseException as error:
            self._error = error

    def _send(self, producer: Producer, key: str, number: int, rest: bytes) -> None:
        def told(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged[key] = max(number, self.acknowledged.get(key, 0))

        self.latest[key] = number
        producer.produce(LATEST, b"%d/" % number + rest, key, on_delivery=told)
        producer.produce(EXPIRING, b"%d/" % number + rest)
        self.sent.update((LATEST, EXPIRING))

    def trouble(self, data: Path) -> list[str]:
        """Return the problems of the store."""
        with sawlog.open(data, mode="r") as store:
            latest, expiring = store.topic(LATEST).partition(0), store.topic(EXPIRING).partition(0)
            found = {(record.key or b"").decode(): int((record.value or b"").split(b"/")[0]) for record in latest}
            kept = sum(1 for _ in latest)
            said = [
                f"the compacted topic has {found.get(key)} for {key}, and {number} was acknowledged"
                for key, number in self.acknowledged.items()
                if found.get(key, 0) < number
            ]
            if kept >= self.sent[LATEST]:
                said.append(f"compaction has removed nothing of {kept} records")
            if expiring.lowest_offset == 0:
                said.append("retention has removed nothing")
            if expiring.size_bytes > RETENTION_BYTES + 4 * SEGMENT_BYTES:
                said.append(f"the expiring topic has {expiring.size_bytes:,} bytes")
        return said


@dataclass(slots=True)
class Soaked:
    """Result of a soak."""

    outcome: Outcome
    gauge: Gauge
    trouble: list[str]

    def __str__(self) -> str:
        lines = [f"{self.outcome}", f"{self.gauge}", *map(str, self.outcome.violations[:20]), *self.trouble]
        return "\n".join(lines)


def soak(directory: Path, minutes: float, seed: int) -> Soaked:
    """Run once."""
    broker = _Watched(directory / "data", "--set", "maintenance_interval_s=3")

    def strike(rng: random.Random, serving: Serving, actors: list[Actor], outcome: Outcome) -> None:
        deadline = time.monotonic() + rng.uniform(0.5, 1.5) * KILL_EVERY_S - 1
        while time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S / 2)
            broker.look()
        kill_a_client(rng, serving, actors, outcome)

    kills = max(round(minutes * 60 / KILL_EVERY_S), 2)
    outcome = play(directory, kills=kills, seed=seed, broker=broker, cast=CAST, strike=strike)
    assert broker.gauge is not None
    assert broker.churn is not None
    trouble = broker.gauge.growth() + broker.churn.trouble(broker.data)
    if "Traceback" in broker.said:
        trouble.append(f"the broker had an error: {broker.said[-4000:]}")
    return Soaked(outcome, broker.gauge, trouble)


class _Watched(Serving):
    """A measured broker with writers in addition to those of the history."""

    gauge: Gauge | None = None
    churn: Churn | None = None
    _looked_s = 0.0

    def start(self) -> None:
        super().start()
        self.gauge, self.churn = Gauge(self.pid), Churn(self.address)
        self.churn.start()

    def look(self) -> None:
        """Take a sample unless the last one is recent; stop the writers after the last sample."""
        assert self.gauge is not None
        if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            self.gauge.look()

    def kill(self) -> None:
        if self.churn is not None and self.is_running:
            self.churn.stop()
        super().kill()


def main() -> int:
    """Run and print the verdict."""
    parser = argparse.ArgumentParser(prog="python -m tests.broker.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default: 30)")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000, help="whom to kill, and when")
    options = parser.parse_args()
    say(f"seed {options.seed}")
    directory = Path(tempfile.mkdtemp(prefix="sawlog-soak-"))
    soaked = soak(directory, options.minutes, options.seed)
    say(str(soaked))
    if soaked.trouble or soaked.outcome.violations:
        say(f"kept in {directory}")
        return 1
    shutil.rmtree(directory)
    say("no violation, no growth")
    return 0


if __name__ == "__main__":
    sys.exit(main())
