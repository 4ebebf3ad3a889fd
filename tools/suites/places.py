"""Directories of the suites and of their results.

The cache is `$SAWLOG_SUITES`, or below the user's cache. A suite in the cache is not fetched again; to fetch and build
it again, remove its directory.
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
