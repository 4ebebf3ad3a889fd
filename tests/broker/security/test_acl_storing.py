"""Rules are stored, survive, and are followed; a damaged document allows nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sawlog.broker.security.acls import Binding, Filter, Operation, Pattern, Permission, Resource
from sawlog.broker.security.authorizer import BINDINGS_MAX, StoredAcls
from sawlog.broker.wire import ErrorCode, Key
from sawlog.errors import CorruptFile, InvalidConfig
from sawlog.store.directory.store import DirectoryStore
from sawlog.testing import Broker

from ... import warm
from .roles import asked_by, believing

READ_ORDERS = Binding(Resource.TOPIC, "orders", "User:ann", Operation.READ)
EVERYTHING = Filter()


def topics(broker: Broker, client: str) -> list[str]:
    return [each["name"] for each in asked_by(broker, client, Key.METADATA, 9, {"topics": None})["topics"]]


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_rules_survive_and_keep_their_order(tmp_path: Path) -> None:
    made = [
        Binding(Resource.GROUP, "billing", "User:ann", Operation.READ),
        READ_ORDERS,
        Binding(Resource.TOPIC, "orders-", "User:bob", Operation.ALL, Permission.DENY, Pattern.PREFIXED, "10.0.0.1"),
    ]
    with DirectoryStore.open(tmp_path) as store:
        StoredAcls(store._registry).add(made)
        StoredAcls(store._registry).add(made[:1])  # it is there already
    with DirectoryStore.open(tmp_path, mode="r") as store:
        assert StoredAcls(store._registry).find(EVERYTHING) == [made[1], made[2], made[0]]
        assert store._registry.read("acls").version == 1


def test_rules_that_match_a_filter_are_deleted_and_returned(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path) as store:
        acls = StoredAcls(store._registry)
        acls.add([READ_ORDERS, Binding(Resource.GROUP, "billing", "User:ann", Operation.READ)])
        deleted = acls.delete([Filter(resource=Resource.TOPIC), Filter(name="nothing"), Filter(name="orders")])
        assert deleted == [[READ_ORDERS], [], [READ_ORDERS]]
        assert [each.name for each in acls.find(EVERYTHING)] == ["billing"]


def test_there_are_not_too_many_rules(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path) as store:
        acls = StoredAcls(store._registry)
        with pytest.raises(InvalidConfig, match="at most 10,000 rules"):
            acls.add(Binding(Resource.TOPIC, f"t{number}", "User:a", Operation.READ) for number in range(10_001))
        assert BINDINGS_MAX == 10_000
        assert acls.find(EVERYTHING) == []


_ADDING = """
import sawlog, sys
from sawlog.broker.security.acls import Binding, Operation, Resource
from sawlog.broker.security.authorizer import StoredAcls

with sawlog.open(sys.argv[1]) as store:
    for number in range(12):
        StoredAcls(store._registry).add([Binding(Resource.TOPIC, f"{sys.argv[2]}-{number}", "User:a", Operation.READ)])
"""


def test_two_processes_that_add_rules_at_the_same_time_lose_none(tmp_path: Path) -> None:
    DirectoryStore.open(tmp_path).close()
    working = [warm.start(["-c", _ADDING, str(tmp_path), name]) for name in ("one", "two")]
    assert [each.wait(120) for each in working] == [0, 0]
    with DirectoryStore.open(tmp_path, mode="r") as store:
        found = {each.name for each in StoredAcls(store._registry).find(EVERYTHING)}
        assert found == {f"{name}-{number}" for name in ("one", "two") for number in range(12)}
        assert store._registry.read("acls").version == 24


# --- a broker follows


def test_the_first_rule_closes_and_the_last_one_opens_while_the_broker_runs() -> None:
    with believing(refresh_s=0.02) as broker:
        broker.create_topic("orders")
        broker.create_topic("secret")
        assert topics(broker, "bob") == ["orders", "secret"]
        with DirectoryStore.open(broker.directory) as store:  # as another process does it
            StoredAcls(store._registry).add([READ_ORDERS])
            until(lambda: topics(broker, "bob") == [], "the rule to be followed")
            assert topics(broker, "ann") == ["orders"]
            StoredAcls(store._registry).delete([EVERYTHING])
        until(lambda: topics(broker, "bob") == ["orders", "secret"], "the rules to be gone")


def test_rules_hold_after_a_restart_from_the_first_request_on(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path) as store:
        store.create_topic("orders")
        StoredAcls(store._registry).add([READ_ORDERS])
    with Broker(directory=str(tmp_path), refresh_s=600) as broker:
        assert topics(broker, "anybody") == []


@pytest.mark.parametrize("damage", ["checksum", "words", "shape"])
def test_a_damaged_document_refuses_everything_but_super_users(damage: str) -> None:
    with believing(READ_ORDERS, refresh_s=0.02) as broker:
        broker.create_topic("orders")
        assert topics(broker, "ann") == ["orders"]
        if damage == "checksum":
            path = Path(broker.directory) / "registry" / "acls.json"
            path.write_bytes(path.read_bytes().replace(b"User:ann", b"User:bob"))
        else:
            wrong = [{**READ_ORDERS.fields, "operation": "juggle"}] if damage == "words" else "none"
            broker.store._registry.change("acls", lambda fields: {"bindings": wrong})
        until(lambda: topics(broker, "ann") == [], "the damage to be noticed")
        assert topics(broker, "bob") == []
        assert topics(broker, "root") == ["orders"]
        anything = {
            "resource_type_filter": 1,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "principal_filter": None,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        }
        told = asked_by(broker, "root", Key.DESCRIBE_ACLS, 3, anything)
        assert told["error_code"] == ErrorCode.KAFKA_STORAGE_ERROR
        assert told["error_message"]
        with pytest.raises(CorruptFile):
            StoredAcls(broker.store._registry).add([READ_ORDERS])


def test_a_damaged_list_of_rules_denies_everything() -> None:
    with believing(refresh_s=0.02) as broker:
        broker.create_topic("orders")
        assert topics(broker, "ann") == ["orders"]
        (Path(broker.directory) / "registry" / "acls.json").write_bytes(b"not a document")
        until(lambda: topics(broker, "ann") == [], "the damage to be noticed")


def test_a_broker_that_starts_with_a_damaged_document_refuses_everything(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path) as store:
        store.create_topic("orders")
        StoredAcls(store._registry).add([READ_ORDERS])
    (tmp_path / "registry" / "acls.json").write_bytes(b"{}")
    with Broker(directory=str(tmp_path)) as broker:
        assert topics(broker, "ann") == []


def test_a_file_that_cannot_be_read_for_a_moment_leaves_the_last_rules_in_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with believing(READ_ORDERS, refresh_s=600) as broker:
        broker.create_topic("orders")

        def fail(self: StoredAcls) -> None:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(StoredAcls, "read", fail)
        broker._call(broker._live().authorizer.refresh())
        assert (topics(broker, "ann"), topics(broker, "bob")) == (["orders"], [])


def test_rules_that_vanish_while_the_broker_runs_open_nothing() -> None:
    with believing(READ_ORDERS, refresh_s=0.02) as broker:
        broker.create_topic("orders")
        assert topics(broker, "ann") == ["orders"]
        (Path(broker.directory) / "registry" / "acls.json").unlink()
        until(lambda: topics(broker, "ann") == [], "that to be noticed")
        time.sleep(0.1)  # some more refreshes of a missing file
        assert topics(broker, "bob") == []
        assert topics(broker, "root") == ["orders"]
