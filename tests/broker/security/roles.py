"""A broker that takes the client id for the principal; the permissions of each role; a request of every API.

These tests are about authorization, so authentication is skipped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sawlog.broker.connection import ClientConnection
from sawlog.broker.handlers import Answer, Context, Handler
from sawlog.broker.security.acls import CLUSTER_NAME, Binding, Filter, Operation, Pattern, Permission, Resource
from sawlog.broker.security.authorizer import StoredAcls
from sawlog.broker.wire import ErrorCode, Key
from sawlog.testing import Broker

from ..peers import Peer, batch

Body = dict[str, Any]

#: The error of each type of resource, in one letter.
LETTERS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "T",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "G",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "C",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "X",
}
#: A member may do everything with groups and transactional ids, and may know of topics.
ROLES = ("none", "describe", "read", "write", "member", "admin", "denied")
_PREFIXES = {Resource.TOPIC: "t-", Resource.GROUP: "g-", Resource.TRANSACTIONAL_ID: "x-"}


def everything(role: str, operation: Operation, permission: Permission = Permission.ALLOW) -> list[Binding]:
    """One operation on all that the role is about: names with its prefixes, and the cluster."""
    who = f"User:{role}"
    return [
        *(
            Binding(resource, prefix, who, operation, permission, Pattern.PREFIXED)
            for resource, prefix in _PREFIXES.items()
        ),
        Binding(Resource.CLUSTER, CLUSTER_NAME, who, operation, permission),
    ]


BINDINGS = [
    *everything("describe", Operation.DESCRIBE),
    Binding(Resource.TOPIC, "t-", "User:read", Operation.READ, pattern=Pattern.PREFIXED),
    Binding(Resource.GROUP, "g-", "User:read", Operation.READ, pattern=Pattern.PREFIXED),
    Binding(Resource.TOPIC, "t-", "User:write", Operation.WRITE, pattern=Pattern.PREFIXED),
    Binding(Resource.TRANSACTIONAL_ID, "x-", "User:write", Operation.WRITE, pattern=Pattern.PREFIXED),
    Binding(Resource.TOPIC, "t-", "User:member", Operation.DESCRIBE, pattern=Pattern.PREFIXED),
    Binding(Resource.GROUP, "g-", "User:member", Operation.ALL, pattern=Pattern.PREFIXED),
    Binding(Resource.TRANSACTIONAL_ID, "x-", "User:member", Operation.ALL, pattern=Pattern.PREFIXED),
    *everything("admin", Operation.ALL),
    *everything("denied", Operation.ALL),
    *everything("denied", Operation.ALL, Permission.DENY),
]


@contextmanager
def believing(*bindings: Binding, **settings: Any) -> Iterator[Broker]:
    """Run a broker at which a client's principal is `User:` and its client id."""
    with Broker(super_users=["User:root"], **settings) as broker:
        broker._live().server.fault_for = lambda header, request: _believe
        change(broker, *bindings)
        yield broker


def _believe(connection: ClientConnection, context: Context, handler: Handler, request: Body) -> Answer:
    return handler(replace(context, principal=f"User:{context.header.client_id}"), request)


def change(broker: Broker, *bindings: Binding) -> None:
    """Replace the bindings."""
    stored = StoredAcls(broker.store._registry)
    stored.delete([Filter()])
    stored.add(bindings)
    broker._call(broker._live().authorizer.refresh())


def asked_by(broker: Broker, client_id: str, key: Key, version: int, body: Body) -> Body:
    """Return the response to one client, on a connection of its own."""
    with Peer(broker.address, client_id) as peer:
        return peer.ask(key, version, body)


