"""The options and columns of `format("sawlog")`: those of Spark's Kafka source and sink, and a few more.

Spark passes options as text, with names in lower case. This module parses each one once; an invalid one raises
`InvalidConfig` with its name, its value and the values allowed. An unknown option is an error, because ignoring a
misspelt `startingOffset` would read the wrong data. Options for clients of a broker (`kafka.*`, `kafkaConsumer.*`,
`fetchOffset.*`) are accepted and ignored, so that a job migrates by changing the format and adding a path.
Contradictory options are errors wherever Kafka's source rejects them.

For a store on object storage, such as s3://bucket/store, the connection options (`endpoint`, `region`, `access_key_id`,
...; see `sawlog.store.objects.bucket`) are passed on. They may contain credentials, so no `repr` shows them.
`StoreLocation` carries them to the tasks; options that are not given come from the environment of each process, the
driver's or the worker's.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, overload

from ..addresses import is_address
from ..batch.compression import CODECS, check_level
from ..batch.text import parse_json
from ..clock import milliseconds
from ..config import Isolation
from ..errors import InvalidConfig
from ..store.objects.bucket import is_option

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

T = TypeVar("T")

#: The key for everything but offsets in a position (see subscription.py).
RESERVED = "$sawlog"

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?(?:illiseconds?|econds?|inutes?|ours?|ays?)?")
#: Prefixes of options that configure Kafka clients.
_CLIENT_PREFIXES = ("kafka.", "kafkaconsumer.", "fetchoffset.")


class OptionParser:
    """The options that were given, each parsed on access."""

    def __init__(self, options: Mapping[str, str], known: Mapping[str, str]) -> None:
        self._options = {name.lower(): str(value) for name, value in options.items()}
        for name in self._options:
            if name not in known and not name.startswith(_CLIENT_PREFIXES):
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]} ({known[near[0]]})?" if near else f"; use one of {', '.join(known)}"
                raise InvalidConfig(f"sawlog has no option {name}{hint}")
        self._known = known

    def wrong(self, name: str) -> InvalidConfig:
        """Return the error for an invalid value."""
        return InvalidConfig(f"option {name}={self._options.get(name)!r} is not {self._known[name]}")

    def text(self, name: str) -> str | None:
        """Return a non-empty text."""
        return self.get(name, lambda value: value if value.strip() else None)

    @overload
    def get(self, name: str, parse: Callable[[str], T | None]) -> T | None: ...
    @overload
    def get(self, name: str, parse: Callable[[str], T | None], default: T) -> T: ...
    def get(self, name: str, parse: Callable[[str], T | None], default: T | None = None) -> T | None:
        """Parse an option; `default` if it is not given. `parse` returns None for an invalid value."""
        value = self._options.get(name)
        if value is None:
            return default
        found = parse(value)
        if found is None:
            raise self.wrong(name)
        return found


# --- values: each function returns None for an invalid one


def _whole(text: str) -> int | None:
    """Parse a non-negative integer that fits into a Java long."""
    if not text.isdecimal() or len(text) > 19:
        return None
    return number if (number := int(text)) < 2**63 else None


def _integer(text: str) -> int | None:
    text = text.strip()
    found = _whole(text.removeprefix("-"))
    return -found if found is not None and text.startswith("-") else found


def _natural(text: str) -> int | None:
    """Parse an integer of at least 0."""
    found = _integer(text)
    return found if found is None or found >= 0 else None


def _positive(text: str) -> int | None:
    return _natural(text) or None


def _flag(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _size(text: str) -> int | None:
    """Parse a number of bytes, such as 64m or 64MB."""
    found = re.fullmatch(r"(\d+)\s*([kmg]?)i?b?", text.strip().lower())
    number = None if found is None else _whole(found[1])
    return number << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]] if found is not None and number else None


def _duration_ms(text: str) -> int | None:
    """Parse a duration: 90s, 15m, 2 hours; a bare number is milliseconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    number = None if found is None else _whole(found[1])
    return None if found is None or number is None else number * _UNITS[found[2] or "ms"]


