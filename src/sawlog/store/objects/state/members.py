"""The members of consumer groups on object storage, and the partitions that they own.

```
member/<group>/<id>                     {"name", "process", "topics", "timeout_ms", "beat", "time_ms", "works"}
owner/<group>/<topic id>/<partition>    the id of a member
```

A member's *beat* is a heartbeat counter. The fold never judges how long it stood still: another member, which saw no
change for the session timeout on its own clock, requests the removal of the member with that beat, and the request is
rejected if there was a beat since. `time_ms` is for display.

Commits are totally ordered, which gives a group its guarantee: *no commit of an earlier owner comes after a later owner
has begun*. A partition has at most one owner. A commit is rejected (`GroupFenced`) unless its member is in the group
and owns every partition in it. A new owner learns the committed offsets in the same action that makes it the owner. An
id is used once, so that a removed member never comes back.
"""

from __future__ import annotations

from typing import Any

from .commit import Action
from .mutation import Rejected, StateEntries, quoted


def join(state: StateEntries, action: Action) -> None:
    """Add a member, or a worker of the group's queue. A group has one kind or the other."""
    group = action["group"]
    served = state.entries.get(f"served/{quoted(group)}")
    if served is not None:
        raise Rejected("GroupActive", f"the group {group!r} has members at the broker {served[3]}")
    works = bool(action["works"])
    for name in state.entries.names(f"member/{quoted(group)}/"):
        if state.entries.get(name)["works"] != works:
            who = "workers of a queue" if works is False else "consumers"
            raise Rejected("GroupActive", f"the group {group!r} has {who}: close them first, or use another group")
    member = {
        "name": str(action["name"]),
        "process": str(action["process"]),
        "topics": [str(topic) for topic in action["topics"]],
        "timeout_ms": int(action["timeout_ms"]),
        "beat": 0,
        "time_ms": int(action["time_ms"]),
        "works": works,
    }
    state.put(_member(group, action["member"]), member)


def beat(state: StateEntries, action: Action) -> int:
    """Record a heartbeat and return its number."""
    found = _found(state, action)
    count = int(found["beat"]) + 1
    state.put(_member(action["group"], action["member"]), {**found, "beat": count, "time_ms": int(action["time_ms"])})
    return count


def leave(state: StateEntries, action: Action) -> None:
    """Remove a member and release its partitions. No-op if it was removed before."""
    _remove(state, action["group"], action["member"])


def remove(state: StateEntries, action: Action) -> None:
    """Remove a member that timed out, unless its beat has changed."""
    found = state.entries.get(_member(action["group"], action["member"]))
    if found is None or found["beat"] != action["beat"]:
        raise Rejected("Changed", f"member {action['member']} has given a sign of life, or has left")
    _remove(state, action["group"], action["member"])


def take(state: StateEntries, action: Action) -> list[Any]:
    """Take ownership of partitions that have no owner. For each partition, return its committed offset, or None if it
    was not taken.

    `begin` maps a topic id to the name of the topic and the group's start, [offset, leader epoch], in each partition.
    The start is committed if the group has never committed in a topic of that name.
    """
    _found(state, action)
    group, member = quoted(action["group"]), action["member"]
    _begin(state, group, action["begin"])
    taken: list[Any] = []
    for topic, partition in action["shares"]:
        name = _owner(group, topic, partition)
        owner = state.entries.get(name)
        if state.entries.get(f"end/{topic}/{partition}") is None or owner not in (None, member):
            taken.append(None)
            continue
        state.put(name, member)
        committed = state.entries.get(f"offset/{group}/{topic}/{partition}")
        taken.append([] if committed is None else [committed[0], committed[2]])
    return taken


def _begin(state: StateEntries, group: str, starts: Any) -> None:
    known = set(state.entries.get(f"group/{group}", ()))
    for topic, (name, places) in sorted(starts.items()):
        if name in known:
            continue
        for partition, (offset, epoch) in enumerate(places):
            if state.entries.get(f"end/{topic}/{partition}") is None:
                raise Rejected("TopicNotFound", f"no topic {name}")
            state.put(f"offset/{group}/{topic}/{partition}", [int(offset), "", int(epoch)])
        state.put(f"group/{group}", sorted({*state.entries.get(f"group/{group}", ()), name}))


def give_up(state: StateEntries, action: Action) -> None:
    """Release partitions; those that the member does not own are ignored."""
    for topic, partition in action["shares"]:
        name = _owner(quoted(action["group"]), topic, partition)
        if state.entries.get(name) == action["member"]:
            state.drop(name)


def check_commit(state: StateEntries, action: Action) -> None:
    """Reject a commit of offsets by a member that does not own them; one from outside the group (`outside`) if a
    partition has an owner or the group has queue workers; one that must be `alone` if the group has any member."""
    group, member = quoted(action["group"]), action.get("member")
    if action.get("alone"):
        check_empty(state, action["group"])
    if member is not None:
        _found(state, action)
    elif not action.get("outside"):
        return
    if member is None:
        _refuse_workers(state, action["group"])
    for topic, partition, *_ in action["offsets"]:
        owner = state.entries.get(_owner(group, topic, partition))
        if member is not None and owner != member:
            raise Rejected("GroupFenced", f"partition {partition} is not this member's any more")
        if member is None and owner is not None:
            raise Rejected(
                "GroupActive",
                f"partition {partition} is owned by a live member of the group {action['group']!r}: its offset is "
                "committed there",
            )


def check_empty(state: StateEntries, group: str) -> None:
    """Reject an action that requires a group without members."""
    members = state.entries.names(f"member/{quoted(group)}/")
    if members:
        who = ", ".join(sorted(each["name"] or each["process"] for each in map(state.entries.get, members)))
        raise Rejected(
            "GroupActive", f"the group {group!r} has live members ({who}): close them first, or seek in the consumer"
        )


def _refuse_workers(state: StateEntries, group: str) -> None:
    for name in state.entries.names(f"member/{quoted(group)}/"):
        if state.entries.get(name)["works"]:
            raise Rejected("GroupActive", f"the group {group!r} has workers of a queue: close them first")


def _found(state: StateEntries, action: Action) -> dict[str, Any]:
    found: dict[str, Any] | None = state.entries.get(_member(action["group"], action["member"]))
    if found is None:
        raise Rejected("GroupFenced", f"member {action['member']} was removed from the group {action['group']!r}")
    return found


def _remove(state: StateEntries, group: str, member: str) -> None:
    state.drop(_member(group, member))
    for name in state.entries.names(f"owner/{quoted(group)}/"):
        if state.entries.get(name) == member:
            state.drop(name)


def _member(group: str, member: str) -> str:
    return f"member/{quoted(group)}/{quoted(member)}"


def _owner(group: str, topic: str, partition: int) -> str:
    return f"owner/{group}/{topic}/{partition}"
