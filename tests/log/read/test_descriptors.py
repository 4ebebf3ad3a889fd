"""Maintenance needs a bounded number of descriptors, regardless of the number of segments and of the process limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from ... import warm

#: Twice as many as the process has descriptors to spare.
SEGMENTS = 130
#: A process of its own: the tests of this one may have opened any number of files, and the limits of the log are shares
#: of the limit of the process.
PROGRAM = """
import os, resource, sys
from sawlog import Log, LogConfig

path, how, scanned, segments = sys.argv[1], sys.argv[2], sys.argv[3] == "True", int(sys.argv[4])
spare = len(os.listdir("/proc/self/fd")) + 64
resource.setrlimit(resource.RLIMIT_NOFILE, (spare, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
with Log.open(path, LogConfig(durability="os")) as log:
    for number in range(segments):
        log.append_many([(b"v%d" % number, b"k%d" % (number % 20)), (b"w", b"u%d" % number)])
        log.seal()
    if scanned:
        assert len(list(log)) == 2 * segments
    getattr(log, how)()
    assert log.verify()
    assert len(list(log)) == (segments + 20 if how == "compact" else 2 * segments)
    assert len(log.segments) < 50 or how == "_recompress"
"""


@pytest.mark.alternating
@pytest.mark.sampled(1)  # 0.5 s each
@pytest.mark.parametrize("scanned", [False, True], ids=["fresh", "scanned before"])
@pytest.mark.parametrize("how", ["_merge_segments", "compact", "_recompress"])
def test_very_many_segments_are_rewritten_with_few_descriptors(tmp_path: Path, how: str, scanned: bool) -> None:
    done = warm.run(["-c", PROGRAM, str(tmp_path), how, str(scanned), str(SEGMENTS)], timeout=120)
    assert done.returncode == 0, done.stderr
