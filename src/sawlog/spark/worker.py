"""What a Python worker of Spark needs in addition to reading and writing: less work for the garbage collector.

PySpark collects garbage after every task, in all objects of the process: those of pyarrow, numpy and pandas, hundreds
of thousands, which are permanent. For short tasks that took a third of a worker's time. So everything that exists when
the first task is done is set aside (`gc.freeze`): reference counts still free it, only cycles in it are not searched.
"""

from __future__ import annotations

import gc

_settled = False


def settle() -> None:
    """Call when a task's work is done; only the first call has an effect."""
    global _settled  # noqa: PLW0603 - one process, one heap
    if not _settled:
        _settled = True
        gc.freeze()