class Requests:
    """A request of every API, about these topics, groups and transactional ids. None changes anything that another one
    would notice."""

    def __init__(
        self,
        topic_ids: dict[str, bytes],
        topics: Sequence[str] = ("t-1",),
        groups: Sequence[str] = ("g-1",),
        transactions: Sequence[str] = ("x-1",),
    ) -> None:
        self._ids = topic_ids
        self._topics, self._groups, self._transactions = topics, groups, transactions

    def body(self, key: Key, version: int) -> Body:
        """The request."""
        made: Body = getattr(self, f"_{key.name.lower()}")()
        return made

    def _each_topic(self, parts: str, part: Any, name: str = "name") -> list[Body]:
        return [{name: each, "topic_id": self._ids.get(each, bytes(16)), parts: [part]} for each in self._topics]

    def _named_topics(self, part: Any, parts: str = "partitions", name: str = "name") -> list[Body]:
        return [{name: each, parts: [part]} for each in self._topics]

    # --- records

    def _produce(self) -> Body:
        part = {"index": 0, "records": batch(b"value")}
        return {"acks": 1, "timeout_ms": 5000, "topic_data": self._each_topic("partition_data", part)}

    def _fetch(self) -> Body:
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        return {"max_bytes": 1 << 20, "topics": self._each_topic("partitions", part, "topic")}

    def _list_offsets(self) -> Body:
        return {"replica_id": -1, "topics": self._named_topics({"partition_index": 0, "timestamp": -1})}

    def _offset_for_leader_epoch(self) -> Body:
        return {"topics": self._named_topics({"partition": 0, "leader_epoch": 0}, name="topic")}

    def _delete_records(self) -> Body:
        return {"topics": self._named_topics({"partition_index": 0, "offset": 0}), "timeout_ms": 5000}

    # --- topics

    def _metadata(self) -> Body:
        return {"topics": [{"name": each} for each in self._topics]}

    def _describe_topic_partitions(self) -> Body:
        return {"topics": [{"name": each} for each in self._topics]}

    def _create_topics(self) -> Body:
        topics = [{"name": each, "num_partitions": 1, "replication_factor": 1} for each in self._topics]
        return {"topics": topics, "validate_only": True}

    def _delete_topics(self) -> Body:
        names = [f"{each}-gone" for each in self._topics]
        return {"topics": [{"name": each} for each in names], "topic_names": names, "timeout_ms": 5000}

    def _create_partitions(self) -> Body:
        topics = [{"name": each, "count": 9, "assignments": None} for each in self._topics]
        return {"topics": topics, "timeout_ms": 5000, "validate_only": True}

    def _resources(self, **more: Any) -> list[Body]:
        return [{"resource_type": 2, "resource_name": each, **more} for each in self._topics]

    def _describe_configs(self) -> Body:
        return {"resources": self._resources(configuration_keys=None)}

    def _alter_configs(self) -> Body:
        return {"resources": self._resources(), "validate_only": True}

    _incremental_alter_configs = _alter_configs

    def _list_config_resources(self) -> Body:
        return {}

    def _alter_replica_log_dirs(self) -> Body:
        return {"dirs": [{"path": "/elsewhere", "topics": self._named_topics(0)}]}

    def _describe_quorum(self) -> Body:
        return {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}

    def _describe_log_dirs(self) -> Body:
        return {"topics": None}

    def _elect_leaders(self) -> Body:
        return {"topic_partitions": self._named_topics(0, name="topic"), "timeout_ms": 5000}

    def _alter_partition_reassignments(self) -> Body:
        return {"topics": self._named_topics({"partition_index": 0, "replicas": None})}

    def _list_partition_reassignments(self) -> Body:
        return {"topics": None}

    # --- groups

    def _find_coordinator(self) -> Body:
        return {"key": self._groups[0], "coordinator_keys": list(self._groups), "key_type": 0}

    def _join_group(self) -> Body:
        # The session is too short, so an allowed request is refused for that.
        return {"group_id": self._groups[0], "session_timeout_ms": 1, "protocol_type": "consumer"}

    def _member(self) -> Body:
        return {"group_id": self._groups[0], "generation_id": 1, "member_id": "nobody"}

    _sync_group = _heartbeat = _member

    def _leave_group(self) -> Body:
        return {"group_id": self._groups[0], "member_id": "nobody", "members": [{"member_id": "nobody"}]}

    def _consumer_group_heartbeat(self) -> Body:
        topics = list(self._topics)
        return {"group_id": self._groups[0], "member_id": "x", "member_epoch": 7, "subscribed_topic_names": topics}

    def _list_groups(self) -> Body:
        return {}

    def _describe_groups(self) -> Body:
        return {"groups": list(self._groups)}

    def _consumer_group_describe(self) -> Body:
        return {"group_ids": list(self._groups)}

    def _delete_groups(self) -> Body:
        return {"groups_names": [f"{each}-gone" for each in self._groups]}

    def _offset_commit(self) -> Body:
        part = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
        return {"group_id": self._groups[0], "topics": self._each_topic("partitions", part)}

    def _offset_fetch(self) -> Body:
        topics = self._each_topic("partition_indexes", 0)
        old = [{key: value for key, value in each.items() if key != "topic_id"} for each in topics]
        groups = [{"group_id": each, "topics": topics} for each in self._groups]
        return {"group_id": self._groups[0], "topics": old, "groups": groups}

    def _offset_delete(self) -> Body:
        return {"group_id": self._groups[0], "topics": self._named_topics({"partition_index": 5})}

    # --- transactions

    def _init_producer_id(self) -> Body:
        return {"transactional_id": None, "transaction_timeout_ms": 60_000}

    def _add_partitions_to_txn(self) -> Body:
        topics = self._named_topics(0)
        old = {"transactional_id": self._transactions[0], "producer_id": 0, "producer_epoch": 0, "topics": topics}
        return {
            **{f"v3_and_below_{name}": value for name, value in old.items()},
            "transactions": [{**old, "verify_only": True}],
        }

    def _in_transaction(self) -> Body:
        return {"transactional_id": self._transactions[0], "producer_id": 0, "producer_epoch": 0}

    def _add_offsets_to_txn(self) -> Body:
        return {**self._in_transaction(), "group_id": self._groups[0]}

    def _end_txn(self) -> Body:
        return {**self._in_transaction(), "committed": True}

    def _txn_offset_commit(self) -> Body:
        part = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
        return {**self._in_transaction(), "group_id": self._groups[0], "topics": self._named_topics(part)}

    def _list_transactions(self) -> Body:
        return {}

    def _describe_transactions(self) -> Body:
        return {"transactional_ids": list(self._transactions)}

    def _describe_producers(self) -> Body:
        return {"topics": self._named_topics(0, "partition_indexes")}

    # --- who may do what

    def _api_versions(self) -> Body:
        return {"client_software_name": "test", "client_software_version": "1"}

    def _describe_cluster(self) -> Body:
        return {}

    def _describe_acls(self) -> Body:
        return {
            "resource_type_filter": Resource.USER,
            "resource_name_filter": "nobody",
            "pattern_type_filter": Pattern.ANY,
            "principal_filter": None,
            "host_filter": None,
            "operation": Operation.ANY,
            "permission_type": Permission.ANY,
        }

    def _create_acls(self) -> Body:
        there = {
            "resource_type": Resource.TOPIC,
            "resource_name": "t-",
            "resource_pattern_type": Pattern.PREFIXED,
            "principal": "User:read",
            "host": "*",
            "operation": Operation.READ,
            "permission_type": Permission.ALLOW,
        }
        return {"creations": [there]}

    def _delete_acls(self) -> Body:
        return {"filters": [self._describe_acls()]}

    def _describe_user_scram_credentials(self) -> Body:
        return {"users": None}

    def _alter_user_scram_credentials(self) -> Body:
        return {"deletions": [{"name": "nobody", "mechanism": 1}], "upsertions": []}

    def _describe_client_quotas(self) -> Body:
        return {"components": []}


_NAMES = ("name", "topic", "group_id", "resource_name", "transactional_id", "key")


def codes_in(body: Body, names: dict[bytes, str]) -> dict[str, set[int]]:
    """All error codes of a response, by the name of what each is about; "" for the whole."""
    found: defaultdict[str, set[int]] = defaultdict(set)

    def walk(node: Any, name: str) -> None:
        if isinstance(node, list):
            for each in node:
                walk(each, name)
        elif isinstance(node, dict):
            name = next((node[each] for each in _NAMES if node.get(each)), names.get(node.get("topic_id"), name))
            for field, value in node.items():
                if field in ("error_code", "partition_error_code"):
                    found[name].add(value)
                walk(value, name)

    walk(body, "")
    return dict(found)


def verdict(body: Body) -> str:
    """The letters of the refusals in a response; "." if there is none."""
    codes = set().union(*codes_in(body, {}).values())
    return "".join(sorted(LETTERS[code] for code in map(ErrorCode, codes) if code in LETTERS)) or "."
