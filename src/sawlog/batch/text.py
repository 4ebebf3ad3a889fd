"""Parses untrusted JSON: a value or `ValueError`, whatever the text is.

Python's own parser has three more results. Brackets nested a thousand deep end in `RecursionError`; `Infinity` and
`1e999` become a float that cannot be converted to `int`, which is an unexpected `OverflowError`; and `NaN` is not equal
to itself. We write none of them.
"""

from __future__ import annotations

import json
import math
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The parsed text; `ValueError` if it is not JSON, or a value that a program should not get."""
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


# `json.loads` with these two makes a decoder for each call, which takes as long as parsing a small file.
_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)