def _time_ms(text: str) -> int | None:
    """Parse a time, in milliseconds since 1970."""
    text = text.strip()
    if text.removeprefix("-").isdecimal():
        return _integer(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return int(milliseconds(moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment))


def _numbers_by_partition(text: str) -> tuple[tuple[str, int, int], ...] | None:
    """Parse JSON of the form {"topic": {"0": number}}."""
    found = _json(text)
    if not isinstance(found, dict):
        return None
    found.pop(RESERVED, None)  # copied from a checkpoint
    made: list[tuple[str, int, int]] = []
    for topic, numbers in found.items():
        for partition, number in numbers.items() if isinstance(numbers, dict) else [("", None)]:
            which = _whole(partition)
            if which is None or isinstance(number, bool) or not isinstance(number, int):
                return None
            made.append((topic, which, number))
    return tuple(sorted(made))


def _assigned(text: str) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
    """Parse JSON of the form {"topic": [0, 1]}."""
    found = _json(text)
    if not isinstance(found, dict) or not found:
        return None
    for numbers in found.values():
        if not isinstance(numbers, list) or not numbers:
            return None
        if any(isinstance(each, bool) or not isinstance(each, int) or each < 0 for each in numbers):
            return None
    return tuple(sorted((topic, tuple(sorted(set(numbers)))) for topic, numbers in found.items()))


def _json(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return None


# --- the options


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Location of a store, with its connection options. Picklable: tasks receive it."""

    path: str
    #: The connection options for `sawlog.open`; None for a directory.
    options: Mapping[str, str] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.path


#: The columns, in order; `headers` is added by includeHeaders.
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
_ALL_COLUMNS = (*COLUMNS, "headers")

_READ = {
    "path": "the store's directory, or its address such as s3://bucket/store",
    "topic": "one topic, as subscribe",
    "subscribe": "topics, separated by commas",
    "subscribepattern": "a regular expression for topics",
    "assign": 'partitions as JSON: {"orders": [0, 2]}',
    "startingoffsets": 'earliest, latest or JSON: {"orders": {"0": 23, "1": -2}} (-2 earliest, -1 latest)',
    "endingoffsets": "latest or JSON; for batches",
    "startingtable": "true: begin with the topic's table (`sawlog pipeline table`), continue with the log; for streams",
    "startingtimestamp": "milliseconds since 1970, or an ISO time",
    "endingtimestamp": "milliseconds since 1970, or an ISO time; for batches",
    "startingoffsetsbytimestamp": 'JSON: {"orders": {"0": 1700000000000}}',
    "endingoffsetsbytimestamp": "JSON; for batches",
    "startingoffsetsbytimestampstrategy": "error or latest: what to do if no record is that recent",
    "failondataloss": "true or false",
    "includeheaders": "true or false",
    "columns": "the columns to read, separated by commas",
    "minpartitions": "minimum number of tasks",
    "maxrecordsperpartition": "maximum number of records per task",
    "maxpartitionbytes": "approximate maximum number of bytes per task",
    "maxoffsetspertrigger": "maximum number of records per micro-batch",
    "minoffsetspertrigger": "wait for this many records",
    "maxtriggerdelay": "maximum time to wait for minOffsetsPerTrigger, such as 15m",
    "groupid": "the consumer group that shows the query's progress",
    "groupidprefix": "ignored: see groupId",
    "snapshot": "the name of a snapshot: read the topics as they are in it",
    "isolation": "committed or uncommitted: whether records of open and aborted transactions are left out",
    "kafka.isolation.level": "read_committed or read_uncommitted: the same, as Kafka's consumers call it",
    "partition.metadata.cache.ttl.ms": "ignored: for clients of a broker",
}
_WRITE = {
    "path": "the store's directory, or its address such as s3://bucket/store",
    "topic": "the topic; takes precedence over a column topic",
    "partitions": "create missing topics with this many partitions",
    "createstore": "true: create the store if it does not exist",
    "compression": "none, gzip, snappy, lz4 or zstd; the topic's setting if not given",
    "compressionlevel": "the compression level; for zstd 1 if not given",
    "batchbytes": "approximate size of batches in bytes",
    "includeheaders": "accepted and ignored: a column headers is written if there is one",
    "txnappid": "with txnVersion, as for Delta: the batch is stored once, however often it is tried",
    "txnversion": "the number of the batch; only a higher one than the last of that txnAppId is stored",
    "replaycheck": "counts, content or off: how a repeated batch is compared with the stored one",
    "locktimeout": "how long to wait for a partition that another process writes, such as 60s",
    "checkpointlocation": "Spark's own",
    "queryname": "Spark's own",
}

ReplayCheck = Literal["counts", "content", "off"]
_REPLAY_CHECKS: dict[str, ReplayCheck] = {name: name for name in get_args(ReplayCheck)}
_LEVELS: dict[str, Isolation] = {name: name for name in get_args(Isolation)}
_KAFKA_LEVELS: dict[str, Isolation] = {"read_committed": "committed", "read_uncommitted": "uncommitted"}
_STRATEGIES: dict[str, Literal["error", "latest"]] = {"error": "error", "latest": "latest"}

EARLIEST, LATEST = -2, -1
#: Tasks are CPU-bound. Compared with Kafka's default, 3, this takes 50 % (random text) to 67 % (JSON) of the time
#: for 0 to 4 % more bytes; maintenance can recompress old segments at a higher level (`recompress.after.ms`).
ZSTD_LEVEL = 1


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Start or end of a read: one rule for all partitions or one per partition, as offsets or times in ms."""

    kind: Literal["earliest", "latest", "offsets", "time", "times"]
    time_ms: int = 0
    #: For "offsets" and "times".
    each: tuple[tuple[str, int, int], ...] = ()
    #: The option it was parsed from, for messages.
    option: str = ""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions to read. Exactly one field is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Parsed options of a read."""

    where: StoreLocation
    subscription: Subscription
    start: OffsetSpec | None
    end: OffsetSpec
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
    isolation: Isolation = "committed"
    #: A stream begins with the tables of its topics.
    starting_table: bool = False
    #: Name of the snapshot to read; None: the current topics.
    snapshot: str | None = None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Parsed options of a write."""

    where: StoreLocation
    topic: str | None
    partitions: int | None
    compression: str | None
    batch_bytes: int
    lock_timeout_s: float
    #: txnAppId and txnVersion of a batch that must be stored once.
    transaction: tuple[str, int] | None = None
    #: None: the codec's default.
    compression_level: int | None = None
    create_store: bool = False
    #: Strictness of the comparison of a replay with the stored batch.
    replay_check: ReplayCheck = "counts"


#: Options that Spark adds for a table in its catalog.
_OF_CATALOG = frozenset({"provider", "owner", "location"})
_NO_PATH = 'sawlog needs the path of the store: .option("path", DIRECTORY), .load(DIRECTORY) or .save(DIRECTORY)'
_NO_TABLE = (
    "a topic cannot be a table of Spark's catalog (CREATE TABLE … USING sawlog, saveAsTable): Spark does not pass the "
    "options of such a table to a Python data source that reads or writes it. Use CREATE TEMPORARY VIEW name "
    "(key BINARY, value BINARY) USING sawlog OPTIONS (path 'STORE', topic 'TOPIC'), for SELECT and INSERT, or df.write "
    "with .save()"
)


def _refuse_table(options: Mapping[str, str]) -> None:
    """Raise for a table of Spark's catalog. Spark 4.3 passes its options when it asks for the columns and none when it
    reads or writes; it creates a table with columns, and the table of saveAsTable, without asking."""
    if {name.lower() for name in options} >= _OF_CATALOG:
        raise InvalidConfig(_NO_TABLE)
    if not options:
        raise InvalidConfig(f"{_NO_PATH}. If this is a table, DROP it: {_NO_TABLE}")


def _parse(options: Mapping[str, str], known: Mapping[str, str]) -> tuple[StoreLocation, OptionParser]:
    """Separate the options of the connection, which only object storage has, and check the names of the others."""
    _refuse_table(options)
    storage: dict[str, str] = {}
    if is_address(next((str(value) for name, value in options.items() if name.lower() == "path"), "")):
        storage = {name: str(value) for name, value in options.items() if is_option(name.lower())}
    given = OptionParser({name: value for name, value in options.items() if name not in storage}, known)
    path = given.text("path")
    if path is None:
        raise InvalidConfig(_NO_PATH)
    return StoreLocation(path, {name.lower(): value for name, value in storage.items()} or None), given


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse the options of `spark.read` or `spark.readStream`."""
    where, given = _parse(options, _READ)
    if streaming:
        for name in ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"):
            if given.text(name) is not None:
                raise InvalidConfig(f"option {name} is for batches: a stream has no end")
    made = ReadOptions(
        where=where,
        subscription=_subscription(given),
        start=_point(given, "starting"),
        end=_point(given, "ending") or OffsetSpec("latest"),
        later_than_all=given.get("startingoffsetsbytimestampstrategy", _STRATEGIES.get, "error"),
        fail_on_data_loss=given.get("failondataloss", _flag, True),
        columns=_columns(given),
        min_partitions=given.get("minpartitions", _positive),
        max_records=given.get("maxrecordsperpartition", _positive),
        max_partition_bytes=given.get("maxpartitionbytes", _size),
        max_offsets=given.get("maxoffsetspertrigger", _positive),
        min_offsets=given.get("minoffsetspertrigger", _positive),
        max_delay_ms=given.get("maxtriggerdelay", _duration_ms, 15 * 60_000),
        group=given.text("groupid"),
        isolation=_isolation(given),
        starting_table=given.get("startingtable", _flag, False),
        snapshot=given.text("snapshot"),
    )
    if streaming:
        _check_stream(made)
    return made


def _check_stream(options: ReadOptions) -> None:
    """Check the options of a stream against each other."""
    least, most = options.min_offsets, options.max_offsets
    if least is not None and most is not None and least > most:
        raise InvalidConfig(f"option minOffsetsPerTrigger={least} is above maxOffsetsPerTrigger={most}")
    if options.starting_table and options.start is not None and options.start.kind != "earliest":
        raise InvalidConfig(
            f"options startingTable and {options.start.option} contradict each other: a table is read from its start"
        )


def _isolation(given: OptionParser) -> Isolation:
    """Parse `isolation`, or Kafka's name for it. Unlike Kafka's, the default reads committed records only."""
    kafkas: Isolation | None = given.get("kafka.isolation.level", _KAFKA_LEVELS.get)
    ours: Isolation | None = given.get("isolation", _LEVELS.get)
    if None not in (ours, kafkas) and ours != kafkas:
        said = given.text("kafka.isolation.level")
        raise InvalidConfig(f"options isolation={ours} and kafka.isolation.level={said} contradict each other")
    return ours or kafkas or "committed"


def check_range(options: ReadOptions) -> None:
    """Check the start and the end of a batch against each other, as Kafka's source does."""
    start, end = options.start, options.end
    if start is None:
        return
    if start.kind == "latest" or (start.kind == "offsets" and any(number == LATEST for _, _, number in start.each)):
        raise InvalidConfig("option startingOffsets: latest (-1) would read nothing in a batch; it is for streams")
    if start.kind == end.kind == "time" and start.time_ms > end.time_ms:
        raise InvalidConfig(f"option {start.option} is after {end.option}: {start.time_ms} > {end.time_ms}")
    if start.kind != end.kind or start.kind not in ("offsets", "times"):
        return
    first = {(topic, number): value for topic, number, value in start.each}
    last = {(topic, number): value for topic, number, value in end.each}
    if different := sorted(first.keys() ^ last.keys()):
        topic, number = different[0]
        raise InvalidConfig(
            f"options {start.option} and {end.option} must have the same partitions; only one of them has "
            f"partition {number} of {topic!r}"
        )
    for (topic, number), value in sorted(first.items()):
        if value > last[topic, number] and (start.kind == "times" or last[topic, number] >= 0):
            said = f"partition {number} of {topic!r}: {value} > {last[topic, number]}"
            raise InvalidConfig(f"option {start.option} is after {end.option} in {said}")


def _columns(given: OptionParser) -> tuple[str, ...]:
    chosen = given.text("columns")
    if chosen is None:
        return _ALL_COLUMNS if given.get("includeheaders", _flag, False) else COLUMNS
    by_name = {name.lower(): name for name in _ALL_COLUMNS}
    names = [name.strip().lower() for name in chosen.split(",")]
    if not all(name in by_name for name in names) or len(set(names)) < len(names):
        raise InvalidConfig(f"option columns={chosen!r} is not a selection of {', '.join(_ALL_COLUMNS)}")
    return tuple(by_name[name] for name in names)


def _subscription(given: OptionParser) -> Subscription:
    chosen = [name for name in ("subscribe", "topic", "subscribepattern", "assign") if given.text(name) is not None]
    if len(chosen) != 1:
        said = "none was given" if not chosen else f"{' and '.join(chosen)} were given"
        raise InvalidConfig(f"give exactly one of the options subscribe, subscribePattern and assign; {said}")
    if chosen == ["topic"]:
        return Subscription(topics=((given.text("topic") or "").strip(),))
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
            raise InvalidConfig(f"option subscribePattern={pattern!r} is not a regular expression: {error}") from error
        return Subscription(pattern=pattern)
    return Subscription(assigned=given.get("assign", _assigned) or ())


def _point(given: OptionParser, which: str) -> OffsetSpec | None:
    """Parse a start or an end, in Kafka's precedence: one time for all partitions, times per partition, offsets."""
    moment = given.get(f"{which}timestamp", _time_ms)
    if moment is not None:
        return OffsetSpec("time", time_ms=moment, option=f"{which}Timestamp")
    times = given.get(f"{which}offsetsbytimestamp", _numbers_by_partition)
    if times is not None:
        return OffsetSpec("times", each=times, option=f"{which}OffsetsByTimestamp")
    name = f"{which}offsets"
    text = given.text(name)
    if text is None:
        return None
    if text.lower() == "latest":
        return OffsetSpec("latest", option=f"{which}Offsets")
    if text.lower() == "earliest":
        if which == "ending":
            raise InvalidConfig("option endingOffsets=earliest would read nothing; use latest or JSON")
        return OffsetSpec("earliest", option=f"{which}Offsets")
    offsets = given.get(name, _numbers_by_partition)
    if offsets is None or any(number < EARLIEST for _, _, number in offsets):
        raise given.wrong(name)
    if which == "ending" and any(number == EARLIEST for _, _, number in offsets):
        raise InvalidConfig("option endingOffsets: -2 (earliest) would read nothing; use -1 for latest")
    return OffsetSpec("offsets", each=offsets, option=f"{which}Offsets")


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of `df.write` or `df.writeStream`."""
    where, given = _parse(options, _WRITE)
    compression, level = _compression(given)
    name, number = given.text("txnappid"), given.get("txnversion", _natural)
    if (name is None) != (number is None):
        raise InvalidConfig("give both of the options txnAppId and txnVersion, or neither")
    return WriteOptions(
        where=where,
        topic=given.text("topic"),
        partitions=given.get("partitions", _positive),
        compression=compression,
        batch_bytes=given.get("batchbytes", _size, 128 << 10),
        lock_timeout_s=given.get("locktimeout", _duration_ms, 60_000) / 1000,
        transaction=None if name is None or number is None else (name, number),
        compression_level=level,
        create_store=given.get("createstore", _flag, False),
        replay_check=given.get("replaycheck", _REPLAY_CHECKS.get, "counts"),
    )


def _compression(given: OptionParser) -> tuple[str | None, int | None]:
    name, level = given.text("compression"), given.get("compressionlevel", _integer)
    if name is None:
        if level is not None:
            raise InvalidConfig("the option compressionLevel needs the option compression")
        return None, None
    if name not in CODECS:
        raise given.wrong("compression")
    check_level(CODECS[name], level)
    return name, ZSTD_LEVEL if name == "zstd" and level is None else level


# --- the columns

_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
#: Columns that can be written, with their accepted types.
_WRITABLE = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": (_TYPES["headers"],),
}


def schema(options: Mapping[str, str]) -> str:
    """Return the DDL of the columns that the options select."""
    # Streaming-only options are allowed here: Spark asks for the schema before it knows whether this is a stream.
    return ", ".join(f"{name} {_TYPES[name]}" for name in read_options(options, streaming=False).columns)


def check_read_columns(shape: StructType) -> tuple[str, ...]:
    """Return the columns of a schema, which the user may have given: a selection of the known columns, with their
    types."""
    for column in shape.fields:
        known = _TYPES.get(column.name)
        if known is None:
            raise InvalidConfig(f"unknown column {column.name}; the columns are {', '.join(_ALL_COLUMNS)}")
        if column.dataType.simpleString() != known:
            raise InvalidConfig(
                f"the column {column.name} must be {known}, not {column.dataType.simpleString()}; cast it after reading"
            )
    return tuple(shape.fieldNames())


def check_written_columns(shape: StructType) -> tuple[str, ...]:
    """Return the columns to write, after checking their names and types."""
    names = tuple(shape.fieldNames())
    for column in shape.fields:
        kinds = _WRITABLE.get(column.name)
        if kinds is None:
            raise InvalidConfig(
                f"sawlog cannot store a column {column.name}; it accepts {', '.join(_WRITABLE)}. Put the rest into "
                "value, for example with to_json(struct(...)) AS value"
            )
        if column.dataType.simpleString() not in kinds:
            raise InvalidConfig(
                f"the column {column.name} must be {' or '.join(kinds)}, not {column.dataType.simpleString()}; cast it"
            )
    if "value" not in names:
        raise InvalidConfig(f"a column value is required; the columns are {', '.join(names)}")
    return names
