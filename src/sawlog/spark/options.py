"""The options of `format("sawlog")`: those of Spark's own Kafka source and sink, and a few of ours.

Spark hands options over as text, with names in lower case. Each is read here, once, into a value; a wrong one raises
`InvalidConfig` with its name, what was given and what would be right. An option that nobody knows is an error, because
a misspelt `startingOffset` that is ignored reads the wrong data. Options that begin with `kafka.` are for clients of a
broker: they are taken and ignored, so that a job moves over by changing the format and giving a path.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from ..batch.compression import CODECS, check_level
from ..batch.text import parse_json
from ..errors import InvalidConfig
from .positions import RESERVED

#: The columns in their order; `headers` only with includeHeaders.
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")

_READ = {
    "path": "the store's directory",
    "subscribe": "topics, separated by commas",
    "subscribepattern": "a regular expression for topics",
    "assign": 'partitions as JSON: {"orders": [0, 2]}',
    "startingoffsets": 'earliest, latest or JSON: {"orders": {"0": 23, "1": -2}} (-2 earliest, -1 latest)',
    "endingoffsets": "latest or JSON; for batches",
    "startingtimestamp": "milliseconds since 1970, or an ISO time",
    "endingtimestamp": "milliseconds since 1970, or an ISO time; for batches",
    "startingoffsetsbytimestamp": 'JSON: {"orders": {"0": 1700000000000}}',
    "endingoffsetsbytimestamp": "JSON; for batches",
    "startingoffsetsbytimestampstrategy": "error or latest: what to do where nothing is so young",
    "failondataloss": "true or false",
    "includeheaders": "true or false",
    "columns": "the columns to read, separated by commas",
    "minpartitions": "at least so many tasks",
    "maxrecordsperpartition": "at most so many records a task",
    "maxpartitionbytes": "about so many bytes a task",
    "maxoffsetspertrigger": "at most so many records a micro-batch",
    "minoffsetspertrigger": "wait for so many records",
    "maxtriggerdelay": "but no longer than this: 15m",
    "groupid": "the consumer group that shows the query's progress",
    "groupidprefix": "ignored: see groupId",
}
_WRITE = {
    "path": "the store's directory",
    "topic": "the topic for rows without a topic column",
    "partitions": "make topics that are missing, with so many partitions",
    "compression": "none, gzip, snappy, lz4 or zstd; else what the topic says",
    "compressionlevel": "how hard the compression tries; zstd without it: 1",
    "batchbytes": "about so large are the batches",
    "includeheaders": "taken and ignored: a column headers is written if there is one",
    "txnappid": "with txnVersion, as for Delta: a batch that is stored once, however often it is tried",
    "txnversion": "the number of the batch; only a higher one than the last of that txnAppId is stored",
    "locktimeout": "how long to wait for a partition that another process writes: 60s",
    "checkpointlocation": "Spark's own",
    "queryname": "Spark's own",
}
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?(?:illiseconds?|econds?|inutes?|ours?|ays?)?")

EARLIEST, LATEST = -2, -1
#: Tasks are bound by their CPU. Against Kafka's default, 3, this takes half the time (random text) to two thirds (JSON)
#: for 0 to 4 % more bytes; upkeep can pack old segments tighter (`recompress.after.ms`).
ZSTD_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Point:
    """Where to start or to end: the same for all partitions, or for each; offsets, or times in ms."""

    kind: Literal["earliest", "latest", "offsets", "time", "times"]
    time_ms: int = 0
    #: For "offsets" and "times".
    each: tuple[tuple[str, int, int], ...] = ()
    #: The option that it came from, for messages.
    option: str = ""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions: exactly one of these."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read."""

    path: str
    subscription: Subscription
    start: Point | None
    end: Point
    later_than_all: Literal["error", "latest"]
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    min_partitions: int | None
    max_records: int | None
    max_partition_bytes: int | None
    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int
    group: str | None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How to write."""

    path: str
    topic: str | None
    partitions: int | None
    compression: str | None
    batch_bytes: int
    lock_timeout_s: float
    #: The name and the number of a batch that is stored once, both or neither.
    transaction: tuple[str, int] | None = None
    #: None: the codec's default.
    compression_level: int | None = None


class _Given:
    """The options that were given, each read as what it should be."""

    def __init__(self, options: Mapping[str, str], known: Mapping[str, str]) -> None:
        self._options = {name.lower(): str(value) for name, value in options.items()}
        for name in self._options:
            if name not in known and not name.startswith("kafka."):
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]} ({known[near[0]]})?" if near else f"; there are {', '.join(known)}"
                raise InvalidConfig(f"sawlog has no option {name}{hint}")
        self._known = known

    def wrong(self, name: str) -> InvalidConfig:
        """The error for a value that cannot be."""
        return InvalidConfig(f"option {name}={self._options.get(name)!r} is not {self._known[name]}")

    def text(self, name: str) -> str | None:
        """A text that is not empty."""
        value = self._options.get(name)
        if value is not None and not value.strip():
            raise self.wrong(name)
        return value

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self._options.get(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise self.wrong(name)
        return value.lower() == "true"

    def number(self, name: str, least: int = 1) -> int | None:
        """A whole number."""
        found = self.integer(name)
        if found is not None and found < least:
            raise self.wrong(name)
        return found

    def integer(self, name: str) -> int | None:
        """A whole number, perhaps below zero."""
        value = self._options.get(name)
        if value is None:
            return None
        digits = value.strip()
        found = _whole(digits.removeprefix("-"))
        if found is None:
            raise self.wrong(name)
        return -found if digits.startswith("-") else found

    def size(self, name: str) -> int | None:
        """Bytes, also as 64m or 64MB."""
        value = self._options.get(name)
        if value is None:
            return None
        found = re.fullmatch(r"(\d+)\s*([kmg]?)i?b?", value.strip().lower())
        number = None if found is None else _whole(found[1])
        if found is None or number is None or number < 1:
            raise self.wrong(name)
        return number << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]]

    def duration_ms(self, name: str, default: int) -> int:
        """90s, 15m, 2 hours; a bare number is milliseconds."""
        value = self._options.get(name)
        if value is None:
            return default
        found = _DURATION.fullmatch(value.strip().lower())
        number = None if found is None else _whole(found[1])
        if found is None or number is None:
            raise self.wrong(name)
        return number * _UNITS[found[2] or "ms"]

    def time(self, name: str) -> int | None:
        """A moment in ms since 1970."""
        value = self._options.get(name)
        if value is None:
            return None
        sign, digits = (-1, value.strip()[1:]) if value.strip().startswith("-") else (1, value.strip())
        if digits.isdecimal():
            number = _whole(digits)
            if number is None:
                raise self.wrong(name)
            return sign * number
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            raise self.wrong(name) from None
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        return int(moment.timestamp() * 1000)

    def each(self, name: str) -> tuple[tuple[str, int, int], ...] | None:
        """{"topic": {"0": number}} as JSON."""
        value = self._options.get(name)
        if value is None:
            return None
        found = _json(value)
        made: list[tuple[str, int, int]] = []
        if not isinstance(found, dict):
            raise self.wrong(name)
        found.pop(RESERVED, None)  # it was copied from a checkpoint
        for topic, numbers in found.items():
            if not isinstance(numbers, dict):
                raise self.wrong(name)
            for partition, number in numbers.items():
                which = _whole(partition)
                if which is None or isinstance(number, bool) or not isinstance(number, int):
                    raise self.wrong(name)
                made.append((topic, which, number))
        return tuple(sorted(made))


def _whole(text: str) -> int | None:
    """A number from 0 on that fits into Java's long, which the other end of Spark has."""
    if not text.isdecimal() or len(text) > 19:
        return None
    return number if (number := int(text)) < 2**63 else None


