"""A process that sleeps on words of a file, or answers on them.

python -m tests.processes.words KIND PATH sleep SECONDS   sleep on word 0 while it is 0; print "changed N" or
"unchanged" python -m tests.processes.words KIND PATH answer COUNT    copy the next COUNT numbers from word 0 to word 1
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..storage.worded import opened
from .launch import PATIENCE_S, say


def main(kind: str, path: str, task: str, number: str) -> None:
    """Do the task."""
    with opened(kind, Path(path), writable=task == "answer") as words:
        say("ready")
        if task == "sleep":
            changed = words.wait(0, 0, float(number))
            say(f"changed {words[0]}" if changed else "unchanged")
            return
        for expected in range(int(number)):
            while words[0] == expected:
                assert words.wait(0, expected, PATIENCE_S) or words[0] == expected
            words[1] = words[0]
            words.wake(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
