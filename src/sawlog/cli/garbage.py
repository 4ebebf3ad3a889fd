"""When Python looks for garbage: seldom while a command starts, as usual while a broker runs.

What is made at the start stays: modules, classes, options. Looking through it after every few hundred new objects took
a tenth of the time that a command needs to start.
"""

from __future__ import annotations

import gc

#: New objects before Python looks, while a command starts.
_WHILE_STARTING = 50_000
_USUAL = gc.get_threshold()


def look_seldom() -> None:
    """From the start of the program on."""
    gc.set_threshold(_WHILE_STARTING)


def look_as_usual() -> None:
    """For what runs long. What is there now is not looked through again."""
    gc.freeze()
    gc.set_threshold(*_USUAL)