def _json(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return None


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """The options of `spark.read` or `spark.readStream`."""
    given = _Given(options, _READ)
    path = given.text("path")
    if path is None:
        raise InvalidConfig('sawlog needs the store: .option("path", DIRECTORY), or .load(DIRECTORY)')
    if streaming:
        for name in ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"):
            if given.text(name) is not None:
                raise InvalidConfig(f"a stream has no end: option {name} is for batches")
    strategy = given.text("startingoffsetsbytimestampstrategy") or "error"
    if strategy not in ("error", "latest"):
        raise given.wrong("startingoffsetsbytimestampstrategy")
    return ReadOptions(
        path=path,
        subscription=_subscription(given),
        start=_point(given, "starting"),
        end=_point(given, "ending") or Point("latest"),
        later_than_all=strategy,  # type: ignore[arg-type]
        fail_on_data_loss=given.flag("failondataloss", True),
        columns=_columns(given),
        min_partitions=given.number("minpartitions"),
        max_records=given.number("maxrecordsperpartition"),
        max_partition_bytes=given.size("maxpartitionbytes"),
        max_offsets=given.number("maxoffsetspertrigger"),
        min_offsets=given.number("minoffsetspertrigger"),
        max_delay_ms=given.duration_ms("maxtriggerdelay", 15 * 60_000),
        group=given.text("groupid"),
    )


def _columns(given: _Given) -> tuple[str, ...]:
    everything = (*COLUMNS, "headers")
    chosen = given.text("columns")
    if chosen is None:
        return everything if given.flag("includeheaders", False) else COLUMNS
    by_name = {name.lower(): name for name in everything}
    names = [name.strip().lower() for name in chosen.split(",")]
    if not all(name in by_name for name in names) or len(set(names)) < len(names):
        raise InvalidConfig(f"option columns={chosen!r} is not a choice of {', '.join(everything)}")
    return tuple(by_name[name] for name in names)


def _subscription(given: _Given) -> Subscription:
    chosen = [name for name in ("subscribe", "subscribepattern", "assign") if given.text(name) is not None]
    if len(chosen) != 1:
        said = "none was given" if not chosen else f"{' and '.join(chosen)} were given"
        raise InvalidConfig(f"one of the options subscribe, subscribePattern and assign says what to read; {said}")
    if chosen == ["subscribe"]:
        topics = tuple(name.strip() for name in (given.text("subscribe") or "").split(","))
        if not all(topics):
            raise given.wrong("subscribe")
        return Subscription(topics=tuple(dict.fromkeys(topics)))
    if chosen == ["subscribepattern"]:
        pattern = given.text("subscribepattern") or ""
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidConfig(f"option subscribePattern={pattern!r} is no regular expression: {error}") from error
        return Subscription(pattern=pattern)
    return Subscription(assigned=_assigned(given))


def _assigned(given: _Given) -> tuple[tuple[str, tuple[int, ...]], ...]:
    found = _json(given.text("assign") or "")
    if not isinstance(found, dict) or not found:
        raise given.wrong("assign")
    made: list[tuple[str, tuple[int, ...]]] = []
    for topic, numbers in found.items():
        if not isinstance(numbers, list) or not numbers:
            raise given.wrong("assign")
        if any(isinstance(each, bool) or not isinstance(each, int) or each < 0 for each in numbers):
            raise given.wrong("assign")
        made.append((topic, tuple(sorted(set(numbers)))))
    return tuple(sorted(made))


def _point(given: _Given, which: str) -> Point | None:
    """By Kafka's precedence: one time for all, times for each, then offsets."""
    moment = given.time(f"{which}timestamp")
    if moment is not None:
        return Point("time", time_ms=moment, option=f"{which}Timestamp")
    times = given.each(f"{which}offsetsbytimestamp")
    if times is not None:
        return Point("times", each=times, option=f"{which}OffsetsByTimestamp")
    name = f"{which}offsets"
    text = given.text(name)
    if text is None:
        return None
    if text.lower() == "latest":
        return Point("latest", option=f"{which}Offsets")
    if text.lower() == "earliest":
        if which == "ending":
            raise InvalidConfig("option endingOffsets=earliest would read nothing; it is latest or JSON")
        return Point("earliest", option=f"{which}Offsets")
    offsets = given.each(name)
    if offsets is None or any(number < EARLIEST for _, _, number in offsets):
        raise given.wrong(name)
    if which == "ending" and any(number == EARLIEST for _, _, number in offsets):
        raise InvalidConfig("option endingOffsets: -2 (earliest) would read nothing; -1 is latest")
    return Point("offsets", each=offsets, option=f"{which}Offsets")


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of `df.write` or `df.writeStream`."""
    given = _Given(options, _WRITE)
    path = given.text("path")
    if path is None:
        raise InvalidConfig('sawlog needs the store: .option("path", DIRECTORY), or .save(DIRECTORY)')
    compression, level = _compression(given)
    name, number = given.text("txnappid"), given.number("txnversion", 0)
    if (name is None) != (number is None):
        raise InvalidConfig("the options txnAppId and txnVersion go together")
    return WriteOptions(
        path=path,
        topic=given.text("topic"),
        partitions=given.number("partitions"),
        compression=compression,
        batch_bytes=given.size("batchbytes") or 128 << 10,
        lock_timeout_s=given.duration_ms("locktimeout", 60_000) / 1000,
        transaction=None if name is None or number is None else (name, number),
        compression_level=level,
    )


def _compression(given: _Given) -> tuple[str | None, int | None]:
    name, level = given.text("compression"), given.integer("compressionlevel")
    if name is None:
        if level is not None:
            raise InvalidConfig("the option compressionLevel needs the option compression")
        return None, None
    if name not in CODECS:
        raise given.wrong("compression")
    check_level(CODECS[name], level)
    return name, ZSTD_LEVEL if name == "zstd" and level is None else level
