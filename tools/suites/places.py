"""Directories of the suites and of their results.

The cache is `$SAWLOG_SUITES`, or below the user's cache; a suite that is there is not fetched again. Removing its
directory makes the next run fetch and build it once more.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "suites"
DOCUMENT = ROOT / "docs" / "compatibility.md"


def cache() -> Path:
    """Return the directory in which suites are fetched and built."""
    below = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("SAWLOG_SUITES") or below / "sawlog" / "suites")
