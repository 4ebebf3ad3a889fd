"""JSON that somebody else may have written: a value, or `ValueError`, whatever it is.

Python's own reader has three more answers. Brackets in brackets, a thousand deep, end in `RecursionError`; `Infinity`
and `1e999` become a float that no `int` can be made of, which is `OverflowError` where nobody expects it; and `NaN` is
equal to nothing. None of them is anything that we write.
"""

from __future__ import annotations

import json
import math
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """What the text says; `ValueError` if that is not JSON, or nothing that a program should be given."""
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("brackets in brackets, too deep to be meant") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large a number")
    return number


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not a number in JSON")
