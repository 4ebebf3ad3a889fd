"""Consistency of the tables: keys, ranges, names, tags, and the fields of decoded messages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode as KiosErrorCode

from sawlog.broker import wire
from sawlog.broker.wire import Api
from sawlog.broker.wire.codec import Sink, decoder, encoder
from sawlog.broker.wire.messages import ASSIGNMENT, SUBSCRIPTION, VERSIONS
from sawlog.broker.wire.schema import ARRAY, STRUCT, Field, Fields, parse_fields

from ...looping import for_each
from .bodies import names

APIS = list(wire.BY_KEY.values())
TABLES = [(f"{api.name} {kind}", api, getattr(api, kind)) for api in APIS for kind in ("request", "response")]

#: Versions that current clients and clients of recent years need.
NEEDED = {
    wire.Key.API_VERSIONS: (0, 4),
    wire.Key.METADATA: (0, 13),
    wire.Key.PRODUCE: (0, 13),
    wire.Key.FETCH: (4, 18),
    wire.Key.LIST_OFFSETS: (0, 11),
    wire.Key.FIND_COORDINATOR: (0, 6),
    wire.Key.JOIN_GROUP: (0, 9),
    wire.Key.SYNC_GROUP: (0, 5),
    wire.Key.HEARTBEAT: (0, 4),
    wire.Key.LEAVE_GROUP: (0, 5),
    wire.Key.OFFSET_COMMIT: (0, 10),
    wire.Key.OFFSET_FETCH: (0, 10),
    wire.Key.INIT_PRODUCER_ID: (0, 5),
}


def structs(fields: Fields) -> Iterator[Fields]:
    """Each struct of a table: the message itself and everything in it."""
    yield fields
    for field in fields:
        if field.kind in (ARRAY, STRUCT) and isinstance(field.inner, tuple):
            yield from structs(field.inner)


def fields_below(fields: Fields) -> Iterator[Field]:
    for struct in structs(fields):
        yield from struct


def test_every_key_has_its_tables() -> None:
    assert set(wire.BY_KEY) == set(wire.Key)
    assert all(api.key == key for key, api in wire.BY_KEY.items())


def test_names_are_kafkas() -> None:
    assert wire.BY_KEY[wire.Key.FIND_COORDINATOR].name == "FindCoordinator"
    assert wire.BY_KEY[wire.Key.ADD_PARTITIONS_TO_TXN].name == "AddPartitionsToTxn"


@pytest.mark.parametrize("key", NEEDED, ids=lambda key: key.name)
def test_versions_cover_what_clients_use(key: wire.Key) -> None:
    lowest, highest = NEEDED[key]
    assert wire.BY_KEY[key].versions == range(lowest, highest + 1)


@for_each(("api", "fields"), [case[1:] for case in TABLES])
def test_a_table_says_nothing_that_cannot_be(api: Api, fields: Fields) -> None:
    lowest, highest = api.versions[0], api.versions[-1]
    for struct in structs(fields):
        assert len(names(struct)) == len(struct), "two fields have the same name"
        tags = sorted(field.tag for field in struct if field.tag is not None)
        assert tags == list(range(len(tags)))
    for field in fields_below(fields):
        assert any(field.exists_in(version) for version in api.versions), f"{field.name} is in no version"
        assert field.since == 0 or lowest < field.since <= highest
        assert field.until is None or lowest <= field.until < highest
        assert field.nullable is None or field.nullable <= highest
        assert field.tag is None or (field.since in api.flexible_versions)


@for_each(("api", "fields"), [case[1:] for case in TABLES])
def test_a_message_without_values_has_all_defaults_in_every_version(api: Api, fields: Fields) -> None:
    for version in api.versions:
        flexible = api.flexible(version)
        sink = Sink()
        encoder(fields, version, flexible=flexible, what=api.name)(sink, {})
        decode = decoder(fields, version, flexible=flexible)
        body, again = decode(memoryview(sink), 0), decode(memoryview(sink), 0)
        assert body.keys() == names(fields)
        for field in fields:
            if field.kind is ARRAY and field.default is not None:
                assert body[field.name] == []
                assert body[field.name] is not again[field.name], "a caller may append to it"
            elif field.exists_in(version) and field.default is None and not field.nullable_in(version):
                assert body[field.name] == field.kind.zero
            elif field.kind is not STRUCT or field.default is None:
                assert body[field.name] == field.default


def test_a_field_of_another_version_is_not_written_and_reads_as_its_default() -> None:
    fields = parse_fields("old int32 0-1, new int64 2+ = 5, always int32")
    for version, expected in [(1, {"old": 7, "new": 5, "always": 9}), (2, {"old": 0, "new": 8, "always": 9})]:
        sink = Sink()
        encoder(fields, version, flexible=False, what="test")(sink, {"old": 7, "new": 8, "always": 9})
        assert decoder(fields, version, flexible=False)(memoryview(sink), 0) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_embedded_metadata_of_consumers_is_read_as_it_was_written(version: int) -> None:
    for fields, body in [
        (SUBSCRIPTION, {"topics": ["a", "b"], "user_data": b"x", "owned_partitions": [], "generation_id": 3}),
        (ASSIGNMENT, {"assigned_partitions": [{"topic": "a", "partitions": [1, 2]}], "user_data": None}),
    ]:
        sink = Sink()
        encoder(fields, version, flexible=False, what="test")(sink, body)
        read = decoder(fields, version, flexible=False)(memoryview(sink), 0)
        assert {name: read[name] for name in body if name != "generation_id"} == {
            name: value for name, value in body.items() if name != "generation_id"
        }


def test_error_codes_are_kafkas() -> None:
    theirs = {code.name.upper(): code.value for code in KiosErrorCode}
    assert {code.name: code.value for code in wire.ErrorCode} == theirs


@for_each("api", APIS)
def test_an_error_that_did_not_happen_has_no_message(api: Api) -> None:
    """Null, as Kafka sends it: a client may take an empty text for a message."""
    for fields in structs(api.response):
        for field in fields:
            if field.name.endswith("error_message"):
                assert field.default is None


@pytest.mark.parametrize("mistake", ["name", "name text", "name string 3-", "count int32 = much", "count int32 = null"])
def test_a_mistake_in_a_table_is_an_error(mistake: str) -> None:
    with pytest.raises((AssertionError, KeyError, ValueError)):
        parse_fields(mistake)
