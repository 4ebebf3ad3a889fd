"""The brokers registered in a store, and the groups that they coordinate.

```
broker/<node id>      {"run", "host", "port", "beat"}
served/<group>        [epoch, node id, run, address]: a broker has members of the group
claims/<group>        the last epoch of a claim, while no broker has one
```

A *run* is one lifetime of a broker process. Its *beat* is a heartbeat counter. The fold never judges how long the
counter stood still: another broker, which saw no change for the timeout on its own clock, requests the removal of the
broker with that beat, and the request is rejected if there was a beat since.

Registration grants nothing. The *claim* of a group decides which broker coordinates it: each claim has a higher epoch
than the previous one and ends it. Commits for the members of a group are rejected unless the broker has the last claim.
"""

from __future__ import annotations

from typing import Any

from . import members
from .commit import Action
from .mutation import Rejected, StateEntries, quoted, take_numbers


def register(state: StateEntries, action: Action) -> int:
    """Register a broker and return its node id. A new run of a node id ends the previous one."""
    node_id = action["id"]
    if node_id is None:
        node_id = take_numbers(state, "node", 1) + 1
        while state.entries.get(f"broker/{node_id}") is not None:
            node_id = take_numbers(state, "node", 1) + 1
    if type(node_id) is not int or node_id < 0:
        raise Rejected("InvalidConfig", "a node id that is not possible")
    before = state.entries.get(f"broker/{node_id}")
    if before is not None and before["run"] != action["run"]:
        _release_all(state, before["run"])
    made = {"run": str(action["run"]), "host": str(action["host"]), "port": int(action["port"]), "beat": 0}
    state.put(f"broker/{node_id}", made)
    return int(node_id)


def beat(state: StateEntries, action: Action) -> int:
    """Record a heartbeat and return its number."""
    found = _found(state, action)
    state.put(f"broker/{action['id']}", {**found, "beat": found["beat"] + 1})
    return int(found["beat"] + 1)


def remove(state: StateEntries, action: Action) -> None:
    """Remove a broker that leaves or timed out, unless its beat has changed."""
    found = _found(state, action)
    if action["beat"] is not None and found["beat"] != action["beat"]:
        raise Rejected("Changed", f"broker {action['id']} has given a sign of life")
    state.drop(f"broker/{action['id']}")
    _release_all(state, found["run"])


def _found(state: StateEntries, action: Action) -> dict[str, Any]:
    found: dict[str, Any] | None = state.entries.get(f"broker/{action['id']}")
    if found is None or found["run"] != action["run"]:
        raise Rejected("BrokerRemoved", f"broker {action['id']} is not registered with this run")
    return found


def _release_all(state: StateEntries, run: str) -> None:
    for name in state.entries.names("served/"):
        if state.entries.get(name)[2] == run:
            _release(state, name.partition("/")[2])


# --- groups


def claim(state: StateEntries, action: Action) -> int:
    """Make a broker the coordinator of a group and return the epoch of its claim. Any earlier claim ends."""
    group = quoted(action["group"])
    served = state.entries.get(f"served/{group}")
    members.check_empty(state, action["group"])
    last = served[0] if served is not None else state.entries.get(f"claims/{group}", 0)
    if action["epoch"] is not None and action["epoch"] != last:
        raise Rejected("Changed", f"the last claim to group {action['group']!r} has epoch {last}")
    state.drop(f"claims/{group}")
    state.put(f"served/{group}", [last + 1, int(action["id"]), str(action["run"]), str(action["address"])])
    return int(last + 1)


def release(state: StateEntries, action: Action) -> None:
    """Release the claim of a group that has no members left, so that others can join it."""
    group = quoted(action["group"])
    check_claim(state, action["group"], action["claim"])
    _release(state, group)


def _release(state: StateEntries, group: str) -> None:
    state.put(f"claims/{group}", state.entries.get(f"served/{group}")[0])
    state.drop(f"served/{group}")


def check_claim(state: StateEntries, group: str, given: Any) -> None:
    """Reject the request of a broker that no longer coordinates the group. Without a claim, reject the request if a
    broker has members of the group."""
    served = state.entries.get(f"served/{quoted(group)}")
    if given is None:
        if served is not None:
            raise Rejected("GroupActive", f"the group {group!r} has members at the broker {served[3]}")
        return
    if served is None or [served[2], served[0]] != list(given):
        raise Rejected("NotCoordinator", f"another broker coordinates the group {group!r}")
