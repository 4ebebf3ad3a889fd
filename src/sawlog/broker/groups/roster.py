"""`Roster`: who is in a group, who leads it, and which protocols they have in common. No time, no states.

At every moment all members have a protocol in common: `is_compatible` is asked before one is added or changed.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..wire.errors import ErrorCode
from .member import JoinRequest, Member
from .subscription import CONSUMER, subscribed_topics


class Roster:
    """The members of one group, in the order in which they joined."""

    def __init__(self) -> None:
        #: Of all members; stays when the last one leaves.
        self.protocol_type: str | None = None
        #: The id of the member that assigns partitions.
        self.leader: str | None = None
        self._members: dict[str, Member] = {}
        #: Ids of static members, by their instance id.
        self._static: dict[str, str] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def static_id(self, instance_id: str | None) -> str | None:
        """The member id of a static member; None if there is none."""
        return None if instance_id is None else self._static.get(instance_id)

    def add(self, member: Member, protocol_type: str) -> None:
        """Add one."""
        if not self._members:
            self.protocol_type = protocol_type
        self._members[member.id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.id

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member a new id; it keeps its place, also as leader."""
        if self.leader == member.id:
            self.leader = member_id
        member.id = member_id
        self._members = {each.id: each for each in self._members.values()}
        self._static[member.instance_id or ""] = member_id

    def remove(self, member: Member) -> None:
        """Remove one. If it led, the one that joined first leads."""
        del self._members[member.id]
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self._members), None)

    def clear(self) -> None:
        """Remove all."""
        self._members, self._static, self.leader = {}, {}, None

    def error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether that is a member. A static one is known by its instance id: the last that joined with it counts."""
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self._members else ErrorCode.UNKNOWN_MEMBER_ID

    def is_compatible(self, request: JoinRequest) -> bool:
        """Whether who joins has a protocol in common with all others."""
        if not request.protocol_type or not request.protocols:
            return False
        if self._members and request.protocol_type != self.protocol_type:
            return False
        me = request.member_id or self.static_id(request.instance_id)
        others = [each for each in self if each.id != me]
        return any(all(each.supports(name) for each in others) for name, _ in request.protocols)

    def elect_protocol(self) -> str:
        """Of the protocols that all support, the one that most prefer; of several, the one the leader names first."""
        votes: dict[str, int] = {}
        everyone = list(self)
        for member in everyone:
            preferred = next(name for name, _ in member.protocols if all(each.supports(name) for each in everyone))
            votes[preferred] = votes.get(preferred, 0) + 1
        leader = self._members.get(self.leader or "", everyone[0])
        order = [name for name, _ in leader.protocols]
        return max(votes, key=lambda name: (votes[name], -order.index(name)))

    def topics(self) -> frozenset[str] | None:
        """The topics that the members read; None if they do not say, because they are not consumers."""
        found: set[str] = set()
        for member in self:
            for _, subscription in member.protocols:
                topics = subscribed_topics(subscription) if self.protocol_type == CONSUMER else None
                if topics is None:
                    return None
                found |= topics
        return frozenset(found)
