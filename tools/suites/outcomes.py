"""The outcome of a suite: one entry per test, stored as JSON.

```
{"suite": "librdkafka", "version": "2.12.1", "against": "sawlog", "broker": "0.9.0", "date": "2026-11-17",
 "seconds": 812.4, "tests": {"0001_multiobj": {"outcome": "passed", "seconds": 1.2, "reason": ""}, ...}}
```
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one test. `reason` is the first line of the failure or of the reason for the skip."""

    outcome: str
    seconds: float = 0.0
    reason: str = ""
    #: Set if the test failed at first and this is the outcome of a second run.
    again: bool = False


@dataclass(slots=True)
class Run:
    """One suite against one broker."""

    suite: str
    version: str
    against: str
    broker: str
    date: str
    seconds: float = 0.0
    tests: dict[str, Outcome] = field(default_factory=dict)

    def counts(self) -> Counter[str]:
        """Return the number of tests that passed, failed and were skipped."""
        return Counter(each.outcome for each in self.tests.values())

    def names(self, outcome: str) -> set[str]:
        """Return the names of the tests with this outcome."""
        return {name for name, each in self.tests.items() if each.outcome == outcome}

    def save(self, directory: Path) -> Path:
        """Write the outcome as JSON, replacing that of an earlier run."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.suite}-{self.against}.json"
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        return path


def load(directory: Path) -> dict[tuple[str, str], Run]:
    """Return all kept runs, by suite and broker."""
    found: dict[tuple[str, str], Run] = {}
    for path in sorted(directory.glob("*-*.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        tests: Mapping[str, dict[str, object]] = kept.pop("tests")
        run = Run(**kept, tests={name: Outcome(**each) for name, each in tests.items()})  # type: ignore[arg-type]
        found[run.suite, run.against] = run
    return found
