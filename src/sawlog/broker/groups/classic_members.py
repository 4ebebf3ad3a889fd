"""`ClassicProtocolAdapter`: members of the classic protocol in a group whose partitions the broker assigns.

Applications change `group.protocol` one instance at a time, so for a while a group has members of both protocols (the
online migration of KIP-848). From the first member of KIP-848 on, the broker assigns the partitions of all:

- JoinGroup is answered immediately, without a leader. It carries the member's subscription and the partitions it still
  owns, so it counts as a heartbeat; the generation is the member's epoch.
- SyncGroup returns the partitions that the member may own now.
- Heartbeat is answered with REBALANCE_IN_PROGRESS while the member must rejoin: to give up partitions, or because some
  are free for it. A member that does not rejoin within its rebalance timeout is removed.

The group stays in this mode until it is empty, even when only members of the classic protocol remain.

Sans-io, like `consumer_group`. Single-threaded.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping

from ...store.base import TopicPartition
from ..config import BrokerConfig
from ..wire.errors import ErrorCode
from .consumer_group import JOIN_EPOCH, STATIC_LEAVE_EPOCH, ConsumerGroup, ConsumerMember, HeartbeatRequest, TopicInfo
from .members import (
    CONSUMER,
    ClassicMember,
    JoinRequest,
    JoinResponse,
    SyncRequest,
    SyncResponse,
    assigned_partitions,
    encode_assignment,
    owned_partitions,
    subscribed_topics,
)

_logger = logging.getLogger("sawlog.broker.groups")


class ClassicProtocolAdapter:
    """The classic protocol for the members of one group."""

    def __init__(self, group: ConsumerGroup, config: BrokerConfig) -> None:
        self._group = group
        self._config = config

    def adopt(self, members: Iterable[ClassicMember], generation: int, topics: Mapping[str, TopicInfo]) -> None:
        """Take over the members of a classic group, with the partitions they own."""
        members = list(members)
        for each in members:
            if each.is_new and not each.knows_id:
                continue  # it will rejoin under a new id
            owned = assigned_partitions(each.assignment)
            made = self._group.adopt(each.id, each.instance_id, generation, _by_id(owned, topics))
            made.client_id, made.client_host = each.client_id, each.client_host
            made.topics = frozenset().union(*(subscribed_topics(said) or () for _, said in each.protocols[:1]))
            self._keep(made, each.session_timeout_ms, each.rebalance_timeout_ms)
        if members:
            _logger.info("group %s: the broker now assigns its partitions", self._group.name)

    def _keep(self, member: ConsumerMember, session_timeout_ms: int, rebalance_timeout_ms: int) -> None:
        member.is_classic = True
        member.session_timeout_ms, member.rebalance_timeout_ms = session_timeout_ms, rebalance_timeout_ms
        member.session.set(session_timeout_ms)

    def join(self, request: JoinRequest, topics: Mapping[str, TopicInfo]) -> JoinResponse:
        """Answer a JoinGroup request."""
        group, topic_names = self._group, subscribed_topics(request.protocols[0][1]) if request.protocols else None
        error = self._join_error(request, topic_names)
        if error is not ErrorCode.NONE:
            return JoinResponse(error, request.member_id)
        before = group.static_member(request.instance_id)
        if before is not None and not request.member_id:
            before.epoch = STATIC_LEAVE_EPOCH  # it has restarted and takes over its own partitions
        known = group.member(request.member_id)
        response = group.heartbeat(
            HeartbeatRequest(
                member_id=request.member_id or f"{request.instance_id or request.client_id}-{uuid.uuid4()}",
                epoch=JOIN_EPOCH if known is None else known.epoch,
                client_id=request.client_id,
                client_host=request.client_host,
                instance_id=request.instance_id,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                topics=topic_names,
                pattern="",
                owned=frozenset() if known is None else _by_id(owned_partitions(request.protocols[0][1]), topics),
            ),
            topics,
        )
        member = group.member(response.member_id or "")
        if member is None:
            return JoinResponse(response.error, request.member_id)
        self._keep(member, request.session_timeout_ms, request.rebalance_timeout_ms)
        if not member.revoking:
            member.revoking_alarm.stop()
        return JoinResponse(ErrorCode.NONE, member.id, member.epoch, CONSUMER, request.protocols[0][0])

    def _join_error(self, request: JoinRequest, topics: frozenset[str] | None) -> ErrorCode:
        least, most = self._config.group_min_session_timeout_ms, self._config.group_max_session_timeout_ms
        if not least <= request.session_timeout_ms <= most:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if request.protocol_type != CONSUMER or topics is None:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.member_id:
            return self._group.member_error(request.member_id, request.instance_id)
        return ErrorCode.NONE

    def sync(self, request: SyncRequest) -> SyncResponse:
        """Answer a SyncGroup request."""
        error = self._error(request.member_id, request.instance_id, request.generation)
        member = self._group.member(request.member_id)
        if error is not ErrorCode.NONE or member is None:
            return SyncResponse(error)
        member.session.set(member.session_timeout_ms)
        if self._group.has_newer_target(member) and not member.revoking:
            return SyncResponse(self._rejoin(member))
        names = self._group.names(member.assigned)
        return SyncResponse(ErrorCode.NONE, CONSUMER, request.protocol, encode_assignment(names))

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, topics: Mapping[str, TopicInfo]
    ) -> ErrorCode:
        """Answer a Heartbeat request."""
        error = self._error(member_id, instance_id, generation)
        member = self._group.member(member_id)
        if error is not ErrorCode.NONE or member is None:
            return error
        member.session.set(member.session_timeout_ms)
        self._group.refresh_topics(topics)
        return self._rejoin(member) if self._group.must_reconcile(member) else ErrorCode.NONE

    def _rejoin(self, member: ConsumerMember) -> ErrorCode:
        if not member.revoking_alarm.is_set:
            member.revoking_alarm.set(member.rebalance_timeout_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def _error(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        error = self._group.member_error(member_id, instance_id)
        if error is ErrorCode.NONE:
            error = self._group.epoch_error(member_id, generation)
        return error


def _by_id(partitions: Iterable[TopicPartition], topics: Mapping[str, TopicInfo]) -> frozenset[TopicPartition]:
    """Translate topic names into ids. Partitions of deleted topics are left out."""
    return frozenset((topics[name].id, number) for name, number in partitions if name in topics)
