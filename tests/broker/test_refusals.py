"""Responses to requests that failed as a whole."""

from __future__ import annotations

from random import Random

from sawlog.broker.handlers import refusal
from sawlog.broker.wire import (
    BY_KEY,
    Api,
    ErrorCode,
    Key,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    errors_in,
    parse_header,
)
from sawlog.testing import Broker

from ..looping import for_each
from .peers import Peer
from .wire.bodies import Drawing


@for_each("api", list(BY_KEY.values()))
def test_a_failed_request_is_answered_in_every_version(api: Api) -> None:
    for version in api.versions:
        for seed in range(5):
            body = Drawing(Random(seed), version).body(api.request)
            frame = memoryview(b"".join(map(bytes, encode_request(api.key, version, 1, "x", body))))[4:]
            header = parse_header(frame)
            request = decode_request(header, frame)
            made = refusal(api.key, request, ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone")
            answer = memoryview(b"".join(map(bytes, encode_response(header, made))))[4:]
            _, found = decode_response(api.key, version, answer)
            assert {code for code, _ in errors_in(header, found)} <= {ErrorCode.KAFKA_STORAGE_ERROR}


@for_each("version", [10, 11, 12, 13])
def test_a_topic_that_was_given_by_id_has_no_name_in_the_response(version: int) -> None:
    topic_id = bytes(range(16))
    frame = memoryview(
        b"".join(map(bytes, encode_request(Key.METADATA, version, 1, "x", {"topics": [{"topic_id": topic_id}]})))
    )[4:]
    header = parse_header(frame)
    request = {"topics": [{"topic_id": topic_id, "name": None}]}
    made = refusal(Key.METADATA, request, ErrorCode.KAFKA_STORAGE_ERROR)
    answer = memoryview(b"".join(map(bytes, encode_response(header, made))))[4:]
    (topic,) = decode_response(Key.METADATA, version, answer)[1]["topics"]
    assert (topic["topic_id"], topic["name"]) == (topic_id, None if version >= 12 else "")


def test_an_answer_repeats_the_element_of_the_request_with_error_and_message() -> None:
    request = {"groups_names": ["a", "b"]}
    assert refusal(Key.DELETE_GROUPS, request, ErrorCode.NOT_COORDINATOR)["results"] == [
        {"group_id": "a", "error_code": ErrorCode.NOT_COORDINATOR},
        {"group_id": "b", "error_code": ErrorCode.NOT_COORDINATOR},
    ]
    topics = {"topics": [{"name": "orders", "num_partitions": 3}]}
    (topic,) = refusal(Key.CREATE_TOPICS, topics, ErrorCode.INVALID_CONFIG, "unknown setting")["topics"]
    assert topic == {"name": "orders", "error_code": ErrorCode.INVALID_CONFIG, "error_message": "unknown setting"}


def test_a_client_is_told_why_its_request_failed() -> None:
    with Broker() as broker, Peer(broker.address) as peer:
        found = peer.ask(Key.DESCRIBE_CLUSTER, 1, {"endpoint_type": 2})
    assert found["error_code"] == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
    assert found["error_message"] == "there are no controllers here, only a broker"
