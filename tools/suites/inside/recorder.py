"""A pytest plugin that writes the outcome of each test as it ends, one JSON object per line.

Outcomes survive an interrupted run, and a reader of the file can show progress. The file is `$SUITE_RECORD`. The plugin
runs in the suite's environment, so it does not import sawlog.
"""

from __future__ import annotations

import json
import os
from typing import Any

_PATH = os.environ["SUITE_RECORD"]
_BAD: dict[str, dict[str, Any]] = {}


def pytest_runtest_logreport(report: Any) -> None:
    """Record the outcome after the last of a test's three phases; the test fails if one of them fails."""
    kept = _BAD.setdefault(report.nodeid, {"outcome": "passed", "reason": "", "seconds": 0.0})
    kept["seconds"] += report.duration
    if report.failed or (report.skipped and kept["outcome"] == "passed"):
        kept.update(outcome="failed" if report.failed else "skipped", reason=_reason(report))
    if report.when == "teardown":
        _write({"test": report.nodeid, **_BAD.pop(report.nodeid)})


def pytest_collectreport(report: Any) -> None:
    """Record one failure for a module that cannot be imported."""
    if report.failed:
        _write({"test": report.nodeid, "outcome": "failed", "reason": _reason(report), "seconds": 0.0})


def _reason(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message).strip().partition("\n")[0][:300]
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])[:300]
    lines = str(report.longrepr).strip().splitlines()
    return lines[-1][:300] if lines else ""


def _write(line: dict[str, Any]) -> None:
    with open(_PATH, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
