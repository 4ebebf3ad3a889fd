"""Operations and resources that each Kafka API requires.

`API_REQUIREMENTS` has an entry for every API, and a request without an entry fails, so none is forgotten.
`call_authorized` checks what a request needs as a whole before it calls the handler. Most requests name several
resources, and those that the client may not use get an error of their own: the handlers check them with
`Context.require`. The comments say what they require. A broker without bindings checks nothing.

The entries follow Kafka's list of operations and resources by protocol. Lists leave out what the client may not
describe. Asking for such a resource by name is an error, whether it exists or not.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..handlers import Answer, Body, Context, Handler
from ..wire.errors import Key
from .acls import CLUSTER_NAME, Operation, Resource


class Requirement(NamedTuple):
    """An operation on the resource that a field of the request names, or on the cluster if `field` is None. Null in the
    field requires nothing."""

    operation: Operation
    resource: Resource = Resource.CLUSTER
    field: str | None = None


_READ_GROUP = Requirement(Operation.READ, Resource.GROUP, "group_id")
_DELETE_GROUP = Requirement(Operation.DELETE, Resource.GROUP, "group_id")
_WRITE_TRANSACTION = Requirement(Operation.WRITE, Resource.TRANSACTIONAL_ID, "transactional_id")
_DESCRIBE, _ALTER = Requirement(Operation.DESCRIBE), Requirement(Operation.ALTER)
_DESCRIBE_CONFIGS = Requirement(Operation.DESCRIBE_CONFIGS)

API_REQUIREMENTS: Final[dict[Key, tuple[Requirement, ...]]] = {
    # Before authentication.
    Key.API_VERSIONS: (),
    Key.SASL_HANDSHAKE: (),
    Key.SASL_AUTHENTICATE: (),
    # Records.
    Key.PRODUCE: (_WRITE_TRANSACTION,),  # WRITE on each topic
    Key.FETCH: (),  # READ on each topic
    Key.LIST_OFFSETS: (),  # DESCRIBE on each topic
    Key.OFFSET_FOR_LEADER_EPOCH: (),  # DESCRIBE on each topic, or CLUSTER_ACTION on the cluster
    Key.DELETE_RECORDS: (),  # DELETE on each topic
    # Topics.
    Key.METADATA: (),  # DESCRIBE on each topic, CREATE on it or on the cluster to create it
    Key.DESCRIBE_CLUSTER: (),  # lists only the operations that the client may perform
    Key.DESCRIBE_TOPIC_PARTITIONS: (),  # DESCRIBE on each topic
    Key.CREATE_TOPICS: (),  # CREATE on each topic or on the cluster; DESCRIBE_CONFIGS to get its settings
    Key.DELETE_TOPICS: (),  # DELETE on each topic
    Key.CREATE_PARTITIONS: (),  # ALTER on each topic
    Key.DESCRIBE_CONFIGS: (),  # DESCRIBE_CONFIGS on each topic or group, or on the cluster
    Key.ALTER_CONFIGS: (),  # ALTER_CONFIGS, likewise
    Key.INCREMENTAL_ALTER_CONFIGS: (),  # ALTER_CONFIGS, likewise
    Key.LIST_CONFIG_RESOURCES: (_DESCRIBE_CONFIGS,),
    Key.DESCRIBE_LOG_DIRS: (_DESCRIBE,),
    Key.ALTER_REPLICA_LOG_DIRS: (_ALTER,),
    Key.DESCRIBE_QUORUM: (_DESCRIBE,),
    Key.ELECT_LEADERS: (_ALTER,),
    Key.ALTER_PARTITION_REASSIGNMENTS: (_ALTER,),
    Key.LIST_PARTITION_REASSIGNMENTS: (_DESCRIBE,),
    # Groups.
    Key.FIND_COORDINATOR: (),  # DESCRIBE on each group or transactional id
    Key.JOIN_GROUP: (_READ_GROUP,),
    Key.SYNC_GROUP: (_READ_GROUP,),
    Key.HEARTBEAT: (_READ_GROUP,),
    Key.LEAVE_GROUP: (_READ_GROUP,),
    Key.CONSUMER_GROUP_HEARTBEAT: (_READ_GROUP,),  # DESCRIBE on all topics that it names
    Key.LIST_GROUPS: (),  # DESCRIBE on each group, or on the cluster
    Key.DESCRIBE_GROUPS: (),  # DESCRIBE on each group
    Key.CONSUMER_GROUP_DESCRIBE: (),  # DESCRIBE on each group and all of its topics
    Key.DELETE_GROUPS: (),  # DELETE on each group
    # Offsets of groups.
    Key.OFFSET_COMMIT: (_READ_GROUP,),  # READ on each topic
    Key.OFFSET_FETCH: (),  # DESCRIBE on each group, and on each topic
    Key.OFFSET_DELETE: (_DELETE_GROUP,),  # READ on each topic
    # Transactions.
    Key.INIT_PRODUCER_ID: (_WRITE_TRANSACTION,),  # without one, WRITE on any topic or IDEMPOTENT_WRITE on the cluster
    Key.ADD_PARTITIONS_TO_TXN: (),  # WRITE on the transactional id and each topic; version 4: CLUSTER_ACTION
    Key.ADD_OFFSETS_TO_TXN: (_WRITE_TRANSACTION, _READ_GROUP),
    Key.TXN_OFFSET_COMMIT: (_WRITE_TRANSACTION, _READ_GROUP),  # READ on each topic
    Key.END_TXN: (_WRITE_TRANSACTION,),
    Key.LIST_TRANSACTIONS: (),  # DESCRIBE on each transactional id
    Key.DESCRIBE_TRANSACTIONS: (),  # DESCRIBE on each transactional id, and on each topic
    Key.DESCRIBE_PRODUCERS: (),  # READ on each topic
    # Access control.
    Key.DESCRIBE_ACLS: (_DESCRIBE,),
    Key.CREATE_ACLS: (_ALTER,),
    Key.DELETE_ACLS: (_ALTER,),
    Key.DESCRIBE_USER_SCRAM_CREDENTIALS: (_DESCRIBE,),
    Key.ALTER_USER_SCRAM_CREDENTIALS: (_ALTER,),
    Key.DESCRIBE_CLIENT_QUOTAS: (_DESCRIBE_CONFIGS,),
}


def call_authorized(handler: Handler, context: Context, request: Body) -> Answer:
    """Call a handler. Raise `KafkaError` if the client may not make this request."""
    for operation, resource, field in API_REQUIREMENTS[Key(context.header.api_key)]:
        name = CLUSTER_NAME if field is None else request[field]
        if name is not None:
            context.require(operation, resource, name)
    return handler(context, request)
