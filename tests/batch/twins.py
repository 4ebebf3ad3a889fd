"""Both forms of the kernel: the one that the package runs (usually compiled), and the interpreted source.

The interpreter checks every index and its integers do not overflow, so the compiled kernel, which has neither
protection, is compared with it. `BOTH` parametrizes tests over the two; `scan` and `columns` return results in a form
that can be compared.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from sawlog.batch import kernel as packaged
from sawlog.batch.header import new_rows

SOURCE = Path(packaged.__file__).parent / "__init__.py"


def load_interpreted(name: str = "sawlog_kernel_interpreted") -> ModuleType:
    """Load the kernel's source as an ordinary Python package."""
    spec = importlib.util.spec_from_file_location(name, SOURCE, submodule_search_locations=[str(SOURCE.parent)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


interpreted = load_interpreted()
BOTH = [pytest.param(packaged, id="packaged"), pytest.param(interpreted, id="interpreted")]

#: End offset of a reader that reads everything.
FOR_EVER = 2**63 - 1


def plain(record: Any) -> Any:
    """Convert a record of either kernel to a tuple; return anything else unchanged."""
    return record._fields() if hasattr(record, "_fields") else record


def outcome(function: Any, *arguments: Any) -> Any:
    """Return the result of a call, or a mark if it rejects a range."""
    try:
        return function(*arguments)
    except ValueError as error:
        if "outside" not in str(error):
            raise
        return "refused"


def scan(kernel: Any, view: memoryview, least_offset: int = 0, room: int = 8) -> tuple[Any, np.ndarray]:
    """Call `scan_batches` on a whole buffer; return its result and the rows."""
    rows = new_rows(room)
    said = kernel.scan_batches(view, 0, len(view), len(view), least_offset, memoryview(rows))
    return said, rows[: said[0]]


def columns(kernel: Any, view: memoryview, rows: np.ndarray, *, views: bool = False) -> Any:
    """Call `decode_columns`, for copies or `views`, then `decode_headers`; return Python lists."""
    total = int(rows[:, 4].sum())
    # A record takes at least seven bytes: space for all that can parse, whatever a header claims.
    room = int((rows[:, 13] - rows[:, 12]).sum())
    total = min(total, room // 7 + 1)
    offsets, times = np.zeros(total, np.int64), np.zeros(total, np.int64)
    starts = [np.zeros(total + 1, np.int32) for _ in range(2)]
    data = [bytearray(total * 16 if views else room) for _ in range(2)]
    valid = [bytearray((total + 7) // 8) for _ in range(2)]
    origin = (int(rows[0, 12]) if len(rows) else 0) if views else -1
    said = outcome(
        kernel.decode_columns,
        view,
        memoryview(rows),
        len(rows),
        origin,
        *map(memoryview, (offsets, times, starts[0], data[0], valid[0], starts[1], data[1], valid[1])),
        True,
        True,
    )
    if said == "refused" or said[0] >= 0:
        return said if said == "refused" else said[0]
    filled = [offsets.tolist(), times.tolist(), *map(bytes, (*data, *valid))]
    return said, filled, [s.tolist() for s in starts], headers(kernel, view, rows, total, said[6], room)


def headers(kernel: Any, view: memoryview, rows: np.ndarray, total: int, count: int, room: int) -> Any:
    """Call `decode_headers`; return Python lists."""
    lists, names, contents = (np.zeros(n + 1, np.int32) for n in (total, count, count))
    name_data, content_data, valid = bytearray(room), bytearray(room), bytearray((count + 7) // 8)
    said = outcome(
        kernel.decode_headers,
        view,
        memoryview(rows),
        len(rows),
        *map(memoryview, (lists, names, name_data, contents, content_data, valid)),
    )
    if said == "refused" or said[0] >= 0:
        return said if said == "refused" else said[0]
    return (
        said,
        lists.tolist(),
        names.tolist(),
        contents.tolist(),
        *map(bytes, (name_data, content_data, valid)),
    )
