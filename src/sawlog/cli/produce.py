"""`sawlog produce`: write records from stdin or files to a topic.

Records go to the topic's own writer or, with `--compression`, to a writer that builds batches with that codec. The
readers of the input formats are in formats.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, BinaryIO, Literal

import typer

from .. import schemas
from ..display import counted, size_text
from ..errors import DirectoryLocked, InvalidRecord
from ..schemas.checking import mismatch_reason
from ..store.directory.open_partitions import LOCK_TIMEOUT_S
from ..store.partitioner import partition_for
from ..store.settings import SCHEMA, is_compacted
from .formats import BadInput, Fields, InputFormat, InputRecord, Parts, kind_of, parquet_batches, plain_rows, read_input
from .options import BrokerAt, MaybeData, Output, Topic, argument, flag, named_values, option
from .output import Printer, ProgressBar, note
from .stores import chosen, open_store

if TYPE_CHECKING:
    from .stores import AnyStore, AnyTopic, Sink

#: Maximum time that a record waits for its batch to fill.
_LINGER_MS = 50
_CHUNK_BYTES = 1 << 20
_NO_KEY = "the topic {} keeps the last record of each key, so every record needs a key: give --key or --key-delimiter"
_ARROW_COLUMNS = ("value", "key", "timestamp", "headers")


#: Kafka's codecs.
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]


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
        "How long to wait while other processes write to a partition.",
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
    headers = tuple(
        (name, text.encode("utf-8", "surrogateescape")) for name, text in named_values(header, "--header", "KEY=VALUE")
    )
    fields = Fields(key, value, timestamp, key_delimiter)
    options = _Options(fields, headers, partition, compression, rate, empty_is_null, on_error == "skip", check)
    paths = [None if str(path) == "-" else path for path in files or [Path("-")]]
    sources = [(path, kind or kind_of(path)) for path in paths]
    for _, each in sources:
        _check(each, options)
    with open_store(data, broker, "w", create=create, lock_timeout=lock_timeout) as store:
        into = _created(store, topic, partition) if create else store.topic(topic)
        chosen(into, None if partition is None else [partition])
        if check and not into.settings.get(SCHEMA):
            raise typer.BadParameter(
                f"the topic {topic} has no schema: declare one with the setting sawlog.schema",
                param_hint="--check",
            )
        producer = _Producer(into, options)
        interrupted = False
        try:
            for path, each in sources:
                producer.add(path, each)
        except (KeyboardInterrupt, SystemExit):  # Ctrl-C, SIGTERM
            interrupted = True
            raise
        finally:
            producer.report(Printer(output), interrupted=interrupted)


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
class _Options:
    """The options, except for source and target."""

    fields: Fields
    headers: tuple[tuple[str, bytes], ...]
    partition: int | None
    compression: str | None
    rate: float | None
    empty_is_null: bool
    skip_bad_input: bool
    check: bool

    @property
    def single(self) -> bool:
        """True if an option applies to individual records, so that whole Arrow batches cannot be appended."""
        given = (self.headers, self.compression, self.rate, self.empty_is_null, self.check)
        return self.fields != Fields() or any(given)


def _check(kind: InputFormat, options: _Options) -> None:
    """Reject options that do not apply to this input format, instead of ignoring them."""
    fields, has_fields = options.fields, kind in ("ndjson", "csv", "parquet")
    no_fields = f"{kind} has no fields: use it with ndjson, csv or parquet"
    for given, accepted, hint, reason in (
        (fields.value, has_fields, "--value", no_fields),
        (fields.timestamp, has_fields, "--timestamp", no_fields),
        (fields.key_delimiter, kind == "lines", "--key-delimiter", f"only for --input lines, not {kind}"),
        (fields.key, kind != "records", "--key", "--input records already contains the keys"),
        (options.compression, kind != "file", "--compression", "--input file is streamed without compression"),
        (options.check or None, kind != "file", "--check", "--input file is streamed without being parsed"),
    ):
        if given is not None and not accepted:
            raise typer.BadParameter(reason, param_hint=hint)


class _Producer:
    """Appends inputs to one topic and counts the stored records."""

    def __init__(self, topic: AnyTopic, options: _Options) -> None:
        self._topic, self._options = topic, options
        self._schema = schemas.parse(str(topic.settings[SCHEMA])) if options.check else None
        self._records = self._size_bytes = self._skipped = 0
        #: True if storing failed, so that the last of the counted records may be missing.
        self._uncertain = False
        self._began = monotonic()

    def add(self, path: Path | None, kind: InputFormat) -> None:
        """Append the content of one file, or of stdin."""
        with contextlib.nullcontext(sys.stdin.buffer) if path is None else path.open("rb") as stream:
            if kind == "file":
                self._add_one(stream, path)
            elif kind == "parquet" and not self._options.single:
                self._add_tables(stream)
            else:
                entries = read_input(kind, stream, self._options.fields)
                self._add_all(entries, stream, path, "row" if kind == "parquet" else "line")

    def _sink(self) -> Sink:
        """Open a sink. Leaving its block stores all appended records, even after an error."""
        topic, partition = self._topic, self._options.partition
        if self._options.compression is not None:
            return topic._packer(self._options.compression, partition=partition, linger_ms=_LINGER_MS)
        if partition is not None:
            return topic._partition_writer(partition, linger_ms=_LINGER_MS)
        return topic.writer(linger_ms=_LINGER_MS)

    def _add_all(self, entries: Parts, stream: BinaryIO, path: Path | None, unit: str) -> None:
        """Append records one by one. `unit` names a part of the input in messages."""
        raised: BaseException | None = None
        try:
            with self._sink() as sink:
                try:
                    self._add_each(sink, entries, stream, path, unit)
                except BaseException as error:
                    raised = error
                    raise
        except BaseException as error:
            self._uncertain |= error is not raised  # leaving the sink has failed
            raise

    def _add_each(self, sink: Sink, entries: Parts, stream: BinaryIO, path: Path | None, unit: str) -> None:
        size = path.stat().st_size if path is not None and stream.seekable() else None
        with ProgressBar("producing", None, "records", size_bytes=size, quiet=_is_typed(path)) as progress:
            for each in entries:
                reason = each.reason if isinstance(each, BadInput) else self._append(sink, each)
                if reason is None:
                    progress.advance(1, stream.tell() if size and progress.shown else None)
                    if self._options.rate is not None:
                        sleep(max(self._records / self._options.rate - (monotonic() - self._began), 0.0))
                    continue
                error = BadInput(each.where, reason, f"{path or 'stdin'}, {unit}")
                if not self._options.skip_bad_input:
                    raise error
                self._skipped += 1
                note(f"skipped {error}")

    def _append(self, sink: Sink, entry: InputRecord) -> str | None:
        """Append one record; return the reason if it is refused."""
        value = None if self._options.empty_is_null and not entry.value else entry.value
        deletes = value is None and self._options.empty_is_null
        reason = None if self._schema is None or deletes else mismatch_reason(self._schema, value)
        if entry.key is None and is_compacted(self._topic.settings):
            reason = _NO_KEY.format(self._topic.name)
        try:
            if reason is None:
                sink.append(value, entry.key, (*entry.headers, *self._options.headers), entry.timestamp)
        except InvalidRecord as refused:
            reason = str(refused)
        if reason is None:
            self._records += 1
            self._size_bytes += len(entry.value or b"") + len(entry.key or b"")
        return reason

    def _add_tables(self, stream: BinaryIO) -> None:
        """Append a Parquet file as Arrow batches."""
        for batch in parquet_batches(stream):
            names = [name for name in _ARROW_COLUMNS if name in batch.schema.names]
            if "value" in names:
                self._topic.append_arrow(batch.select(names), partition=self._options.partition)
            else:  # any other table: one JSON object per row
                self._topic.append_many(plain_rows(batch), partition=self._options.partition)
            self._records += batch.num_rows
            self._size_bytes += batch.nbytes

    def _add_one(self, stream: BinaryIO, path: Path | None) -> None:
        """Append a whole file as one record: streamed, unless another process holds the partition."""
        topic, options = self._topic, self._options
        key = None if options.fields.key is None else options.fields.key.encode("utf-8", "surrogateescape")
        if key is None and is_compacted(topic.settings):
            raise InvalidRecord(_NO_KEY.format(topic.name))
        number = options.partition
        if number is None:
            number = 0 if key is None else partition_for(key, topic.partitions)
        size = None if path is None else path.stat().st_size
        with ProgressBar("producing", size, "bytes", quiet=_is_typed(path)) as progress:
            # At a terminal, `read` needs a second Ctrl-D to end; `read1` does not.
            read = getattr(stream, "read1", stream.read)

            def chunks() -> Iterator[bytes]:
                while chunk := read(_CHUNK_BYTES):
                    progress.advance(len(chunk))
                    yield chunk

            try:
                topic.partition(number).append_stream(chunks(), key=key, headers=options.headers)
            except DirectoryLocked:  # raised before the first chunk; the lock owner accepts only whole records
                topic.append_many([(b"".join(chunks()), key, options.headers)], partition=number)
            self._records += 1
            self._size_bytes += progress.done

    def report(self, printer: Printer, *, interrupted: bool) -> None:
        """Print the number of stored records."""
        seconds = monotonic() - self._began
        skipped = f", {self._skipped:,} skipped" if self._skipped else ""
        most = "at most " if self._uncertain else ""
        stored = f"{counted(self._records, 'record')} to {self._topic.name}, {size_text(self._size_bytes)}{skipped}"
        counts = {"records": self._records, "size_bytes": self._size_bytes, "skipped": self._skipped}
        fields = {"topic": self._topic.name, **counts, "seconds": round(seconds, 3), "interrupted": interrupted}
        printer.outcome(f"{'interrupted; stored ' if interrupted else ''}{most}{stored}, {seconds:.2f} s", fields)


def _is_typed(path: Path | None) -> bool:
    """Return whether the input is typed at a terminal."""
    return path is None and sys.stdin.isatty()
