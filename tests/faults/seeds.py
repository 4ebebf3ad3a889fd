"""The seed of a quick run: another one each time, so that many runs see many scenarios; and said, to be repeated.

`SAWLOG_FAULT_SEED=N pytest tests/faults` takes that one. Else it follows from the time; where several processes share
one run (`pytest -n 2`), from the id of that run, which all of them know. It is printed in pytest's header and in what a
failed test says.
"""

from __future__ import annotations

import os
import time
import zlib

VARIABLE = "SAWLOG_FAULT_SEED"
#: Short enough to be typed.
_MOST = 1_000_000


def seed_of_this_run() -> int:
    """The same in all processes of a run, and for as long as it lasts."""
    given = os.environ.get(VARIABLE)
    if given is None:
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
        made = int(time.time()) if run is None else zlib.crc32(run.encode())
        given = os.environ[VARIABLE] = str(made % _MOST)
    try:
        return int(given)
    except ValueError:
        raise SystemExit(f"{VARIABLE} is a whole number, not {given!r}") from None


def repeat() -> str:
    """How to see the same again."""
    return f"{VARIABLE}={seed_of_this_run()}"
