"""Sizes and durations with units, as settings and command-line options accept them.

Sizes are `64MiB`, `1.5GB` or `4096` (bytes), durations `7d`, `1h30m` or `250ms`. Each parser raises `ValueError` with
valid examples.
"""

from __future__ import annotations

import math
import re

_SIZES = {
    "": 1,
    "b": 1,
    **{unit: 1000**power for power, unit in enumerate(("kb", "mb", "gb", "tb"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("k", "m", "g", "t"), 1)},
}
_DURATIONS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
#: Round steps of a time axis: seconds, minutes, hours, days, weeks, months, years.
ROUND_STEPS_MS = (
    *(each * 1000 for each in (1, 2, 5, 10, 15, 30)),
    *(each * 60_000 for each in (1, 2, 5, 10, 15, 30)),
    *(each * 3_600_000 for each in (1, 2, 3, 6, 12)),
    *(each * 86_400_000 for each in (1, 2, 7, 14, 30, 90, 365, 3650)),
)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")


def size_bytes(text: str) -> int:
    """Parse `64MiB`, `10MB`, `512k` (1024) or a plain number to bytes."""
    found = _SIZE.fullmatch(text.strip().lower())
    if not found or found[2] not in _SIZES:
        raise ValueError(f"{text!r} is not a size; write 4096, 64KiB, 10MB or 1GiB")
    unit = _SIZES[found[2]]
    return int(_finite(float(found[1]) * unit, text)) if "." in found[1] else int(found[1]) * unit


def duration_ms(text: str) -> int:
    """Parse `7d`, `1h30m`, `250ms` to milliseconds."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration; write 250ms, 10s, 5m, 1h30m, 7d or 2w")
    found = sum(float(number) * _DURATIONS_MS[unit] for number, unit in _DURATION_PART.findall(text))
    return round(_finite(found, text))


def _finite(number: float, text: str) -> float:
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]!r}… is too large")
    return number
