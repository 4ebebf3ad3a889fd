"""The inputs that are kept: `corpus/<target>.txt`, one a line, in base64.

They were found to reach code that no other input reaches (`run --coverage`), or to break something once: such a line
has a word after it that says what. All of them are replayed by a quick test, and are seeds for the next run.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path

PLACE = Path(__file__).with_name("corpus")


def load(target: str) -> list[bytes]:
    """The inputs of one target."""
    path = PLACE / f"{target}.txt"
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    return [b64decode(line.split(" ")[0]) for line in lines if line]


def add(target: str, inputs: Iterable[bytes], why: str = "") -> int:
    """Keep more of them; how many were new."""
    path = PLACE / f"{target}.txt"
    known = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    seen = {line.split(" ")[0] for line in known}
    new = [line for each in inputs if (line := b64encode(each).decode()) not in seen]
    if new:
        PLACE.mkdir(exist_ok=True)
        marked = [f"{line} {why}" if why else line for line in new]
        path.write_text("".join(f"{line}\n" for line in [*known, *marked]), encoding="ascii")
    return len(new)
