"""The brokers that serve a store, as they have registered themselves, and the groups that they coordinate.

```
broker/<node id>      {"run", "host", "port", "beat"}
served/<group>        [epoch, node id, run, address]: a broker has members of the group
claims/<group>        the last epoch of a claim, when nobody has one
```

A *run* is one life of a broker's process. Its *beat* is a counter; the fold never judges how long it stood still:
another broker, which saw no change for the time-out on its own clock, asks for the removal of the broker with that
beat, which is rejected if there was a beat since.

Being registered is no permission. Who coordinates a group is decided by its *claim*: each claim has a higher epoch than
the one before and ends it, and what a broker commits for the members of a group is rejected unless its claim is the
last one.
"""

from __future__ import annotations

from typing import Any

from . import members
from .book import Book, Rejected, quoted, take_numbers
from .commit import Action


def register(book: Book, action: Action) -> int:
    """A broker begins; the node id that it has. A new run of a node id ends the one before."""
    node_id = action["id"]
    if node_id is None:
        node_id = take_numbers(book, "node", 1) + 1
        while book.entries.get(f"broker/{node_id}") is not None:
            node_id = take_numbers(book, "node", 1) + 1
    if type(node_id) is not int or node_id < 0:
        raise Rejected("InvalidConfig", "a node id that is not possible")
    before = book.entries.get(f"broker/{node_id}")
    if before is not None and before["run"] != action["run"]:
        _release_all(book, before["run"])
    made = {"run": str(action["run"]), "host": str(action["host"]), "port": int(action["port"]), "beat": 0}
    book.put(f"broker/{node_id}", made)
    return int(node_id)


def beat(book: Book, action: Action) -> int:
    """A sign of life; which one it is."""
    found = _found(book, action)
    book.put(f"broker/{action['id']}", {**found, "beat": found["beat"] + 1})
    return int(found["beat"] + 1)


def remove(book: Book, action: Action) -> None:
    """A broker leaves, or stood still: unless it has another beat by now."""
    found = _found(book, action)
    if action["beat"] is not None and found["beat"] != action["beat"]:
        raise Rejected("Changed", f"broker {action['id']} has given a sign of life")
    book.drop(f"broker/{action['id']}")
    _release_all(book, found["run"])


def _found(book: Book, action: Action) -> dict[str, Any]:
    found: dict[str, Any] | None = book.entries.get(f"broker/{action['id']}")
    if found is None or found["run"] != action["run"]:
        raise Rejected("BrokerRemoved", f"broker {action['id']} is not registered with this run")
    return found


def _release_all(book: Book, run: str) -> None:
    for name in book.entries.names("served/"):
        if book.entries.get(name)[2] == run:
            _release(book, name.partition("/")[2])


# --- groups


def claim(book: Book, action: Action) -> int:
    """A broker coordinates a group from now on; the epoch of its claim. Whoever had one has lost it."""
    group = quoted(action["group"])
    served = book.entries.get(f"served/{group}")
    members.check_empty(book, action["group"])
    last = served[0] if served is not None else book.entries.get(f"claims/{group}", 0)
    if action["epoch"] is not None and action["epoch"] != last:
        raise Rejected("Changed", f"the last claim to group {action['group']!r} has epoch {last}")
    book.drop(f"claims/{group}")
    book.put(f"served/{group}", [last + 1, int(action["id"]), str(action["run"]), str(action["address"])])
    return int(last + 1)


def release(book: Book, action: Action) -> None:
    """The members of a group are gone: others may join it."""
    group = quoted(action["group"])
    check_claim(book, action["group"], action["claim"])
    _release(book, group)


def _release(book: Book, group: str) -> None:
    book.put(f"claims/{group}", book.entries.get(f"served/{group}")[0])
    book.drop(f"served/{group}")


def check_claim(book: Book, group: str, given: Any) -> None:
    """Reject what a broker asks for that does not coordinate the group any more. Without a claim: what anybody asks
    for while a broker has members of the group."""
    served = book.entries.get(f"served/{quoted(group)}")
    if given is None:
        if served is not None:
            raise Rejected("GroupActive", f"the group {group!r} has members at the broker {served[3]}")
        return
    if served is None or [served[2], served[0]] != list(given):
        raise Rejected("NotCoordinator", f"another broker coordinates the group {group!r}")
