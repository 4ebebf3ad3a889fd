"""The members of consumer groups on object storage, and which of them owns which partition.

```
member/<group>/<id>                     {"name", "process", "topics", "timeout_ms", "beat", "time_ms", "works"}
owner/<group>/<topic id>/<partition>    the id of a member
```

A member's *beat* is a counter; the fold never judges how long it stood still. Another member, which saw no change for
the session timeout on its own clock, asks for the removal of the member with that beat, which is rejected if there was
one since. `time_ms` is for display.

All of it is in one order, that of the commits. This gives the guarantee of a group: *no commit of an earlier owner
comes after a later owner has begun*. A partition has at most one owner; what a member commits is rejected
(`GroupFenced`) unless it is a member and owns every partition in it; and whoever becomes an owner is told in the same
action what was committed before. An id is used once, so that a member that was removed never comes back.
"""

from __future__ import annotations

from typing import Any

from .book import Book, Rejected, quoted
from .commit import Action


def join(book: Book, action: Action) -> None:
    """Become a member, or a worker of the group's queue: a group has the ones or the others."""
    group = action["group"]
    served = book.entries.get(f"served/{quoted(group)}")
    if served is not None:
        raise Rejected("GroupActive", f"the group {group!r} has members at the broker {served[3]}")
    works = bool(action["works"])
    for name in book.entries.names(f"member/{quoted(group)}/"):
        if book.entries.get(name)["works"] != works:
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
    book.put(_member(group, action["member"]), member)


def beat(book: Book, action: Action) -> int:
    """A sign of life; which one it is."""
    found = _found(book, action)
    count = int(found["beat"]) + 1
    book.put(_member(action["group"], action["member"]), {**found, "beat": count, "time_ms": int(action["time_ms"])})
    return count


def leave(book: Book, action: Action) -> None:
    """Leave the group, and release everything. Who was removed has left."""
    _remove(book, action["group"], action["member"])


def remove(book: Book, action: Action) -> None:
    """Remove a member that stood still: unless it has another beat by now."""
    found = book.entries.get(_member(action["group"], action["member"]))
    if found is None or found["beat"] != action["beat"]:
        raise Rejected("Changed", f"member {action['member']} has given a sign of life, or has left")
    _remove(book, action["group"], action["member"])


def take(book: Book, action: Action) -> list[Any]:
    """Become the owner of those partitions that nobody owns. For each: whether that is so, and what is committed.

    `begin` says, by topic id, the name of the topic and where the group starts in its partitions, [offset, leader
    epoch] of each: it is committed if the group has never committed in a topic of that name.
    """
    _found(book, action)
    group, member = quoted(action["group"]), action["member"]
    _begin(book, group, action["begin"])
    taken: list[Any] = []
    for topic, partition in action["shares"]:
        name = _owner(group, topic, partition)
        owner = book.entries.get(name)
        if book.entries.get(f"end/{topic}/{partition}") is None or owner not in (None, member):
            taken.append(None)
            continue
        book.put(name, member)
        committed = book.entries.get(f"offset/{group}/{topic}/{partition}")
        taken.append([] if committed is None else [committed[0], committed[2]])
    return taken


def _begin(book: Book, group: str, starts: Any) -> None:
    known = set(book.entries.get(f"group/{group}", ()))
    for topic, (name, places) in sorted(starts.items()):
        if name in known:
            continue
        for partition, (offset, epoch) in enumerate(places):
            if book.entries.get(f"end/{topic}/{partition}") is None:
                raise Rejected("TopicNotFound", f"no topic {name}")
            book.put(f"offset/{group}/{topic}/{partition}", [int(offset), "", int(epoch)])
        book.put(f"group/{group}", sorted({*book.entries.get(f"group/{group}", ()), name}))


def give_up(book: Book, action: Action) -> None:
    """Release partitions; those that are not its own are nobody's business."""
    for topic, partition in action["shares"]:
        name = _owner(quoted(action["group"]), topic, partition)
        if book.entries.get(name) == action["member"]:
            book.drop(name)


def check_commit(book: Book, action: Action) -> None:
    """Reject a commit of offsets by a member that does not own them; or one from outside (`outside`), if somebody owns
    one of them, or works for the group's queue; or one that must be `alone`, if the group has any member."""
    group, member = quoted(action["group"]), action.get("member")
    if action.get("alone"):
        check_empty(book, action["group"])
    if member is not None:
        _found(book, action)
    elif not action.get("outside"):
        return
    if member is None:
        _refuse_workers(book, action["group"])
    for topic, partition, *_ in action["offsets"]:
        owner = book.entries.get(_owner(group, topic, partition))
        if member is not None and owner != member:
            raise Rejected("GroupFenced", f"partition {partition} is not this member's any more")
        if member is None and owner is not None:
            raise Rejected(
                "GroupActive",
                f"partition {partition} is owned by a live member of the group {action['group']!r}: its offset is "
                "committed there",
            )


def check_empty(book: Book, group: str) -> None:
    """Reject what may only be done to a group without members."""
    members = book.entries.names(f"member/{quoted(group)}/")
    if members:
        who = ", ".join(sorted(each["name"] or each["process"] for each in map(book.entries.get, members)))
        raise Rejected(
            "GroupActive", f"the group {group!r} has live members ({who}): close them first, or seek in the consumer"
        )


def _refuse_workers(book: Book, group: str) -> None:
    for name in book.entries.names(f"member/{quoted(group)}/"):
        if book.entries.get(name)["works"]:
            raise Rejected("GroupActive", f"the group {group!r} has workers of a queue: close them first")


def _found(book: Book, action: Action) -> dict[str, Any]:
    found: dict[str, Any] | None = book.entries.get(_member(action["group"], action["member"]))
    if found is None:
        raise Rejected("GroupFenced", f"member {action['member']} was removed from the group {action['group']!r}")
    return found


def _remove(book: Book, group: str, member: str) -> None:
    book.drop(_member(group, member))
    for name in book.entries.names(f"owner/{quoted(group)}/"):
        if book.entries.get(name) == member:
            book.drop(name)


def _member(group: str, member: str) -> str:
    return f"member/{quoted(group)}/{quoted(member)}"


def _owner(group: str, topic: str, partition: int) -> str:
    return f"owner/{group}/{topic}/{partition}"
