"""`sawlog produce`: write records from stdin or files to a topic.

Records go to the topic's own writer or, with `--compression`, to a writer that builds batches with that codec. The
readers of the input formats are in inputs.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, BinaryIO, Literal

import typer

from .. import schemas
from ..display import counted, size_text
from ..errors import DirectoryLocked, InvalidRecord
from ..schemas.checking import mismatch_reason
from ..store.directory.lock_leases import LOCK_TIMEOUT_S
from ..store.partitioner import partition_for
from ..store.settings import SCHEMA, is_compacted
from .formats import BadInput, Fields, InputFormat, InputRecord, kind_of, parquet_batches, plain_rows, read_input
from .options import BrokerAt, MaybeData, Output, Topic, argument, flag, named_values, option
from .output import OutputFormat, Printer, ProgressBar, note
from .places import chosen, open_place

if TYPE_CHECKING:
    from .places import AnyStore, AnyTopic, Sink

#: Maximum time that a record waits for its batch to fill.
LINGER_MS = 50


def open_sink(topic: AnyTopic, partition: int | None, compression: str | None) -> Sink:
    """Open a sink. Leaving the block stores all appended records, even after an error."""
    if compression is not None:
        return topic._packer(compression, partition=partition, linger_ms=LINGER_MS)
    if partition is not None:
        return topic._partition_writer(partition, linger_ms=LINGER_MS)
    return topic.writer(linger_ms=LINGER_MS)


_CHUNK_BYTES = 1 << 20
_NO_KEY = "the topic {} keeps the last record of each key, so every record needs a key: give --key or --key-delimiter"
_ARROW_COLUMNS = ("value", "key", "timestamp", "headers")


#: Kafka's codecs.
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]


class _Totals:
    """Counts of the stored records."""

    def __init__(self) -> None:
        self.records = self.size_bytes = self.skipped = 0
        self.began = monotonic()


def produce(
    topic: Topic,
    files: list[Path] | None = argument("[FILE]...", "The files to read; - is stdin.  [default: stdin]"),
    data: MaybeData = None,
    broker: BrokerAt = None,
    kind: InputFormat | None = option(
        "--input -i KIND", "The input format, see above.  [default: by the file's suffix, else lines]"
    ),
    key: str | None = option("--key -k FIELD", "The field with the key; for lines and file, the key itself."),
    key_delimiter: str | None = option("--key-delimiter -K TEXT", "Split key from value at TEXT."),
    value: str | None = option("--value FIELD", "The field with the value.  [default: the whole object]"),
    timestamp: str | None = option(
        "--timestamp FIELD", "The field with the timestamp, in ms since 1970 or ISO format.  [default: now]"
    ),
    header: list[str] | None = option("--header -H KEY=VALUE", "A header to add to every record; can be repeated."),
    partition: int | None = option("--partition -p N", "The partition to write to.  [default: by the key]", min=0),
    compression: Compression | None = option(
        "--compression -z CODEC", "none, gzip, snappy, lz4 or zstd.  [default: the topic's setting]"
    ),
    rate: float | None = option("--rate N", "Write at most N records per second.", min=0.001),
    empty_is_null: bool = flag(
        "--empty-is-null -Z", "Store an empty value as null, which deletes the key in a compacted topic."
    ),
    check: bool = flag("--check", "Refuse values that do not match the topic's schema (sawlog.schema)."),
    on_error: Literal["stop", "skip"] = option(
        "--on-error stop|skip", "Stop at invalid input, or skip it and continue.", "stop"
    ),
    lock_timeout: float = option(
        "--lock-timeout SECONDS",
        "How long to wait for a process that has locked a partition and does not append for others.",
        LOCK_TIMEOUT_S,
        min=0.0,
    ),
    create: bool = flag("--create", "Create the topic if it does not exist, with the default settings."),
    output: Output = "table",
) -> None:
    """Write records to a topic, from stdin or from files.

    \b
    Input formats (--input):
      lines     one record per line
      ndjson    one JSON object per line; the value is the line, or the field that --value names
      csv       a header, then one record per row; the value is the row as a JSON object, or the field of --value
      parquet   one record per row, with the columns value, key, timestamp and headers
      records   the output of `sawlog read TOPIC --output ndjson`; keeps key, value, headers and timestamp
      file      each file is one record of any size; it is streamed

    The topic must exist unless --create is given, which also creates the store. Invalid input stops the command with an
    error that names the line; everything before it is stored. With --on-error skip, the command skips invalid input and
    continues. With --check, a value that does not match the topic's schema is invalid input.

    \b
    Examples:
      echo hello | sawlog produce greetings -d data --create
      sawlog produce orders -d data orders.ndjson --key customer.id --timestamp placed_at
      sawlog produce prices -d data prices.csv --key symbol --value price
      sawlog produce orders -d data orders.ndjson --check --on-error skip
      printf 'a:1\\nb:2\\n' | sawlog produce pairs -d data --key-delimiter :
      sawlog produce photos -d data cat.jpg --input file --key cat --header type=image/jpeg
      sawlog read orders -d data --output ndjson | sawlog produce copy -d data --input records
      sawlog read orders -d data --output ndjson | sawlog produce copy -b 127.0.0.1:9092 --input records
    """
    if key is not None and key_delimiter is not None:
        raise typer.BadParameter("give --key or --key-delimiter, not both")
    if key_delimiter == "":
        raise typer.BadParameter("the delimiter cannot be empty", param_hint="--key-delimiter")
    fields = Fields(key, value, timestamp, key_delimiter)
    options = ProduceOptions(fields, _headers(header), partition, compression, rate, empty_is_null, on_error, check)
    sources = [(path, kind or kind_of(path)) for path in _sources(files)]
    for _, each in sources:
        _check(each, options)
    with open_place(data, broker, "w", create=create, lock_timeout=lock_timeout) as store:
        into = _created(store, topic, partition) if create else store.topic(topic)
        chosen(into, None if partition is None else [partition])
        if check and not into.settings.get(SCHEMA):
            raise typer.BadParameter(
                f"the topic {topic} has no schema: declare one with the setting sawlog.schema",
                param_hint="--check",
            )
        done = _Totals()
        try:
            for path, each in sources:
                _produce_from(path, each, into, options, done)
        finally:
            _report(topic, done, output)


def _created(store: AnyStore, topic: str, partition: int | None) -> AnyTopic:
    if topic in store.topics():
        return store.topic(topic)
    if partition:
        raise typer.BadParameter(
            f"the topic {topic} does not exist, and --create creates it with a single partition, 0",
            param_hint="--partition",
        )
    made = store.create_topic(topic, exist_ok=True)
    note(f"{topic}: created, 1 partition")
    return made


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """The options, except for source and target."""

    fields: Fields
    headers: tuple[tuple[str, bytes], ...]
    partition: int | None
    compression: str | None
    rate: float | None
    empty_is_null: bool
    on_error: str
    check: bool = False

    @property
    def single(self) -> bool:
        """True if an option applies to individual records, so that whole Arrow batches cannot be appended."""
        given = (self.headers, self.compression, self.rate, self.empty_is_null, self.check)
        return self.fields != Fields() or any(given)


def _headers(given: list[str] | None) -> tuple[tuple[str, bytes], ...]:
    pairs = named_values(given, "--header", "KEY=VALUE")
    return tuple((name, value.encode("utf-8", "surrogateescape")) for name, value in pairs)


def _check(kind: InputFormat, options: ProduceOptions) -> None:
    """Reject options that do not apply to this input format, instead of ignoring them."""
    fields = options.fields
    for name, field in (("--value", fields.value), ("--timestamp", fields.timestamp)):
        if field is not None and kind in ("lines", "file", "records"):
            raise typer.BadParameter(f"{kind} has no fields: use it with ndjson, csv or parquet", param_hint=name)
    if fields.key_delimiter is not None and kind != "lines":
        raise typer.BadParameter(f"only for --input lines, not {kind}", param_hint="--key-delimiter")
    if fields.key is not None and kind == "records":
        raise typer.BadParameter("--input records already contains the keys", param_hint="--key")
    if options.compression is not None and kind == "file":
        raise typer.BadParameter("--input file is streamed without compression", param_hint="--compression")
    if options.check and kind == "file":
        raise typer.BadParameter("--input file is streamed without being parsed", param_hint="--check")


def _sources(files: list[Path] | None) -> list[Path | None]:
    """Return the files; None means stdin."""
    return [None if str(path) == "-" else path for path in files] if files else [None]


def _produce_from(
    path: Path | None, kind: InputFormat, topic: AnyTopic, options: ProduceOptions, done: _Totals
) -> None:
    """Produce the content of one file, or of stdin."""
    with _opened(path) as (stream, size):
        if kind == "file":
            _stream_one(topic, stream, size, options, done, quiet=_is_typed(path))
        elif kind == "parquet" and not options.single:
            _append_tables(topic, stream, options.partition, done)
        else:
            entries = read_input(kind, stream, options.fields)
            with open_sink(topic, options.partition, options.compression) as sink:
                _append_all(sink, _matching(_keyed(entries, topic), topic, options), path, options, done)


@contextmanager
def _opened(path: Path | None) -> Iterator[tuple[BinaryIO, int | None]]:
    """Open a file or stdin; yield it with its size, if known."""
    if path is None:
        yield sys.stdin.buffer, None
        return
    with path.open("rb") as stream:
        yield stream, path.stat().st_size


def _keyed(entries: Iterator[InputRecord | BadInput], topic: AnyTopic) -> Iterator[InputRecord | BadInput]:
    """Pass the entries through; in a compacted topic, replace entries without a key by `BadInput`."""
    if not is_compacted(topic.settings):
        yield from entries
        return
    for each in entries:
        without = isinstance(each, InputRecord) and each.key is None
        yield BadInput(each.where, _NO_KEY.format(topic.name)) if without else each


def _matching(
    entries: Iterator[InputRecord | BadInput], topic: AnyTopic, options: ProduceOptions
) -> Iterator[InputRecord | BadInput]:
    """Pass the entries through; with --check, replace entries that do not match the topic's schema by `BadInput`."""
    if not options.check:
        yield from entries
        return
    schema = schemas.parse(str(topic.settings[SCHEMA]))
    for each in entries:
        empty = options.empty_is_null and isinstance(each, InputRecord) and not each.value
        reason = None if isinstance(each, BadInput) or empty else mismatch_reason(schema, each.value)
        yield each if reason is None else BadInput(each.where, reason)


