"""Every API against every role, in every version that is served."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sawlog.broker.handlers import HANDLERS
from sawlog.broker.security.acls import Operation
from sawlog.broker.wire import BY_KEY, ErrorCode, Key
from sawlog.testing import Broker

from ..peers import Peer
from .roles import BINDINGS, ROLES, Requests, asked_by, believing, change, codes_in, everything, verdict

#: The answer to each role: "." if allowed, else the error: Topic, Group, Cluster or transactional id (X) ...
#: AUTHORIZATION_FAILED. With a number: in versions from there on.
GRID = """
                                none describe read write member admin denied
ApiVersions                     .    .        .    .     .      .     .
DescribeCluster                 .    .        .    .     .      .     .
Produce                         T    T        T    .     T      .     T
Fetch                           T    T        .    T     T      .     T
ListOffsets                     T    .        .    .     .      .     T
OffsetForLeaderEpoch            T    .        .    .     .      .     T
DeleteRecords                   T    T        T    T     T      .     T
Metadata                        T    .        .    .     .      .     T
DescribeTopicPartitions         T    .        .    .     .      .     T
CreateTopics                    T    T        T    T     T      .     T
DeleteTopics                    T    T        T    T     T      .     T
CreatePartitions                T    T        T    T     T      .     T
DescribeConfigs                 T    T        T    T     T      .     T
AlterConfigs                    T    T        T    T     T      .     T
IncrementalAlterConfigs         T    T        T    T     T      .     T
ListConfigResources             C    C        C    C     C      .     C
DescribeLogDirs                 .    .        .    .     .      .     .
DescribeLogDirs:3               C    .        C    C     C      .     C
AlterReplicaLogDirs             C    C        C    C     C      .     C
DescribeQuorum                  C    .        C    C     C      .     C
ElectLeaders                    C    C        C    C     C      .     C
AlterPartitionReassignments     C    C        C    C     C      .     C
ListPartitionReassignments      C    .        C    C     C      .     C
FindCoordinator                 G    .        .    G     .      .     G
JoinGroup                       G    G        .    G     .      .     G
SyncGroup                       G    G        .    G     .      .     G
Heartbeat                       G    G        .    G     .      .     G
LeaveGroup                      G    G        .    G     .      .     G
ConsumerGroupHeartbeat          G    G        .    G     .      .     G
DescribeGroups                  G    .        .    G     .      .     G
ConsumerGroupDescribe           G    .        .    G     .      .     G
DeleteGroups                    G    G        G    G     .      .     G
ListGroups                      .    .        .    .     .      .     .
OffsetCommit                    G    G        .    G     T      .     G
OffsetFetch                     G    .        .    G     .      .     G
OffsetDelete                    G    G        G    G     T      .     G
InitProducerId                  C    C        C    .     C      .     C
AddPartitionsToTxn              X    X        X    .     T      .     X
AddPartitionsToTxn:4            C    C        C    C     C      .     C
AddOffsetsToTxn                 X    X        X    G     .      .     X
TxnOffsetCommit                 X    X        X    G     T      .     X
EndTxn                          X    X        X    .     .      .     X
DescribeTransactions            X    .        X    .     .      .     X
ListTransactions                .    .        .    .     .      .     .
DescribeProducers               T    T        .    T     T      .     T
DescribeAcls                    C    .        C    C     C      .     C
CreateAcls                      C    C        C    C     C      .     C
DeleteAcls                      C    C        C    C     C      .     C
DescribeUserScramCredentials    C    .        C    C     C      .     C
AlterUserScramCredentials       C    C        C    C     C      .     C
DescribeClientQuotas            C    C        C    C     C      .     C
"""
#: Part of the authentication, which comes before.
BEFORE = {"SaslHandshake", "SaslAuthenticate"}
KEYS = {api.name: api.key for api in BY_KEY.values()}


def rows() -> dict[str, dict[int, dict[str, str]]]:
    """The grid, by API and first version."""
    head, *lines = GRID.strip().splitlines()
    assert tuple(head.split()) == ROLES
    found: dict[str, dict[int, dict[str, str]]] = {}
    for line in lines:
        name, *cells = line.split()
        api, _, since = name.partition(":")
        found.setdefault(api, {})[int(since or 0)] = dict(zip(ROLES, cells, strict=True))
    return found


EXPECTED = rows()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with believing(*BINDINGS, auto_create_topics=False, refresh_s=600) as made:
        made.create_topic("t-1")
        made.create_topic("other")
        requests = Requests({})
        asked_by(made, "admin", Key.OFFSET_COMMIT, 2, requests.body(Key.OFFSET_COMMIT, 2))
        begun = {"transactional_id": "x-1", "transaction_timeout_ms": 60_000}
        assert asked_by(made, "admin", Key.INIT_PRODUCER_ID, 2, begun)["error_code"] == 0
        yield made


@pytest.fixture(scope="module")
def topic_ids(broker: Broker) -> dict[str, bytes]:
    found = asked_by(broker, "root", Key.METADATA, 12, {"topics": None})
    return {each["name"]: each["topic_id"] for each in found["topics"]}


def served(broker: Broker) -> set[str]:
    return {BY_KEY[key].name for key in broker._live().versions}


def test_every_api_has_a_row_in_the_table_and_in_this_grid(broker: Broker) -> None:
    assert set(HANDLERS) == set(Key), "an API without a handler"
    assert served(broker) - BEFORE <= EXPECTED.keys(), "an API that no role is tested with"


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_do_in_every_version_of_every_api_what_the_grid_says(
    broker: Broker, topic_ids: dict[str, bytes], role: str
) -> None:
    requests, wrong, asked = Requests(topic_ids), [], 0
    with Peer(broker.address, role) as peer:
        for name in sorted(served(broker) - BEFORE):
            key = Key(KEYS[name])
            for version in broker._live().versions[key]:
                since = max((each for each in EXPECTED[name] if each <= version), default=None)
                if since is None:
                    continue
                asked += 1
                found = verdict(peer.ask(key, version, requests.body(key, version)))
                if found != EXPECTED[name][since][role]:
                    wrong.append((name, version, found, EXPECTED[name][since][role]))
    assert not wrong
    assert asked > 150


def test_refused_requests_change_nothing(broker: Broker, topic_ids: dict[str, bytes]) -> None:
    def state() -> tuple[object, ...]:
        groups = asked_by(broker, "root", Key.LIST_GROUPS, 4, {})["groups"]
        ids = asked_by(broker, "root", Key.LIST_TRANSACTIONS, 0, {})["transaction_states"]
        topics = [(each.name, each.partitions, each.settings, len(list(each.scan()))) for each in broker.store]
        return groups, ids, topics, broker.store._registry.read("acls")

    before, requests = state(), Requests(topic_ids)
    for role in ("none", "denied"):
        with Peer(broker.address, role) as peer:
            for name in sorted(served(broker) - BEFORE):
                key = Key(KEYS[name])
                for version in (broker._live().versions[key][0], broker._live().versions[key][-1]):
                    body = requests.body(key, version)
                    peer.ask(key, version, {**body, "validate_only": False} if "validate_only" in body else body)
    assert state() == before


#: APIs whose requests name several resources: each gets an answer of its own.
SPLIT = {
    Key.PRODUCE: "T",
    Key.FETCH: "T",
    Key.LIST_OFFSETS: "T",
    Key.OFFSET_FOR_LEADER_EPOCH: "T",
    Key.DELETE_RECORDS: "T",
    Key.METADATA: "T",
    Key.DESCRIBE_TOPIC_PARTITIONS: "T",
    Key.CREATE_TOPICS: "T",
    Key.DELETE_TOPICS: "T",
    Key.CREATE_PARTITIONS: "T",
    Key.DESCRIBE_CONFIGS: "T",
    Key.ALTER_CONFIGS: "T",
    Key.INCREMENTAL_ALTER_CONFIGS: "T",
    Key.OFFSET_COMMIT: "T",
    Key.OFFSET_FETCH: "T",
    Key.OFFSET_DELETE: "T",
    Key.TXN_OFFSET_COMMIT: "T",
    Key.DESCRIBE_PRODUCERS: "T",
    Key.FIND_COORDINATOR: "G",
    Key.DESCRIBE_GROUPS: "G",
    Key.CONSUMER_GROUP_DESCRIBE: "G",
    Key.DELETE_GROUPS: "G",
    Key.DESCRIBE_TRANSACTIONS: "X",
}
REFUSED = {
    "T": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    "G": ErrorCode.GROUP_AUTHORIZATION_FAILED,
    "X": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
#: Beside the error of what may not be created, because the cluster may not either.
_ADMIN_OF_NAMES = [each for each in everything("some", Operation.ALL) if each.name != "kafka-cluster"]


def test_of_several_resources_the_allowed_ones_are_served_and_the_others_refused(
    broker: Broker, topic_ids: dict[str, bytes]
) -> None:
    names = {each: name for name, each in topic_ids.items()}
    wrong = []
    change(broker, *BINDINGS, *_ADMIN_OF_NAMES)
    try:
        with Peer(broker.address, "some") as peer:
            for key, letter in SPLIT.items():
                requests = Requests(
                    topic_ids,
                    ("t-1", "other"),
                    ("g-1", "other-group") if letter == "G" else ("g-1",),
                    ("x-1", "other-id") if letter == "X" else ("x-1",),
                )
                for version in broker._live().versions[key]:
                    if key is Key.FIND_COORDINATOR and version < 4:
                        continue  # asks for one
                    body = requests.body(key, version)
                    found = codes_in(peer.ask(key, version, body), names)
                    good = set().union(*(codes for name, codes in found.items() if not name.startswith("other")))
                    bad = set().union(*(codes for name, codes in found.items() if name.startswith("other")))
                    if bad != {REFUSED[letter]} or good & set(REFUSED.values()):
                        wrong.append((key.name, version, found))
    finally:
        change(broker, *BINDINGS)
    assert not wrong


def test_lists_leave_out_what_may_not_be_described(broker: Broker) -> None:
    shown = {}
    for role in ROLES:
        topics = asked_by(broker, role, Key.METADATA, 9, {"topics": None})["topics"]
        oldest = asked_by(broker, role, Key.METADATA, 0, {"topics": []})["topics"]
        pages = asked_by(broker, role, Key.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": []})["topics"]
        names = [each["name"] for each in topics]
        assert [each["name"] for each in oldest] == [each["name"] for each in pages] == names
        groups = asked_by(broker, role, Key.LIST_GROUPS, 4, {})["groups"]
        ids = asked_by(broker, role, Key.LIST_TRANSACTIONS, 0, {})["transaction_states"]
        shown[role] = (
            names,
            [each["group_id"] for each in groups],
            [each["transactional_id"] for each in ids],
        )
    assert shown == {
        "none": ([], [], []),
        "describe": (["t-1"], ["g-1"], ["x-1"]),
        "read": (["t-1"], ["g-1"], []),
        "write": (["t-1"], [], ["x-1"]),
        "member": (["t-1"], ["g-1"], ["x-1"]),
        "admin": (["t-1"], ["g-1"], ["x-1"]),
        "denied": ([], [], []),
    }


def test_a_super_user_may_do_everything(broker: Broker, topic_ids: dict[str, bytes]) -> None:
    requests = Requests(topic_ids, ("other",), ("other",), ("other",))
    with Peer(broker.address, "root") as peer:
        for name in sorted(served(broker) - BEFORE):
            key = Key(KEYS[name])
            for version in broker._live().versions[key]:
                assert verdict(peer.ask(key, version, requests.body(key, version))) == ".", (name, version)
