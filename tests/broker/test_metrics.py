"""Counters and log lines of refused requests, for every API and version."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from sawlog.broker.connection import ClientConnection
from sawlog.broker.handlers import Answer, Context, Handler, KafkaError
from sawlog.broker.wire import BY_KEY, ErrorCode, Key
from sawlog.testing import Broker

from .peers import Peer, batch, produce_body
from .security.roles import Requests

Body = dict[str, Any]
MADE_TO_FAIL = "made to fail"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        made.create_topic("t-1")
        yield made


@pytest.fixture
def peer(broker: Broker) -> Iterator[Peer]:
    broker._live().metrics.errors.clear()
    with Peer(broker.address) as made:
        yield made


def codes_in(value: object) -> list[int]:
    """Every error code of a decoded response, wherever it is."""
    if isinstance(value, list):
        return [code for each in value for code in codes_in(each)]
    if not isinstance(value, dict):
        return []
    own = [each for name, each in value.items() if name.endswith("error_code") and each]
    return own + [code for each in value.values() for code in codes_in(each)]


def fail(connection: ClientConnection, context: Context, handler: Handler, request: Body) -> Answer:
    raise KafkaError(ErrorCode.INVALID_REQUEST, MADE_TO_FAIL)


@pytest.mark.alternating
@pytest.mark.parametrize("key", [pytest.param(key, id=api.name) for key, api in sorted(BY_KEY.items())])
def test_a_refusal_is_counted_and_logged_whatever_the_api(
    broker: Broker, peer: Peer, key: Key, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, name = broker._live(), BY_KEY[key].name
    monkeypatch.setattr(live.server, "fault_for", lambda header, request: fail)
    monkeypatch.setattr(live.limits.rate_limited_log, "_windows", {})
    sasl = key in (Key.SASL_HANDSHAKE, Key.SASL_AUTHENTICATE)
    requests = Requests({"t-1": uuid.UUID(broker.store.topic("t-1").id).bytes})
    expected = 0
    for version in live.versions.get(key, ()):
        answer = peer.ask(key, version, {} if sasl or key == Key.API_VERSIONS else requests.body(key, version))
        codes = codes_in(answer)
        assert set(codes) <= {ErrorCode.INVALID_REQUEST}
        expected += len(codes) or 1  # this version cannot say that the request failed; it is counted nevertheless
        assert live.metrics.errors == {(name, "INVALID_REQUEST"): expected}, version
    if expected:  # the broker serves this API
        (line,) = [each.getMessage() for each in caplog.records if MADE_TO_FAIL in each.getMessage()]
        told = f"{name} of User:ANONYMOUS (client id 'peer', from 127.0.0.1) was refused: INVALID_REQUEST"
        assert line.startswith(told)


def test_refusals_of_single_topics_groups_and_settings_are_counted(broker: Broker, peer: Peer) -> None:
    def resource(name: str) -> Body:
        return {"resource_type": 2, "resource_name": name, "configs": [{"name": "no.such", "value": "1"}]}

    group = {"group_id": "", "topics": None}
    unknown = {"topics": [{"name": f"no-{each}"} for each in range(2)], "allow_auto_topic_creation": False}
    peer.ask(Key.METADATA, 9, unknown)
    peer.ask(Key.OFFSET_FETCH, 8, {"groups": [group]})
    peer.ask(Key.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource("t-1"), resource("nothing")]})
    peer.ask(Key.DELETE_GROUPS, 2, {"groups_names": ["nobody"]})
    peer.ask(Key.PRODUCE, 9, produce_body("t-1", batch(b"x"), partition=7))
    peer.ask(Key.PRODUCE, 9, produce_body("t-1", batch(b"x")))
    assert broker._live().metrics.errors == Counter(
        {
            ("Metadata", "UNKNOWN_TOPIC_OR_PARTITION"): 2,
            ("OffsetFetch", "INVALID_GROUP_ID"): 1,
            ("IncrementalAlterConfigs", "INVALID_CONFIG"): 1,
            ("IncrementalAlterConfigs", "UNKNOWN_TOPIC_OR_PARTITION"): 1,
            ("DeleteGroups", "GROUP_ID_NOT_FOUND"): 1,
            ("Produce", "UNKNOWN_TOPIC_OR_PARTITION"): 1,
        }
    )


def test_errors_that_clients_handle_in_normal_operation_are_no_warnings(
    broker: Broker, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    request = {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    assert peer.ask(Key.JOIN_GROUP, 5, request)["error_code"] == ErrorCode.MEMBER_ID_REQUIRED
    assert [each.levelname for each in caplog.records if "MEMBER_ID_REQUIRED" in each.getMessage()] == ["INFO"]
    assert broker._live().metrics.errors == {("JoinGroup", "MEMBER_ID_REQUIRED"): 1}
