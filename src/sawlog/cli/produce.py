"""`sawlog produce`: records from stdin or files into a topic."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from time import monotonic, sleep
from typing import Annotated, BinaryIO

import typer

from ..errors import InvalidRecord
from ..topics.partitioner import partition_for
from ..topics.settings import is_compacted
from ..topics.topic import Topic as TopicOf
from .inputs import BadInput, Entry, Fields, Kind, kind_of, parquet_batches, plain_rows, read_input
from .options import Data, Output, Topic
from .output import Format, note
from .output import Output as Printer
from .places import chosen, open_store
from .progress import Progress
from .sink import Sink, open_sink
from .units import shown_size

_CHUNK_BYTES = 1 << 20
_NO_KEY = "the topic {} keeps the last record of each key, so a record needs a key: give --key or --key-delimiter"
_ARROW_COLUMNS = ("value", "key", "timestamp", "headers")


class OnError(StrEnum):
    """What to do about input that is no record."""

    STOP = "stop"
    SKIP = "skip"


class Compression(StrEnum):
    """Kafka's codecs."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class _Done:
    """What was stored so far."""

    def __init__(self) -> None:
        self.records = self.size_bytes = self.skipped = 0
        self.began = monotonic()


def produce(
    topic: Topic,
    data: Data,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="Where from; stdin if left out, or for -.")
    ] = None,
    kind: Annotated[
        Kind | None,
        typer.Option(
            "--input",
            "-i",
            metavar="KIND",
            help="What the input is made of.  [default: by the file's name, else lines]",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", "-k", metavar="FIELD", help="The field with the key; with lines and file, the key itself."
        ),
    ] = None,
    key_delimiter: Annotated[
        str | None, typer.Option("--key-delimiter", "-K", metavar="TEXT", help="Split key from value at TEXT.")
    ] = None,
    value: Annotated[
        str | None,
        typer.Option("--value", metavar="FIELD", help="The field with the value.  [default: the whole object]"),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option("--timestamp", metavar="FIELD", help="The field with the time, in ms or ISO.  [default: now]"),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="KEY=VALUE", help="A header for every record; may be given again."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, metavar="N", help="The partition.  [default: by the key]")
    ] = None,
    compression: Annotated[
        Compression | None,
        typer.Option(
            "--compression",
            "-z",
            metavar="CODEC",
            help="none, gzip, snappy, lz4 or zstd.  [default: as the topic says]",
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, metavar="N", help="At most so many records a second.")
    ] = None,
    empty_is_null: Annotated[
        bool,
        typer.Option("--empty-is-null", "-Z", help="An empty value is null: in a compacted topic it deletes the key."),
    ] = False,
    on_error: Annotated[
        OnError, typer.Option("--on-error", metavar="stop|skip", help="What to do about input that is no record.")
    ] = OnError.STOP,
    output: Output = Format.TABLE,
) -> None:
    """Write records to a topic, from stdin or from files.

    \b
    What the input can be (--input):
      lines     one record a line
      ndjson    one JSON object a line; the record is the line, or the field that --value names
      csv       a head, then one row a record; the record is a JSON object of the row, or the field of --value
      parquet   one record a row; columns value, key, timestamp and headers are taken as such
      records   what `sawlog read --output ndjson` writes: key, value, headers and time as they were
      file      each file is one record, streamed, however large it is

    A line that is no record stops it, with its number; everything before it is stored. --on-error skip goes on.

    \b
    Examples:
      echo hello | sawlog produce greetings -d data
      sawlog produce orders -d data orders.ndjson --key customer.id --timestamp placed_at
      sawlog produce prices -d data prices.csv --key symbol --value price
      printf 'a:1\\nb:2\\n' | sawlog produce pairs -d data --key-delimiter :
      sawlog produce photos -d data cat.jpg --input file --key cat --header type=image/jpeg
      sawlog read orders -d data --output ndjson | sawlog produce copy -d data --input records
    """
    if key is not None and key_delimiter is not None:
        raise typer.BadParameter("give --key or --key-delimiter, not both")
    if key_delimiter == "":
        raise typer.BadParameter("the text between key and value cannot be empty", param_hint="--key-delimiter")
    fields = Fields(key, value, timestamp, key_delimiter)
    codec = None if compression is None else compression.value
    wishes = Wishes(fields, _headers(header), partition, codec, rate, empty_is_null, on_error)
    sources = [(path, kind or kind_of(path)) for path in _sources(files)]
    for _, each in sources:
        _check(each, wishes)
    with open_store(data, "w") as store:
        into = store.topic(topic)
        chosen(into, None if partition is None else [partition])
        done = _Done()
        try:
            for path, each in sources:
                _produce_from(path, each, into, wishes, done)
        finally:
            _report(topic, done, output)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What was asked for, apart from where from and where to."""

    fields: Fields
    headers: tuple[tuple[str, bytes], ...]
    partition: int | None
    compression: str | None
    rate: float | None
    empty_is_null: bool
    on_error: OnError

    @property
    def single(self) -> bool:
        """Whether something is asked of the single record, so that tables cannot go in as they are."""
        return self.fields != Fields() or bool(self.headers or self.compression or self.rate or self.empty_is_null)


def _headers(given: list[str] | None) -> tuple[tuple[str, bytes], ...]:
    made = []
    for pair in given or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--header")
        made.append((name, value.encode("utf-8", "surrogateescape")))
    return tuple(made)


def _check(kind: Kind, wishes: Wishes) -> None:
    """An option that means nothing for this kind of input is a mistake, not a wish to be passed over."""
    fields = wishes.fields
    for option, field in (("--value", fields.value), ("--timestamp", fields.timestamp)):
        if field is not None and kind in (Kind.LINES, Kind.FILE, Kind.RECORDS):
            raise typer.BadParameter(f"{kind} have no fields: use it with ndjson, csv or parquet", param_hint=option)
    if fields.key_delimiter is not None and kind is not Kind.LINES:
        raise typer.BadParameter(f"this is for lines, not for {kind}", param_hint="--key-delimiter")
    if fields.key is not None and kind is Kind.RECORDS:
        raise typer.BadParameter("records have their keys", param_hint="--key")
    if wishes.compression is not None and kind is Kind.FILE:
        raise typer.BadParameter("a file is streamed as it is", param_hint="--compression")


def _sources(files: list[Path] | None) -> list[Path | None]:
    """The files; None stands for stdin."""
    return [None if str(path) == "-" else path for path in files] if files else [None]


def _produce_from(path: Path | None, kind: Kind, topic: TopicOf, wishes: Wishes, done: _Done) -> None:
    """Everything in one file, or in stdin."""
    with _opened(path) as (stream, size):
        if kind is Kind.FILE:
            _stream_one(topic, stream, size, wishes, done, quiet=_is_typed(path))
        elif kind is Kind.PARQUET and not wishes.single:
            _append_tables(topic, stream, wishes.partition, done)
        else:
            entries = read_input(kind, stream, wishes.fields)
            with open_sink(topic, wishes.partition, wishes.compression) as sink:
                _append_all(sink, _keyed(entries, topic), path, wishes, done)


@contextmanager
def _opened(path: Path | None) -> Iterator[tuple[BinaryIO, int | None]]:
    """A file, or stdin; and its size, if that is known."""
    if path is None:
        yield sys.stdin.buffer, None
        return
    with path.open("rb") as stream:
        yield stream, path.stat().st_size


def _keyed(entries: Iterator[Entry | BadInput], topic: TopicOf) -> Iterator[Entry | BadInput]:
    """The same; where the topic keeps the last record of a key, one without a key is bad input."""
    if not is_compacted(topic.settings):
        yield from entries
        return
    for each in entries:
        without = isinstance(each, Entry) and each.key is None
        yield BadInput(each.where, _NO_KEY.format(topic.name)) if without else each


def _is_typed(path: Path | None) -> bool:
    """Whether a person types what is read."""
    return path is None and sys.stdin.isatty()


def _append_all(
    sink: Sink, entries: Iterator[Entry | BadInput], path: Path | None, wishes: Wishes, done: _Done
) -> None:
    source = "stdin" if path is None else str(path)
    with Progress("producing", None, "records", quiet=_is_typed(path)) as progress:
        for each in entries:
            bad = each if isinstance(each, BadInput) else _append_one(sink, each, wishes)
            if bad is not None:
                error = BadInput(bad.where, bad.reason, f"{source}, {bad.unit}")
                if wishes.on_error is OnError.STOP:
                    raise error
                done.skipped += 1
                note(f"skipped {error}")
                continue
            assert isinstance(each, Entry)
            done.records += 1
            done.size_bytes += len(each.value or b"") + len(each.key or b"")
            progress.advance(1)
            if wishes.rate is not None:
                _wait(done, wishes.rate)


def _append_one(sink: Sink, entry: Entry, wishes: Wishes) -> BadInput | None:
    """Store one record; why not, if it is refused."""
    value = None if wishes.empty_is_null and not entry.value else entry.value
    try:
        sink.append(value, entry.key, (*entry.headers, *wishes.headers), entry.timestamp)
    except InvalidRecord as refused:
        return BadInput(entry.where, str(refused))
    return None


def _wait(done: _Done, rate: float) -> None:
    """Until it is time for the next record."""
    ahead = done.records / rate - (monotonic() - done.began)
    if ahead > 0:
        sleep(ahead)


def _append_tables(topic: TopicOf, stream: BinaryIO, partition: int | None, done: _Done) -> None:
    """A Parquet file as Arrow, column by column."""
    for batch in parquet_batches(stream):
        names = [name for name in _ARROW_COLUMNS if name in batch.schema.names]
        if "value" in names:
            topic.append_arrow(batch.select(names), partition=partition)
        else:  # any other table: a JSON object a row
            topic.append_many(plain_rows(batch), partition=partition)
        done.records += batch.num_rows
        done.size_bytes += batch.nbytes


def _stream_one(
    topic: TopicOf, stream: BinaryIO, size: int | None, wishes: Wishes, done: _Done, *, quiet: bool
) -> None:
    """A whole file as one record, which is never in memory."""
    key = None if wishes.fields.key is None else wishes.fields.key.encode("utf-8", "surrogateescape")
    if key is None and is_compacted(topic.settings):
        raise InvalidRecord(_NO_KEY.format(topic.name))
    number = 0 if key is None else partition_for(key, topic.partitions)
    with Progress("producing", size, "bytes", quiet=quiet) as progress:
        # What `read` gives at the end of what is typed is not the end: it would take a second Ctrl-D.
        read = getattr(stream, "read1", stream.read)

        def chunks() -> Iterator[bytes]:
            while chunk := read(_CHUNK_BYTES):
                progress.advance(len(chunk))
                yield chunk

        log = topic.partition(number if wishes.partition is None else wishes.partition)
        log.append_stream(chunks(), key=key, headers=wishes.headers)
        done.records += 1
        done.size_bytes += progress.done


def _report(topic: str, done: _Done, output: Format) -> None:
    seconds = monotonic() - done.began
    if output is Format.TABLE:
        skipped = f", {done.skipped:,} skipped" if done.skipped else ""
        count = f"{done.records:,} record{'' if done.records == 1 else 's'}"
        note(f"{count} to {topic}, {shown_size(done.size_bytes)}{skipped}, {seconds:.2f} s")
        return
    about = {"topic": topic, "records": done.records, "size_bytes": done.size_bytes, "skipped": done.skipped}
    Printer(output).item({**about, "seconds": round(seconds, 3)})
