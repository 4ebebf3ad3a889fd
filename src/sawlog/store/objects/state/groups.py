"""Consumer groups: committed offsets, delivery state of queues, members, and the brokers that coordinate them.

```
group/<group>                                   the names of the topics that it has committed in
offset/<group>/<topic id>/<partition>           [offset, metadata, leader epoch]
queue/<group>                                   number of exchanges
page/<group>/<topic id>/<partition>/<number>    an acknowledgement bitmap, as base64: see
                                                `sawlog.store.queues.delivery_state`
member/<group>/<id>                     {"name", "process", "topics", "timeout_ms", "beat", "time_ms", "works"}
owner/<group>/<topic id>/<partition>    the id of a member
broker/<node id>                        {"run", "host", "port", "beat"}
served/<group>                          [epoch, node id, run, address]: a broker has members of the group
claims/<group>                          the last epoch of a claim, while no broker has one
```

*Exchanges.* An exchange states how many exchanges there were when it read the pages, and is rejected if there was
another one since. So if two workers take messages at the same time, one gets them and the other retries.

*Beats.* Members and brokers count their heartbeats. The fold never judges how long a count stood still: another member
or broker, which saw no change for the timeout on its own clock, requests the removal of the one with that beat, and the
request is rejected if there was a beat since. `time_ms` is for display.

*Members.* Commits are totally ordered, which gives a group its guarantee: *no commit of an earlier owner comes after a
later owner has begun*. A partition has at most one owner. A commit is rejected (`GroupFenced`) unless its member is in
the group and owns every partition in it. A new owner learns the committed offsets in the same action that makes it the
owner. An id is used once, so that a removed member never comes back.

*Brokers.* A *run* is one lifetime of a broker process. Registration grants nothing. The *claim* of a group decides
which broker coordinates it: each claim has a higher epoch than the previous one and ends it. Commits for the members of
a group are rejected unless the broker has the last claim.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .commit import Action
from .entries import MutableState, Rejected, quoted, take_numbers


def commit_offsets(state: MutableState, action: Action) -> None:
    """Commit or delete offsets of a group; reject if the caller no longer owns them."""
    if not action.get("decided"):
        check_claim(state, action["group"], action.get("claim"))
    check_commit(state, action)
    if action.get("outside"):
        _forget_deliveries(state, action["group"], [row[:2] for row in action["offsets"]])
    group = quoted(action["group"])
    topics = {*state.entries.get(f"group/{group}", ()), *action["topics"].values()}
    state.put(f"group/{group}", sorted(topics))
    for topic, partition, offset, metadata, epoch in action["offsets"]:
        if offset is None:
            state.drop(f"offset/{group}/{topic}/{partition}")
            continue
        state.existing(topic, partition)
        state.put(f"offset/{group}/{topic}/{partition}", [offset, metadata, epoch])


def delete_group(state: MutableState, action: Action) -> None:
    group = quoted(action["group"])
    if state.entries.get(f"group/{group}") is None:
        raise Rejected("GroupNotFound", f"no group {action['group']!r}")
    check_claim(state, action["group"], None)
    check_empty(state, action["group"])
    _forget_deliveries(state, action["group"])
    state.drop(f"group/{group}")
    state.drop(f"claims/{group}")
    for name in state.entries.names(f"offset/{group}/"):
        state.drop(name)


def exchange(state: MutableState, action: Action) -> int:
    """Commit offsets and pages of a group together, and return the number of exchanges."""
    group = quoted(action["group"])
    if state.entries.get(f"member/{group}/{quoted(action['member'])}") is None:
        raise Rejected("Changed", f"worker {action['member']} was removed from the group {action['group']!r}")
    count = int(state.entries.get(f"queue/{group}", 0))
    if count != action["count"]:
        raise Rejected("Changed", f"there were {count} exchanges of the group {action['group']!r}")
    for topic, partition, offset, metadata, epoch in action["offsets"]:
        if state.entries.get(f"end/{topic}/{partition}") is None:
            raise Rejected("Changed", "the topic was deleted")
        state.put(f"offset/{group}/{topic}/{partition}", [int(offset), str(metadata), int(epoch)])
    if action["topics"]:
        state.put(f"group/{group}", sorted({*state.entries.get(f"group/{group}", ()), *action["topics"]}))
    for topic, partition, number, content in action["pages"]:
        name = f"page/{group}/{topic}/{int(partition)}/{int(number)}"
        if content is None:
            state.drop(name)
        else:
            state.put(name, str(content))
    state.put(f"queue/{group}", count + 1)
    return count + 1


def _forget_deliveries(state: MutableState, group: str, shares: Iterable[Any] | None = None) -> None:
    """Discard the delivery state of these partitions, or of all: the group was moved or deleted."""
    prefix = f"page/{quoted(group)}/"
    wanted = None if shares is None else {(str(topic), str(partition)) for topic, partition in shares}
    for name in state.entries.names(prefix):
        topic, partition, _ = name.removeprefix(prefix).split("/")
        if wanted is None or (topic, partition) in wanted:
            state.drop(name)
    if shares is None:
        state.drop(f"queue/{quoted(group)}")
    elif state.entries.get(f"queue/{quoted(group)}") is not None:
        state.put(f"queue/{quoted(group)}", int(state.entries.get(f"queue/{quoted(group)}")) + 1)


# --- members


def join_group(state: MutableState, action: Action) -> None:
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
    state.put(_member_name(group, action["member"]), member)


def beat_member(state: MutableState, action: Action) -> int:
    found = _member(state, action)
    count = int(found["beat"]) + 1
    state.put(
        _member_name(action["group"], action["member"]), {**found, "beat": count, "time_ms": int(action["time_ms"])}
    )
    return count


def leave_group(state: MutableState, action: Action) -> None:
    """Remove a member and release its partitions. No-op if it was removed before."""
    _drop_member(state, action["group"], action["member"])


def remove_member(state: MutableState, action: Action) -> None:
    """Remove a member that timed out, unless its beat has changed."""
    found = state.entries.get(_member_name(action["group"], action["member"]))
    if found is None or found["beat"] != action["beat"]:
        raise Rejected("Changed", f"member {action['member']} has given a sign of life, or has left")
    _drop_member(state, action["group"], action["member"])


def take_partitions(state: MutableState, action: Action) -> list[Any]:
    """Take ownership of partitions that have no owner. For each partition, return its committed offset, or None if it
    was not taken.

    `begin` maps a topic id to the name of the topic and the group's start, [offset, leader epoch], in each partition.
    The start is committed if the group has never committed in a topic of that name.
    """
    _member(state, action)
    group, member = quoted(action["group"]), action["member"]
    _begin_topics(state, group, action["begin"])
    taken: list[Any] = []
    for topic, partition in action["shares"]:
        name = _owner_name(group, topic, partition)
        owner = state.entries.get(name)
        if state.entries.get(f"end/{topic}/{partition}") is None or owner not in (None, member):
            taken.append(None)
            continue
        state.put(name, member)
        committed = state.entries.get(f"offset/{group}/{topic}/{partition}")
        taken.append([] if committed is None else [committed[0], committed[2]])
    return taken


def _begin_topics(state: MutableState, group: str, starts: Any) -> None:
    known = set(state.entries.get(f"group/{group}", ()))
    for topic, (name, places) in sorted(starts.items()):
        if name in known:
            continue
        for partition, (offset, epoch) in enumerate(places):
            if state.entries.get(f"end/{topic}/{partition}") is None:
                raise Rejected("TopicNotFound", f"no topic {name}")
            state.put(f"offset/{group}/{topic}/{partition}", [int(offset), "", int(epoch)])
        state.put(f"group/{group}", sorted({*state.entries.get(f"group/{group}", ()), name}))


def give_up_partitions(state: MutableState, action: Action) -> None:
    """Release partitions. Partitions that the member does not own are ignored."""
    for topic, partition in action["shares"]:
        name = _owner_name(quoted(action["group"]), topic, partition)
        if state.entries.get(name) == action["member"]:
            state.drop(name)


def check_commit(state: MutableState, action: Action) -> None:
    """Reject a commit of offsets by a member that does not own them; one from outside the group (`outside`) if a
    partition has an owner or the group has queue workers; one that must be `alone` if the group has any member."""
    group, member = quoted(action["group"]), action.get("member")
    if action.get("alone"):
        check_empty(state, action["group"])
    if member is not None:
        _member(state, action)
    elif not action.get("outside"):
        return
    if member is None:
        _refuse_workers(state, action["group"])
    for topic, partition, *_ in action["offsets"]:
        owner = state.entries.get(_owner_name(group, topic, partition))
        if member is not None and owner != member:
            raise Rejected("GroupFenced", f"partition {partition} is not this member's any more")
        if member is None and owner is not None:
            raise Rejected(
                "GroupActive",
                f"partition {partition} is owned by a live member of the group {action['group']!r}: its offset is "
                "committed there",
            )


def check_empty(state: MutableState, group: str) -> None:
    """Reject an action that requires a group without members."""
    members = state.entries.names(f"member/{quoted(group)}/")
    if members:
        who = ", ".join(sorted(each["name"] or each["process"] for each in map(state.entries.get, members)))
        raise Rejected(
            "GroupActive", f"the group {group!r} has live members ({who}): close them first, or seek in the consumer"
        )


def _refuse_workers(state: MutableState, group: str) -> None:
    for name in state.entries.names(f"member/{quoted(group)}/"):
        if state.entries.get(name)["works"]:
            raise Rejected("GroupActive", f"the group {group!r} has workers of a queue: close them first")


def _member(state: MutableState, action: Action) -> dict[str, Any]:
    found: dict[str, Any] | None = state.entries.get(_member_name(action["group"], action["member"]))
    if found is None:
        raise Rejected("GroupFenced", f"member {action['member']} was removed from the group {action['group']!r}")
    return found


def _drop_member(state: MutableState, group: str, member: str) -> None:
    state.drop(_member_name(group, member))
    for name in state.entries.names(f"owner/{quoted(group)}/"):
        if state.entries.get(name) == member:
            state.drop(name)


def _member_name(group: str, member: str) -> str:
    return f"member/{quoted(group)}/{quoted(member)}"


def _owner_name(group: str, topic: str, partition: int) -> str:
    return f"owner/{group}/{topic}/{partition}"


# --- brokers


def register_broker(state: MutableState, action: Action) -> int:
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
        _release_claims(state, before["run"])
    made = {"run": str(action["run"]), "host": str(action["host"]), "port": int(action["port"]), "beat": 0}
    state.put(f"broker/{node_id}", made)
    return int(node_id)


def beat_broker(state: MutableState, action: Action) -> int:
    found = _broker(state, action)
    state.put(f"broker/{action['id']}", {**found, "beat": found["beat"] + 1})
    return int(found["beat"] + 1)


def remove_broker(state: MutableState, action: Action) -> None:
    """Remove a broker that leaves or timed out, unless its beat has changed."""
    found = _broker(state, action)
    if action["beat"] is not None and found["beat"] != action["beat"]:
        raise Rejected("Changed", f"broker {action['id']} has given a sign of life")
    state.drop(f"broker/{action['id']}")
    _release_claims(state, found["run"])


def _broker(state: MutableState, action: Action) -> dict[str, Any]:
    found: dict[str, Any] | None = state.entries.get(f"broker/{action['id']}")
    if found is None or found["run"] != action["run"]:
        raise Rejected("BrokerRemoved", f"broker {action['id']} is not registered with this run")
    return found


def _release_claims(state: MutableState, run: str) -> None:
    for name in state.entries.names("served/"):
        if state.entries.get(name)[2] == run:
            _release_claim(state, name.partition("/")[2])


def claim_group(state: MutableState, action: Action) -> int:
    """Make a broker the coordinator of a group and return the epoch of its claim. Any earlier claim ends."""
    group = quoted(action["group"])
    served = state.entries.get(f"served/{group}")
    check_empty(state, action["group"])
    last = served[0] if served is not None else state.entries.get(f"claims/{group}", 0)
    if action["epoch"] is not None and action["epoch"] != last:
        raise Rejected("Changed", f"the last claim to group {action['group']!r} has epoch {last}")
    state.drop(f"claims/{group}")
    state.put(f"served/{group}", [last + 1, int(action["id"]), str(action["run"]), str(action["address"])])
    return int(last + 1)


def release_group(state: MutableState, action: Action) -> None:
    """Release the claim of a group that has no members left, so that others can join it."""
    group = quoted(action["group"])
    check_claim(state, action["group"], action["claim"])
    _release_claim(state, group)


def _release_claim(state: MutableState, group: str) -> None:
    state.put(f"claims/{group}", state.entries.get(f"served/{group}")[0])
    state.drop(f"served/{group}")


def check_claim(state: MutableState, group: str, given: Any) -> None:
    """Reject the request of a broker that no longer coordinates the group. Without a claim, reject the request if a
    broker has members of the group."""
    served = state.entries.get(f"served/{quoted(group)}")
    if given is None:
        if served is not None:
            raise Rejected("GroupActive", f"the group {group!r} has members at the broker {served[3]}")
        return
    if served is None or [served[2], served[0]] != list(given):
        raise Rejected("NotCoordinator", f"another broker coordinates the group {group!r}")
