"""Whole requests and responses: header, length, body, and unknown APIs."""

from __future__ import annotations

import io
import struct

import pytest
from kio.schema.request_header.v1.header import RequestHeader as HeaderOfKio1
from kio.schema.request_header.v2.header import RequestHeader as HeaderOfKio2
from kio.schema.response_header.v0.header import ResponseHeader as ResponseHeaderOfKio0
from kio.schema.response_header.v1.header import ResponseHeader as ResponseHeaderOfKio1
from kio.serial import entity_reader, entity_writer

from sawlog.broker import wire
from sawlog.broker.wire import ErrorCode, Key, Malformed, Unencodable, UnsupportedVersion
from sawlog.errors import SawlogError

from ...looping import for_each

APIS = list(wire.BY_KEY.values())


def joined(buffers: list[bytes | bytearray | memoryview]) -> memoryview:
    """The frame without its length, which has to be right."""
    whole = b"".join(buffers)
    assert struct.unpack_from(">i", whole) == (len(whole) - 4,)
    return memoryview(whole)[4:]


@for_each("api", APIS)
def test_requests_and_responses_come_back_as_they_were_sent(api: wire.Api) -> None:
    for version in api.versions:
        for client_id in (None, "", "grüße"):
            frame = joined(wire.encode_request(api.key, version, 77, client_id, {}))
            header = wire.parse_header(frame)
            assert header[:4] == (api.key, version, 77, client_id)
            assert wire.decode_request(header, frame).keys() == {field.name for field in api.request}
        answer = joined(wire.encode_response(header, {}))
        correlation_id, body = wire.decode_response(api.key, version, answer)
        assert correlation_id == 77
        assert body.keys() == {field.name for field in api.response}


@for_each("api", APIS)
def test_headers_are_kios(api: wire.Api) -> None:
    for version in api.versions:
        cls = HeaderOfKio2 if api.flexible(version) else HeaderOfKio1
        ours = joined(wire.encode_request(api.key, version, 5, "me", {}))
        theirs, body_at = entity_reader(cls)(bytes(ours), 0)
        assert (theirs.request_api_key, theirs.request_api_version, theirs.correlation_id) == (api.key, version, 5)
        assert theirs.client_id == "me"
        assert wire.parse_header(ours).body_at == body_at
        written = io.BytesIO()
        entity_writer(cls)(written, theirs)
        assert written.getvalue() == ours[:body_at]

        header = wire.RequestHeader(api.key, version, 5, "me", 0)
        tagged = api.flexible(version) and api.key != Key.API_VERSIONS
        answer_class = ResponseHeaderOfKio1 if tagged else ResponseHeaderOfKio0
        answer = joined(wire.encode_response(header, {}))
        read, _ = entity_reader(answer_class)(bytes(answer), 0)
        assert read.correlation_id == 5


def test_tags_in_a_header_are_skipped() -> None:
    frame = joined(wire.encode_request(Key.METADATA, 12, 5, "me", {"topics": None}))
    header = wire.parse_header(frame)
    tags = bytes([2, 0, 3]) + b"abc" + bytes([9, 0])
    tagged = memoryview(bytes(frame[: header.body_at - 1]) + tags + bytes(frame[header.body_at :]))
    assert wire.decode_request(wire.parse_header(tagged), tagged) == wire.decode_request(header, frame)


