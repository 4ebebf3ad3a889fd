"""Maintenance needs a bounded number of descriptors, regardless of the number of segments and of the process limit."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from sawlog import Log, LogConfig

#: Twice as many as there are descriptors to spare.
SEGMENTS = 130


@pytest.fixture
def few() -> Iterator[int]:
    """This process may open forty files more than it has open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(os.listdir("/proc/self/fd")) + 64
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.alternating
@pytest.mark.sampled(1)  # 0.5 s each
@pytest.mark.parametrize("scanned", [False, True], ids=["fresh", "scanned before"])
@pytest.mark.parametrize("how", ["_merge_segments", "compact", "_recompress"])
def test_very_many_segments_are_rewritten_with_few_descriptors(
    tmp_path: Path, few: int, how: str, scanned: bool
) -> None:
    with Log.open(tmp_path, LogConfig(durability="os")) as log:
        for number in range(SEGMENTS):
            log.append_many([(b"v%d" % number, b"k%d" % (number % 20)), (b"w", b"u%d" % number)])
            log.seal()
        if scanned:
            assert len(list(log)) == 2 * SEGMENTS
        getattr(log, how)()
        assert log.verify()
        assert len(list(log)) == (SEGMENTS + 20 if how == "compact" else 2 * SEGMENTS)
        assert len(log.segments) < 50 or how == "_recompress"
