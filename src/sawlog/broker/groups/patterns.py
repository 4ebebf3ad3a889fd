"""Regular expressions of clients, matched in linear time: RE2, which Kafka's brokers use as well. Arrow brings it, and
is imported when a client first sends one: it takes memory, and time at the start.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate


def is_pattern(pattern: str) -> bool:
    """Whether it is a regular expression."""
    import pyarrow as pa

    try:
        matching(pattern, ["x"])
    except pa.ArrowInvalid:
        return False
    return True


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that match as a whole."""
    return _matching(pattern, tuple(names))


@lru_cache(64)
def _matching(pattern: str, names: tuple[str, ...]) -> frozenset[str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    # Not `pa.array`: that imports pandas, if it is installed, which takes half a second.
    encoded = [name.encode() for name in names]
    ends = array("i", accumulate(map(len, encoded), initial=0))
    made = pa.StringArray.from_buffers(len(names), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))
    return frozenset(made.filter(pc.match_substring_regex(made, f"^(?:{pattern})$")).to_pylist())
