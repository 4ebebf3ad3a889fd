"""Parse untrusted JSON: return a value or raise `ValueError`, whatever the text is.

Python's own parser has three more outcomes. Brackets nested a thousand deep raise `RecursionError`; `Infinity` and
`1e999` become a float whose conversion to `int` raises an unexpected `OverflowError`; and `NaN` is not equal to itself.
sawlog writes none of them.
"""

from __future__ import annotations

import json
import math
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text; raise `ValueError` if it is not strict JSON or has a number that is not finite."""
    if not isinstance(text, str):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text} is too large")
    return number


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not a number in JSON")


# `json.loads` with these two would create a decoder per call, which takes as long as parsing a small file.
_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)