def _is_typed(path: Path | None) -> bool:
    """Return whether the input is typed at a terminal."""
    return path is None and sys.stdin.isatty()


def _append_all(
    sink: Sink, entries: Iterator[InputRecord | BadInput], path: Path | None, options: ProduceOptions, done: _Totals
) -> None:
    source = "stdin" if path is None else str(path)
    with ProgressBar("producing", None, "records", quiet=_is_typed(path)) as progress:
        for each in entries:
            bad = each if isinstance(each, BadInput) else _append_one(sink, each, options)
            if bad is not None:
                error = BadInput(bad.where, bad.reason, f"{source}, {bad.unit}")
                if options.on_error == "stop":
                    raise error
                done.skipped += 1
                note(f"skipped {error}")
                continue
            assert isinstance(each, InputRecord)
            done.records += 1
            done.size_bytes += len(each.value or b"") + len(each.key or b"")
            progress.advance(1)
            if options.rate is not None:
                _wait(done, options.rate)


def _append_one(sink: Sink, entry: InputRecord, options: ProduceOptions) -> BadInput | None:
    """Append one record; return the reason if it was refused."""
    value = None if options.empty_is_null and not entry.value else entry.value
    try:
        sink.append(value, entry.key, (*entry.headers, *options.headers), entry.timestamp)
    except InvalidRecord as refused:
        return BadInput(entry.where, str(refused))
    return None


