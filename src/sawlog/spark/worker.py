"""What a Python worker of Spark needs beside reading and writing: little to do for the garbage collector.

PySpark collects garbage after every task, in all objects that the process has: those of pyarrow, numpy and pandas,
hundreds of thousands, which stay for ever. For short tasks that took a third of a worker's time. So what is there when
the first task is done is set aside (`gc.freeze`): reference counts still free it, only cycles in it are not looked for.
"""

from __future__ import annotations

import gc

_settled = False


def settle() -> None:
    """Call when a task's work is done; does something the first time only."""
    global _settled  # noqa: PLW0603 - one process, one heap
    if not _settled:
        _settled = True
        gc.freeze()
