"""Produce and Fetch by hand do what their tables say: the same dicts, the same bytes, the same refusals."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from sawlog.broker.wire import Malformed, Unencodable, fast
from sawlog.broker.wire.messages.records import FETCH, PRODUCE
from sawlog.broker.wire.reading import Decoder, decoder
from sawlog.broker.wire.schema import Api, Body
from sawlog.broker.wire.writing import Encoder, Sink, encoder

from ...looping import for_each
from .bodies import Drawing

REQUESTS = [(PRODUCE, fast.produce_request, version) for version in PRODUCE.versions] + [
    (FETCH, fast.fetch_request, version) for version in FETCH.versions
]
RESPONSES = [(PRODUCE, fast.produce_response, version) for version in PRODUCE.versions] + [
    (FETCH, fast.fetch_response, version) for version in FETCH.versions
]


def written(encode: Encoder, body: Body) -> bytes:
    sink = Sink()
    encode(sink, body)
    return b"".join(sink.buffers())


@for_each(("api", "make", "version"), REQUESTS)
def test_requests_are_read_as_by_the_table(api: Api, make: Callable[[int], Decoder], version: int) -> None:
    flexible = api.flexible(version)
    by_table = decoder(api.request, version, flexible=flexible)
    write = encoder(api.request, version, flexible=flexible, what=api.name)
    by_hand = make(version)
    drawing = Drawing(Random(version), version)
    for _ in range(8):
        frame = memoryview(b"12345" + written(write, drawing.body(api.request)))
        assert by_hand(frame, 5) == by_table(frame, 5)


@for_each(("api", "make", "version"), REQUESTS)
def test_a_request_that_is_cut_is_malformed_as_by_the_table(
    api: Api, make: Callable[[int], Decoder], version: int
) -> None:
    flexible = api.flexible(version)
    by_table = decoder(api.request, version, flexible=flexible)
    write = encoder(api.request, version, flexible=flexible, what=api.name)
    by_hand = make(version)
    drawing = Drawing(Random(version), version)
    for _ in range(2):
        frame = memoryview(written(write, drawing.body(api.request)))
        for end in [*range(min(len(frame), 80)), *range(max(len(frame) - 30, 0), len(frame))]:
            with pytest.raises(Malformed):
                by_table(frame[:end], 0)
            with pytest.raises(Malformed):
                by_hand(frame[:end], 0)


@for_each(("api", "make", "version"), REQUESTS)
def test_damaged_requests_are_read_or_refused_as_by_the_table(
    api: Api, make: Callable[[int], Decoder], version: int
) -> None:
    flexible = api.flexible(version)
    by_table = decoder(api.request, version, flexible=flexible)
    write = encoder(api.request, version, flexible=flexible, what=api.name)
    by_hand = make(version)
    random = Random(version)
    drawing = Drawing(random, version)

    def outcome(decode: Decoder, frame: memoryview) -> Body | str:
        try:
            return decode(frame, 0)
        except Malformed:
            return "malformed"

    refused = 0
    for _ in range(10):
        whole = written(write, drawing.body(api.request))
        for _ in range(8):
            damaged = bytearray(whole)
            damaged[random.randrange(min(len(damaged), 200))] = random.choice([0, 1, 0x7F, 0x80, 0xFF])
            expected = outcome(by_table, memoryview(damaged))
            assert outcome(by_hand, memoryview(damaged)) == expected
            refused += expected == "malformed"
    assert refused


@for_each(("api", "make", "version"), RESPONSES)
def test_responses_are_written_as_by_the_table(api: Api, make: Callable[[int], Encoder], version: int) -> None:
    by_table = encoder(api.response, version, flexible=api.flexible(version), what=api.name)
    by_hand = make(version)
    drawing = Drawing(Random(version), version)
    for _ in range(8):
        body = drawing.body(api.response)
        assert written(by_hand, body) == written(by_table, body)
    assert written(by_hand, {}) == written(by_table, {})
    bare = {"responses": [{"partitions": [{}]}]} if api is FETCH else {"responses": [{"partition_responses": [{}]}]}
    assert written(by_hand, bare) == written(by_table, bare)


MISTAKES: list[Body] = [
    {"respones": []},
    {"responses": None},
    {"responses": [None]},
    {"responses": [{"topics": []}]},
    {"responses": [{"partitions": [{"records": "text"}], "partition_responses": [{"base_offset": 1 << 63}]}]},
]


@for_each(("api", "make", "version"), RESPONSES)
def test_invalid_values_are_refused_as_by_the_table(api: Api, make: Callable[[int], Encoder], version: int) -> None:
    by_table = encoder(api.response, version, flexible=api.flexible(version), what=f"{api.name} response")
    by_hand = make(version)
    for body in MISTAKES:
        with pytest.raises(Unencodable):
            by_table(Sink(), body)
        with pytest.raises(Unencodable):
            by_hand(Sink(), body)


def test_records_are_passed_on_without_a_copy() -> None:
    batch = memoryview(bytearray(b"batch" * 100))
    partitions = [{"records": batch}, {"records": [batch, b"", batch[:7]]}, {"records": b""}, {"records": None}]
    sink = Sink()
    fast.fetch_response(16)(sink, {"responses": [{"partitions": partitions}]})
    buffers = sink.buffers()
    assert [buffer for buffer in buffers if buffer is batch] == [batch, batch]
    whole = b"".join(buffers)
    by_table = encoder(FETCH.response, 16, flexible=True, what="")
    copies = [
        {"records": bytes(batch)},
        {"records": bytes(batch) + bytes(batch[:7])},
        {"records": b""},
        {"records": None},
    ]
    assert whole == written(by_table, {"responses": [{"partitions": copies}]})


def test_records_of_a_request_are_a_view_into_the_frame() -> None:
    write = encoder(PRODUCE.request, 9, flexible=True, what="")
    frame = memoryview(written(write, {"topic_data": [{"name": "t", "partition_data": [{"records": b"batch"}]}]}))
    (topic,) = fast.produce_request(9)(frame, 0)["topic_data"]
    records = topic["partition_data"][0]["records"]
    assert isinstance(records, memoryview)
    assert records.obj is frame.obj
