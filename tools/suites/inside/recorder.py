"""A plugin for pytest, inside a suite: writes how each test ended, one JSON object per line, as soon as it has ended.

So what is known survives a run that is cut off, and whoever reads the file can show progress. The file is
`$SUITE_RECORD`. It runs in the suite's environment, so it imports nothing of ours.
"""

from __future__ import annotations

import json
import os
from typing import Any

_PATH = os.environ["SUITE_RECORD"]
_BAD: dict[str, dict[str, Any]] = {}


def pytest_runtest_logreport(report: Any) -> None:
    """A test has three phases. It fails if one of them does, and is over after the last."""
    kept = _BAD.setdefault(report.nodeid, {"outcome": "passed", "reason": "", "seconds": 0.0})
    kept["seconds"] += report.duration
    if report.failed or (report.skipped and kept["outcome"] == "passed"):
        kept.update(outcome="failed" if report.failed else "skipped", reason=_reason(report))
    if report.when == "teardown":
        _write({"test": report.nodeid, **_BAD.pop(report.nodeid)})


def pytest_collectreport(report: Any) -> None:
    """A module that cannot be imported is one failure."""
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