def _wait(done: _Totals, rate: float) -> None:
    """Wait until the rate allows the next record."""
    ahead = done.records / rate - (monotonic() - done.began)
    if ahead > 0:
        sleep(ahead)


def _append_tables(topic: AnyTopic, stream: BinaryIO, partition: int | None, done: _Totals) -> None:
    """Append a Parquet file as Arrow batches."""
    for batch in parquet_batches(stream):
        names = [name for name in _ARROW_COLUMNS if name in batch.schema.names]
        if "value" in names:
            topic.append_arrow(batch.select(names), partition=partition)
        else:  # any other table: one JSON object per row
            topic.append_many(plain_rows(batch), partition=partition)
        done.records += batch.num_rows
        done.size_bytes += batch.nbytes


def _stream_one(
    topic: AnyTopic, stream: BinaryIO, size: int | None, options: ProduceOptions, done: _Totals, *, quiet: bool
) -> None:
    """Append a whole file as one record: streamed, unless another process holds the partition."""
    key = None if options.fields.key is None else options.fields.key.encode("utf-8", "surrogateescape")
    if key is None and is_compacted(topic.settings):
        raise InvalidRecord(_NO_KEY.format(topic.name))
    number = 0 if key is None else partition_for(key, topic.partitions)
    with ProgressBar("producing", size, "bytes", quiet=quiet) as progress:
        # At a terminal, `read` needs a second Ctrl-D to end; `read1` does not.
        read = getattr(stream, "read1", stream.read)

        def chunks() -> Iterator[bytes]:
            while chunk := read(_CHUNK_BYTES):
                progress.advance(len(chunk))
                yield chunk

        number = number if options.partition is None else options.partition
        try:
            topic.partition(number).append_stream(chunks(), key=key, headers=options.headers)
        except DirectoryLocked:  # raised before the first chunk; the lock owner accepts only whole records
            topic.append_many([(b"".join(chunks()), key, options.headers)], partition=number)
        done.records += 1
        done.size_bytes += progress.done


def _report(topic: str, done: _Totals, output: OutputFormat) -> None:
    seconds = monotonic() - done.began
    skipped = f", {done.skipped:,} skipped" if done.skipped else ""
    stored = f"{counted(done.records, 'record')} to {topic}, {size_text(done.size_bytes)}{skipped}"
    fields = {"topic": topic, "records": done.records, "size_bytes": done.size_bytes, "skipped": done.skipped}
    Printer(output).outcome(f"{stored}, {seconds:.2f} s", {**fields, "seconds": round(seconds, 3)})
