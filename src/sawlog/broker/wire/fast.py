"""Handwritten readers and writers for Produce and Fetch, which a broker uses for every batch.

The tables in `messages/records.py` define the same, and `tests/broker/wire/test_fast.py` compares both: the same dicts
from the same bytes, the same bytes from the same dicts, an error where the tables give one. Only the server side is
here: requests are read, responses are written. Rare cases are left to the tables. Each function returns the function
for one version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from struct import Struct
from typing import Any, Final

from ...errors import Malformed, Unencodable
from .messages.records import FETCH, PRODUCE
from .reading import ELEMENTS_MAX, UNREADABLE, Decoder, decoder, skip_tags, uvarint
from .schema import INT64_MAX, Body, Field
from .writing import (
    UNWRITABLE,
    Encoder,
    Sink,
    defaults_of,
    put_compact_length,
    put_int32_length,
    records_of,
    tags_writer,
    unknown,
    value_writer,
)

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_TWO_INT32: Final = Struct(">ii")
_ERROR_AND_SESSION: Final = Struct(">hi")
_UUID: Final = Struct(">16s")
_NIL: Final = bytes(16)


# --- reading -----------------------------------------------------------------------------------------------------


def _text(frame: memoryview, position: int) -> tuple[str, int]:
    """Return a string with a 16-bit length."""
    (length,) = _INT16.unpack_from(frame, position)
    position += 2
    end = position + length
    if length < 0 or end > len(frame):
        raise Malformed(f"a string of {length} bytes is null or ends after the message")
    return str(frame[position:end], "utf-8"), end


def _nullable_text(frame: memoryview, position: int, flexible: bool) -> tuple[str | None, int]:
    if flexible:
        return (None, position + 1) if frame[position] == 0 else _compact_text(frame, position)
    if _INT16.unpack_from(frame, position)[0] == -1:
        return None, position + 2
    return _text(frame, position)


def _compact_text(frame: memoryview, position: int) -> tuple[str, int]:
    length = frame[position]
    position += 1
    if length >= 0x80:
        length, position = uvarint(frame, position - 1)
    end = position + length - 1
    if length == 0 or end > len(frame):
        raise Malformed(f"a string of {length - 1} bytes is null or ends after the message")
    return str(frame[position:end], "utf-8"), end


def _count(frame: memoryview, position: int, element_bytes_min: int) -> tuple[int, int]:
    """Return the 32-bit length of an array that is not null, if so many elements can be in the frame."""
    (length,) = _INT32.unpack_from(frame, position)
    position += 4
    if length < 0 or length * element_bytes_min > len(frame) - position:
        raise Malformed(f"an array claims {length} elements: it is null or does not fit into the message")
    return length, position


def _compact_count(frame: memoryview, position: int, element_bytes_min: int) -> tuple[int, int]:
    length = frame[position]
    position += 1
    if length >= 0x80:
        length, position = uvarint(frame, position - 1)
    length -= 1
    if length < 0 or length * element_bytes_min > len(frame) - position:
        raise Malformed(f"an array claims {length} elements: it is null or does not fit into the message")
    return length, position


def _uuid(frame: memoryview, position: int) -> tuple[bytes, int]:
    value = bytes(frame[position : position + 16])
    if len(value) != 16:
        raise Malformed("a uuid ends after the message")
    return value, position + 16


def _guarded(read: Decoder) -> Decoder:
    def decode(frame: memoryview, position: int) -> Body:
        try:
            return read(frame, position)
        except UNREADABLE as error:
            raise Malformed(f"the message ends too early or is not text: {error}") from error

    return decode


def _after_tags(frame: memoryview, position: int) -> int:
    return position + 1 if frame[position] == 0 else skip_tags(frame, position)


def produce_request(version: int) -> Decoder:
    """Return the reader of a Produce request."""
    flexible, by_id = version >= 9, version >= 13
    text, count = (_compact_text, _compact_count) if flexible else (_text, _count)
    topic_bytes_min = 18 if by_id else 3 if flexible else 6
    partition_bytes_min = 6 if flexible else 8
    head = Struct(">hi")  # acks, timeout_ms

    def read(frame: memoryview, position: int) -> Body:
        transactional_id = None
        if version >= 3:
            transactional_id, position = _nullable_text(frame, position, flexible)
        acks, timeout_ms = head.unpack_from(frame, position)
        topics, position = count(frame, position + 6, topic_bytes_min)
        places = topics
        topic_data = []
        for _ in range(topics):
            name, topic_id = "", _NIL
            if by_id:
                topic_id, position = _uuid(frame, position)
            else:
                name, position = text(frame, position)
            partitions, position = count(frame, position, partition_bytes_min)
            places += partitions
            if places > ELEMENTS_MAX:
                raise Malformed(f"records for more than {ELEMENTS_MAX:,} topics and partitions")
            partition_data = []
            for _ in range(partitions):
                if flexible:
                    (index,) = _INT32.unpack_from(frame, position)
                    length, position = uvarint(frame, position + 4)
                    length -= 1
                else:
                    index, length = _TWO_INT32.unpack_from(frame, position)
                    position += 8
                records = None
                if length >= 0:
                    end = position + length
                    if end > len(frame):
                        raise Malformed(f"records of {length} bytes end after the message")
                    records = frame[position:end]
                    position = end
                elif length != -1:
                    raise Malformed(f"records have the negative length {length}")
                if flexible:
                    position = _after_tags(frame, position)
                partition_data.append({"index": index, "records": records})
            if flexible:
                position = _after_tags(frame, position)
            topic_data.append({"name": name, "topic_id": topic_id, "partition_data": partition_data})
        if flexible:
            _after_tags(frame, position)
        return {
            "transactional_id": transactional_id,
            "acks": acks,
            "timeout_ms": timeout_ms,
            "topic_data": topic_data,
        }

    return _guarded(read)


def fetch_request(version: int) -> Decoder:
    """Return the reader of a Fetch request.

    The table reads versions below 9, which only old clients use, and tagged fields, which only a follower sends.
    """
    flexible, by_id = version >= 12, version >= 13
    by_table = decoder(FETCH.request, version, flexible=flexible, elements_max=ELEMENTS_MAX)
    if version < 9:
        return by_table
    text, count = (_compact_text, _compact_count) if flexible else (_text, _count)
    topic_bytes_min = 18 if by_id else 3 if flexible else 6
    # replica_id until 14, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch
    head = Struct(">iiiibii" if version < 15 else ">iiibii")
    # partition, current_leader_epoch, fetch_offset, last_fetched_epoch from 12, log_start_offset, partition_max_bytes
    item = Struct(">iiqiqi" if flexible else ">iiqqi")
    item_bytes_min = item.size + (1 if flexible else 0)

    def read_partitions(frame: memoryview, position: int) -> tuple[list[Body], int]:
        length, position = count(frame, position, item_bytes_min)
        partitions = []
        for _ in range(length):
            if flexible:
                index, leader_epoch, offset, last_epoch, log_start, size = item.unpack_from(frame, position)
                position = _no_tags(frame, position + item.size)
            else:
                index, leader_epoch, offset, log_start, size = item.unpack_from(frame, position)
                last_epoch = -1
                position += item.size
            partitions.append(
                {
                    "partition": index,
                    "current_leader_epoch": leader_epoch,
                    "fetch_offset": offset,
                    "last_fetched_epoch": last_epoch,
                    "log_start_offset": log_start,
                    "partition_max_bytes": size,
                    "replica_directory_id": _NIL,
                    "high_watermark": INT64_MAX,
                }
            )
        return partitions, position

    def read_indexes(frame: memoryview, position: int) -> tuple[list[int], int]:
        length, position = count(frame, position, 4)
        return list(Struct(f">{length}i").unpack_from(frame, position)), position + 4 * length

    def read_topics(
        frame: memoryview, position: int, read_inner: Callable[[memoryview, int], tuple[list[Any], int]]
    ) -> tuple[list[Body], int]:
        length, position = count(frame, position, topic_bytes_min)
        if length > ELEMENTS_MAX:
            raise Malformed(f"a fetch of {length:,} topics; the most is {ELEMENTS_MAX:,}")
        topics = []
        for _ in range(length):
            name, topic_id = "", _NIL
            if by_id:
                topic_id, position = _uuid(frame, position)
            else:
                name, position = text(frame, position)
            partitions, position = read_inner(frame, position)
            if flexible:
                position = _no_tags(frame, position)
            topics.append({"topic": name, "topic_id": topic_id, "partitions": partitions})
        return topics, position

    def read(frame: memoryview, position: int) -> Body:
        start = position
        try:
            *replica, max_wait_ms, min_bytes, max_bytes, isolation, session, epoch = head.unpack_from(frame, position)
            topics, position = read_topics(frame, position + head.size, read_partitions)
            forgotten, position = read_topics(frame, position, read_indexes)
            rack_id = ""
            if version >= 11:
                rack_id, position = text(frame, position)
            if flexible:
                _no_tags(frame, position)
        except _Tagged:
            return by_table(frame, start)
        return {
            "cluster_id": None,
            "replica_id": replica[0] if replica else -1,
            "replica_state": {"replica_id": -1, "replica_epoch": -1},
            "max_wait_ms": max_wait_ms,
            "min_bytes": min_bytes,
            "max_bytes": max_bytes,
            "isolation_level": isolation,
            "session_id": session,
            "session_epoch": epoch,
            "topics": topics,
            "forgotten_topics_data": forgotten,
            "rack_id": rack_id,
        }

    return _guarded(read)


class _Tagged(Exception):
    """A tagged field that the table has to read."""


def _no_tags(frame: memoryview, position: int) -> int:
    if frame[position]:
        raise _Tagged
    return position + 1


# --- writing -----------------------------------------------------------------------------------------------------


class _Part:
    """A struct of a response: its defaults, and its tagged fields as the table writes them."""

    __slots__ = ("count", "defaults", "put_tags", "what")

    def __init__(self, what: str, fields: Sequence[Field], version: int) -> None:
        self.what = what
        self.defaults = defaults_of(fields, version)
        self.count = len(self.defaults)
        self.put_tags = tags_writer(fields, version)

    def complete(self, given: Body) -> Body:
        """Return the struct with all its fields."""
        body = {**self.defaults, **given}
        if len(body) != self.count:
            raise unknown(self.what, given, self.defaults)
        return body


def _inner(fields: Sequence[Field], *path: str) -> tuple[Field, ...]:
    """Return the fields of an array below `fields`."""
    for name in path:
        (found,) = (field.inner for field in fields if field.name == name)
        assert isinstance(found, tuple)
        fields = found
    return tuple(fields)


def _refusing(write: Encoder, what: str, version: int) -> Encoder:
    def encode(sink: Sink, body: Body) -> None:
        try:
            write(sink, body)
        except Unencodable:
            raise
        except UNWRITABLE as error:
            raise Unencodable(f"{what} version {version}: {error}") from error

    return encode


def _topic_writer(name_field: str, *, flexible: bool, by_id: bool) -> Callable[[Sink, Body], None]:
    """Return a function that writes which topic it is."""

    def write(sink: Sink, topic: Body) -> None:
        if by_id:
            sink += _UUID.pack(topic["topic_id"])
            return
        name = topic[name_field].encode()
        if flexible:
            put_compact_length(sink, len(name))
        else:
            sink += _INT16.pack(len(name))
        sink += name

    return write


def produce_response(version: int) -> Encoder:
    """Return the writer of a Produce response."""
    flexible = version >= 9
    responses = _inner(PRODUCE.response, "responses")
    partition_responses = _inner(responses, "partition_responses")
    whole = _Part("Produce response", PRODUCE.response, version)
    topic = _Part("responses", responses, version)
    partition = _Part("partition_responses", partition_responses, version)
    put_length = put_compact_length if flexible else put_int32_length
    put_topic = _topic_writer("name", flexible=flexible, by_id=version >= 13)
    count = 5 if version >= 5 else 4 if version >= 2 else 3
    names = ("index", "error_code", "base_offset", "log_append_time_ms", "log_start_offset")[:count]
    item, numbers = Struct(">ihqqq"[: 1 + count]), itemgetter(*names)
    # Fields that occur only after an error are left to the table's writers.
    by_name = {field.name: field for field in partition_responses}
    put_record_errors = value_writer(by_name["record_errors"], version, flexible=flexible)
    put_error_message = value_writer(by_name["error_message"], version, flexible=flexible)
    no_error = b"\1\0" if flexible else b"\0\0\0\0\xff\xff"

    def write(sink: Sink, given: Body) -> None:
        body = whole.complete(given)
        put_length(sink, len(body["responses"]))
        for given_topic in body["responses"]:
            response = topic.complete(given_topic)
            put_topic(sink, response)
            put_length(sink, len(response["partition_responses"]))
            for given_partition in response["partition_responses"]:
                answer = partition.complete(given_partition)
                sink += item.pack(*numbers(answer))
                if version >= 8:
                    if answer["record_errors"] == () and answer["error_message"] is None:
                        sink += no_error
                    else:
                        put_record_errors(sink, answer["record_errors"])
                        put_error_message(sink, answer["error_message"])
                if flexible:
                    partition.put_tags(sink, answer)
            if flexible:
                sink.append(0)
        if version >= 1:
            sink += _INT32.pack(body["throttle_time_ms"])
        if flexible:
            whole.put_tags(sink, body)

    return _refusing(write, "Produce response", version)


def fetch_response(version: int) -> Encoder:
    """Return the writer of a Fetch response. Records are passed on without being copied."""
    flexible = version >= 12
    responses = _inner(FETCH.response, "responses")
    partitions = _inner(responses, "partitions")
    whole = _Part("Fetch response", FETCH.response, version)
    topic = _Part("responses", responses, version)
    partition = _Part("partitions", partitions, version)
    put_length = put_compact_length if flexible else put_int32_length
    put_topic = _topic_writer("topic", flexible=flexible, by_id=version >= 13)
    count = 5 if version >= 5 else 4
    names = ("partition_index", "error_code", "high_watermark", "last_stable_offset", "log_start_offset")[:count]
    item, numbers = Struct(">ihqqq"[: 1 + count]), itemgetter(*names)
    by_name = {field.name: field for field in partitions}
    put_aborted = value_writer(by_name["aborted_transactions"], version, flexible=flexible)

    def write(sink: Sink, given: Body) -> None:
        body = whole.complete(given)
        sink += _INT32.pack(body["throttle_time_ms"])
        if version >= 7:
            sink += _ERROR_AND_SESSION.pack(body["error_code"], body["session_id"])
        put_length(sink, len(body["responses"]))
        for given_topic in body["responses"]:
            response = topic.complete(given_topic)
            put_topic(sink, response)
            put_length(sink, len(response["partitions"]))
            for given_partition in response["partitions"]:
                answer = partition.complete(given_partition)
                sink += item.pack(*numbers(answer))
                if answer["aborted_transactions"] is None:
                    put_length(sink, -1)
                else:
                    put_aborted(sink, answer["aborted_transactions"])
                if version >= 11:
                    sink += _INT32.pack(answer["preferred_read_replica"])
                if answer["records"] is None:
                    put_length(sink, -1)
                else:
                    buffers, size = records_of(answer["records"])
                    put_length(sink, size)
                    if size:
                        sink.splice(buffers, size)
                if flexible:
                    partition.put_tags(sink, answer)
            if flexible:
                sink.append(0)
        if flexible:
            whole.put_tags(sink, body)

    return _refusing(write, "Fetch response", version)
