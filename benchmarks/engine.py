"""`make bench-engine`: sawlog compared with its alternatives and with the limits of the machine, in one table.

    python benchmarks/engine.py [--quick] [--only PATTERN] [--dir DIRECTORY] [--json FILE] [--list]

README.md in this folder explains the method and the rows.
"""

from __future__ import annotations

import appending
import bounds
import command
import durability
import reading
import small

CASES = [*appending.CASES, *reading.CASES, *small.CASES, *durability.CASES, *bounds.CASES]

if __name__ == "__main__":
    command.run(CASES, "Measure sawlog's engine against its rivals and the machine.")
