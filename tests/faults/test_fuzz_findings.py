"""Bugs that fuzzing has found, one test for each broken promise; the inputs are in the corpus."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, Literal

import pytest

from sawlog import Log, LogConfig, units
from sawlog.batch.text import parse_json
from sawlog.cli import parsing
from sawlog.errors import CorruptBatch, CorruptFile, InvalidConfig
from sawlog.log.checkpoint import Checkpoint, TurnNote
from sawlog.log.maintenance_state import MaintenanceState
from sawlog.log.producers import ProducersFile
from sawlog.spark.options import read_options, write_options
from sawlog.storage import MemoryDirectory, checksummed
from sawlog.storage.checksummed import FIELD, LINE, TitledFile
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.directory.transactions.intent import Intent, Part, Piece

from ..batch.wire import Header, around, batch, record, varint, with_right_crc

DEEP = "[" * 5000
STRANGE = [DEEP, '{"a":' * 5000, "NaN", "Infinity", "-Infinity", "1e999", "[0, -1e999]", '{"a": NaN}']


@pytest.mark.parametrize("text", STRANGE, ids=lambda text: text[:12])
def test_json_that_is_too_deep_or_has_huge_numbers_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"deep|number"):
        parse_json(text)


def test_json_that_we_write_is_read() -> None:
    value = {"a": [1, -2.5, 1e300, None, True, "é"], "b": 2**63}
    assert parse_json(json.dumps(value)) == parse_json(json.dumps(value).encode()) == value


def checkpoint(value: str) -> bytes:
    fields = '"clean": false, "segment": 0, "position": 0, "log_start": 0'
    return LINE.append_to(f'sawlog checkpoint 1\n{{{fields}, "durable_offset": {value}}}\n'.encode())


def maintenance(value: str) -> bytes:
    fields = '"cleaned": [], "damaged": false, "recompressed_offset": 0, "scrubbed": {}'
    return LINE.append_to(f'sawlog maintenance 1\n{{{fields}, "tombstones": {value}}}\n'.encode())


def intent(value: str) -> bytes:
    part = f'{{"topic": "t", "topic_id": "i", "partition": 0, "offset": {value}, "count": 1, "pieces": []}}'
    data = '"at_ms": 0,\n  "data_bytes": 0,\n  "data_crc32c": "00000000"'
    body = f'{{\n  "id": "x",\n  "name": null,\n  "sequence": null,\n  "parts": [{part}],\n  {data},\n'.encode()
    return FIELD.append_to(body)


@pytest.mark.parametrize("value", ["1e999", "Infinity", "NaN", DEEP], ids=lambda text: text[:12])
@pytest.mark.parametrize(
    ("make", "read"),
    [
        (checkpoint, Checkpoint.decode),
        (maintenance, MaintenanceState.decode),
        (intent, lambda data: Intent.decode(data, "x")),
    ],
    ids=["checkpoint", "maintenance", "intent"],
)
def test_a_small_file_with_a_number_that_is_none_is_corrupt(
    value: str, make: Callable[[str], bytes], read: Callable[[bytes], Any]
) -> None:
    read(make("7"))
    with pytest.raises(CorruptFile):
        read(make(value))


@pytest.mark.parametrize("size_bytes", [70, 500, 2**40])
def test_an_intent_whose_batches_are_not_all_there_does_not_hang(size_bytes: int) -> None:
    """Opening the store used to read the intent again and again, forever."""
    root = MemoryDirectory()
    with DirectoryStore.open(root) as store:
        topic = store.create_topic("orders")
        part = Part("orders", topic.id, 0, 5, (Piece("", 0, size_bytes),), 0)
        left = Intent("0" * 32, (part,), data=batch([(0, 0, None, b"x", ())])[:-1])
        root.child("staging", create=True).replace(left.file, left.encode())
    with DirectoryStore.open(root) as store:
        assert len(store["orders"].partition(0)) == 0
        with pytest.raises(CorruptFile, match="no complete batch"):
            store["orders"].append(b"y")


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "../../elsewhere"},
        {"id": 7},
        {"sequence": -1, "name": "job"},
        {"name": "job"},
        {"parts": [{"offset": -2}]},
        {"parts": [{"partition": -1}]},
        {"parts": [{"count": 1.5}]},
        {"parts": [{"pieces": [["../../elsewhere", 0, 9]]}]},
        {"parts": [{"pieces": [["", -1, 9]]}]},
        {"parts": [{"pieces": [["", 0, -9]]}]},
    ],
    ids=str,
)
def test_an_intent_that_leads_elsewhere_is_corrupt(changes: dict[str, Any]) -> None:
    fields = Intent("x", (Part("orders", "i", 0, 1, (Piece("", 0, 9),), 0),)).fields()
    Intent.from_fields(fields, "x")
    wrong = {**fields, **changes}
    if "parts" in changes:
        wrong["parts"] = [{**fields["parts"][0], **changes["parts"][0]}]
    with pytest.raises(CorruptFile):
        Intent.from_fields(wrong, "x")


@pytest.mark.parametrize("value", ["1e999", DEEP], ids=lambda text: text[:12])
def test_a_note_with_a_number_that_is_none_is_none(value: str) -> None:
    made = LINE.append_to(f'{{"shape": "", "segment": {value}, "position": 0, "next_offset": 0}}\n'.encode())
    assert TurnNote.decode(made) is None


def test_a_topic_that_claims_more_partitions_than_there_can_be_is_corrupt() -> None:
    """Describing it would have taken all memory."""
    root = MemoryDirectory()
    with DirectoryStore.open(root) as store:
        store.create_topic("orders")
        place = root.child("topics").child("orders")
        fields = checksummed.load(place, "topic.json")
        checksummed.store(place, "topic.json", {**fields, "partitions": 2**62})
        with pytest.raises(CorruptFile, match="partitions"):
            store.topic("orders")


@pytest.mark.parametrize("key", [["offset", -49, "t", 3], ["offset", "g", 7, 3], ["offset", "g", "t", "3"]], ids=str)
def test_a_committed_offset_of_a_group_without_a_name_is_passed_over(key: list[object]) -> None:
    """Listing the groups raised TypeError, for everybody."""
    root = MemoryDirectory()
    with DirectoryStore.open(root) as store:
        store.create_topic("orders")
        store.groups.commit("billing", {("orders", 0): 0})
        value = {"offset": 1, "topic_id": "", "metadata": "", "time_ms": 0, "member": ""}
        with store.groups._offsets.turn() as turn:
            turn._log.append(json.dumps(value).encode(), json.dumps(key).encode())
        assert store.groups.list() == ["billing"]
        assert [row.committed for row in store.groups.describe("billing").rows] == [0]


#: A record whose one header says that its name is longer than the record.
LYING = b"\0" + varint(0) + varint(0) + varint(-1) + varint(1) + b"v" + varint(1) + varint(50) + b"h" + varint(0)


@pytest.mark.parametrize("good", [0, 1, 3])
def test_batches_with_record_headers_that_do_not_parse_are_not_appended(good: int) -> None:
    """They would be stored, and could never be read."""
    lying = around(varint(len(LYING)) + LYING, Header(count=1))
    sound = b"".join(batch([(0, 0, None, b"x", [(b"h", b"1")])], Header(base_offset=n)) for n in range(good))
    with Log.in_memory() as log:
        with pytest.raises(CorruptBatch, match=f"the batch at byte {len(sound)}"):
            log.append_batches(sound + lying[:7] + bytes([good]) + lying[8:])
        assert len(log) == 0


def test_verify_finds_every_batch_with_record_headers_that_do_not_parse() -> None:
    """Also before one that is damaged otherwise."""
    cut = around(record((0, 0, None, b"x", ())) + b"\0", Header(count=1))
    lying = around(varint(len(LYING)) + LYING, Header(count=1))
    with Log.in_memory() as log:
        log.append_batches(lying + lying[:7] + b"\1" + lying[8:] + cut[:7] + b"\2" + cut[8:], trusted=True)
        report = log.verify()
        assert [problem.next_offset for problem in report.problems] == [1, 2, 3]


@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_batch_that_claims_the_offsets_of_the_next_segment_does_not_hide_it(mode: Literal["r", "w"]) -> None:
    """Its checksum is right. A scan believed it, and ended there without a word."""
    directory = MemoryDirectory()
    with Log.open(directory, LogConfig(segment_bytes=250)) as log:
        for number in range(9):
            log.append(b"%d" % number * 20)
        first, second = log.segments[:2]
    name = f"{second.base_offset:020d}.log"
    held = bytearray(directory.read(name))
    size = 12 + int.from_bytes(held[8:12], "big")
    held[23:27] = (1000).to_bytes(4, "big")
    directory.replace(name, with_right_crc(held[:size]) + held[size:])
    with Log.open(directory, LogConfig(segment_bytes=250), mode=mode) as log:
        scan = log.scan()
        assert [record.offset for record in itertools.islice(scan, first.next_offset)] == list(range(first.next_offset))
        with pytest.raises(CorruptBatch, match="beyond the end") as caught:
            next(scan)
        assert caught.value.next_offset == second.next_offset
        assert [record.offset for record in log.scan(second.next_offset)] == list(range(second.next_offset, 9))
        assert not log.verify()


@pytest.mark.parametrize("text", ["9" * 400 + "h", "1h" + "9" * 400 + ".5m"])
def test_a_duration_that_is_no_number_any_more_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="too large"):
        parsing.duration_ms(text)
    with pytest.raises(ValueError, match="not an offset or a range"):
        parsing.parse(f"@2026-11-01:+{text}")


def test_a_size_that_is_no_number_any_more_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="too large"):
        units.size_bytes("9" * 400 + ".5GiB")


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_its_zone_moves_out_of_the_calendar_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="outside the supported range"):
        parsing.time_ms(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingTimestamp", "--5"),
        ("startingTimestamp", "9" * 5000),
        ("startingOffsets", DEEP),
        ("startingOffsets", '{"orders": {"%s": 1}}' % ("9" * 5000)),
        ("minPartitions", "9" * 5000),
        ("maxPartitionBytes", "9" * 5000 + "k"),
        ("maxTriggerDelay", "9" * 5000 + "s"),
        ("maxOffsetsPerTrigger", str(2**63)),
    ],
    ids=lambda text: text[:20],
)
def test_a_spark_option_that_is_no_number_any_more_is_an_invalid_config(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=f"option {name.lower()}="):
        read_options({"path": "x", "subscribe": "orders", name: value}, streaming=False)


def test_a_spark_option_may_be_the_largest_number_of_java() -> None:
    given = {"path": "x", "subscribe": "orders", "maxOffsetsPerTrigger": str(2**63 - 1), "startingTimestamp": "-5"}
    found = read_options(given, streaming=False)
    assert found.max_offsets == 2**63 - 1
    assert found.start is not None
    assert found.start.time_ms == -5


def test_a_lock_timeout_that_is_no_number_any_more_is_an_invalid_config() -> None:
    with pytest.raises(InvalidConfig, match="option locktimeout="):
        write_options({"path": "x", "lockTimeout": "9" * 400})


def test_an_empty_line_in_the_producers_file_is_damage() -> None:
    with pytest.raises(CorruptFile, match="a line is empty"):
        ProducersFile.decode(
            TitledFile("it", "sawlog producers ").encode(
                "2 24\nleader epoch 0\nsegment 0\n0 0 0 1 0 1 5\n\n0 0 6 7 6 7 5\n"
            )
        )