def test_an_unknown_version_of_api_versions_is_answered_in_version_0() -> None:
    frame = memoryview(struct.pack(">hhih", Key.API_VERSIONS, 99, 5, -1) + b"whatever")
    header = wire.parse_header(frame)
    assert header.version == 99
    keys = [{"api_key": Key.API_VERSIONS, "min_version": 0, "max_version": 4}]
    answer = joined(wire.encode_response(header, {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": keys}))
    assert bytes(answer) == struct.pack(">ihihhh", 5, 35, 1, 18, 0, 4)


@pytest.mark.parametrize(
    ("key", "version"), [(Key.METADATA, 99), (Key.METADATA, -1), (Key.FETCH, 3), (9999, 0), (-1, 0)]
)
def test_an_unknown_api_has_a_header_but_no_body(key: int, version: int) -> None:
    frame = memoryview(struct.pack(">hhih", key, version, 5, -1))
    header = wire.parse_header(frame)
    assert header[:4] == (key, version, 5, None)
    with pytest.raises(UnsupportedVersion):
        wire.decode_request(header, frame)
    with pytest.raises(UnsupportedVersion):
        wire.decode_response(key, version, memoryview(bytes(100)))
    with pytest.raises(Unencodable):
        wire.encode_response(header, {})
    with pytest.raises(Unencodable):
        wire.encode_request(key, version, 5, None, {})


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"topisc": []}, "topisc"),
        ({"topics": [{"nam": "x"}]}, "nam"),
        ({"topics": [{"name": None}]}, "name is None"),
        ({"topics": 5}, "Metadata request version 8"),
        ({"topics": [{"name": b"bytes"}]}, "Metadata request version 8"),
        ({"topics": [{"name": "x" * 40_000}]}, "Metadata request version 8"),
    ],
    ids=["unknown", "unknown inside", "null", "number", "bytes", "too long"],
)
def test_a_body_that_does_not_fit_is_the_callers_mistake(body: dict[str, object], told: str) -> None:
    with pytest.raises(Unencodable, match=told):
        wire.encode_request(Key.METADATA, 8, 1, None, body)


@for_each("version", wire.BY_KEY[Key.FETCH].versions)
@pytest.mark.parametrize(
    "body",
    [
        {"respones": []},
        {"responses": None},
        {"responses": [None]},
        {"responses": [{"topics": []}]},
        {"responses": [{"partitions": [{"base_offset": 1}]}]},
        {"responses": [{"partitions": [{"high_watermark": 1 << 63}]}]},
    ],
)
def test_a_response_that_does_not_fit_its_table_is_refused(body: dict[str, object], version: int) -> None:
    with pytest.raises(Unencodable):
        wire.encode_response(wire.RequestHeader(Key.FETCH, version, 5, None, 0), body)


def test_records_of_a_response_are_passed_on_without_a_copy() -> None:
    batch = memoryview(bytearray(b"batch" * 100))
    partitions = [{"records": batch}, {"records": [batch, b"", batch[:7]]}, {"records": b""}, {"records": None}]
    buffers = wire.encode_response(
        wire.RequestHeader(Key.FETCH, 16, 5, None, 0), {"responses": [{"partitions": partitions}]}
    )
    assert [buffer for buffer in buffers if buffer is batch] == [batch, batch]
    _, body = wire.decode_response(Key.FETCH, 16, joined(buffers))
    records = [part["records"] for part in body["responses"][0]["partitions"]]
    assert records == [batch, bytes(batch) + bytes(batch[:7]), b"", None]


@pytest.mark.parametrize("version", [7, 9, 13])
def test_records_of_a_request_are_a_view_into_the_frame(version: int) -> None:
    asked = {"topic_data": [{"name": "t", "partition_data": [{"records": b"batch"}]}]}
    frame = joined(wire.encode_request(Key.PRODUCE, version, 5, None, asked))
    [topic] = wire.decode_request(wire.parse_header(frame), frame)["topic_data"]
    records = topic["partition_data"][0]["records"]
    assert isinstance(records, memoryview)
    assert records.obj is frame.obj


def test_errors_are_sawlogs() -> None:
    for error in (Malformed, Unencodable, UnsupportedVersion):
        assert issubclass(error, SawlogError)
        assert issubclass(error, ValueError)
    assert issubclass(UnsupportedVersion, Malformed)


def test_unknown_tagged_fields_are_skipped() -> None:
    frame = joined(wire.encode_request(Key.API_VERSIONS, 3, 5, None, {"client_software_name": "me"}))
    assert frame[-1] == 0
    tagged = memoryview(bytes(frame[:-1]) + bytes([2, 100, 4]) + b"data" + bytes([101, 0]))
    assert wire.decode_request(wire.parse_header(tagged), tagged)["client_software_name"] == "me"


def test_bytes_after_the_message_are_ignored() -> None:
    frame = joined(wire.encode_request(Key.HEARTBEAT, 4, 5, None, {"group_id": "g"}))
    longer = memoryview(bytes(frame) + b"more")
    assert wire.decode_request(wire.parse_header(longer), longer)["group_id"] == "g"
