"""The job that keeps a table, in a process of its own, which kills itself at a step.

python tabling.py DATA LAKE FORMAT STEP [SCHEMA]
"""

from __future__ import annotations

import os
import signal
import sys

from sawlog.pipelines import rounds, running, table


def main(data: str, lake: str, form: str, step: str, schema: str | None = None) -> None:
    """Keep the table of `orders`, in rounds of a few records."""

    def reached(at: str) -> None:
        if at == step:
            os.kill(os.getpid(), signal.SIGKILL)

    rounds.reached = reached
    params = table.TableParams(data, "orders", lake, format=form, schema=schema, max_records=400, merge_from=2)  # type: ignore[arg-type]
    table.run(running.session(), params)


if __name__ == "__main__":
    main(*sys.argv[1:])
