"""`ingest`: files into a topic. Each new file in a directory is ingested once, even across failures and restarts.

Text and JSON lines are stored unchanged, byte for byte; key and timestamp are looked up in a JSON line by name. Rows of
CSV and Parquet become JSON objects, unless `value` selects the column to store. The schema is inferred in the first run
and kept, so that a file that differs is detected and not converted: a CSV file whose header or cells do not fit ends
the run with an error that names file, row and reason. A key is the text of its cell: `01234` stays `01234`. The same
holds for every other cell that a number could not reproduce.

Progress is kept in the store, in `pipelines/ingest-<topic>-<source>/`. To resume after a crash, run the job again:
Spark repeats its last micro-batch, and the sink recognises the transactions already stored. Spark assumes that a file
is complete when it sees it: write it elsewhere and move it in.

New files found together are ingested in the order of their paths (`a10` before `a2`), `files` of them per transaction.
Within a partition, and so within a key, records keep the order of the files and of their lines.
"""

from __future__ import annotations

import glob
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..batch.compression import CODECS
from ..errors import InvalidConfig
from ..storage import FileDirectory, checksummed
from ..store.directory.store import DirectoryStore
from ..store.names import check_topic_name, quoted
from . import running
from .files import LINES, Shape, WantedColumns, inferred, listed, records
from .running import CHECKPOINT, Advance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMATS = ("auto", "text", "json", "csv", "parquet")
_ENDINGS = {
    ".txt": "text",
    ".log": "text",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}
_PACKED = (".gz", ".bz2", ".zst", ".lz4", ".snappy")
_SCHEMA = "schema.json"
#: Document with the number of files per transaction of the current micro-batch.
_BATCH = "batch.json"
_NUMBER_BITS = 20
#: Spark's columns for a file whose content is not requested.
_BINARY = "path string, modificationTime timestamp, length long, content binary"


@dataclass(frozen=True, slots=True)
class IngestParams:
    """Parameters of `ingest`."""

    #: Directory of the store.
    data: str
    #: The topic; created if it is missing.
    topic: str
    #: A directory of files, a pattern (in/*.csv) or one file.
    source: str
    #: `text` and `json` are read line by line; `auto` decides by suffix.
    format: Literal["auto", "text", "json", "csv", "parquet"] = "auto"
    #: Column with the key (JSON: the field, also a.b).
    key: str | None = None
    #: Column with the timestamp: a time, or milliseconds since 1970.
    timestamp: str | None = None
    #: CSV, Parquet: the column to store; the row as JSON if None.
    value: str | None = None
    #: CSV, Parquet: the schema, such as 'id int, name string'; inferred once if None.
    schema: str | None = None
    #: CSV: the first line is a header.
    header: bool = True
    #: Number of partitions, if the topic is created.
    partitions: int = 1
    #: One of Kafka's codecs or `none`; the topic's setting if None.
    compression: str | None = None
    #: Look for new files at this interval in seconds until stopped; run once if None.
    every_s: float | None = None
    #: Maximum number of files per transaction.
    files: int = 1000


@dataclass(frozen=True, slots=True)
class IngestReport:
    """Result of a run. A repeated micro-batch is counted, although it is stored once."""

    topic: str
    source: str
    format: str
    records: int
    without_key: int
    batches: int
    stopped: bool


def check_params(params: IngestParams) -> None:
    """Raise for errors that can be detected without Spark."""
    running.check_choice("format", params.format, FORMATS)
    running.check_interval("every_s", params.every_s)
    running.check_least(params, files=1)
    if params.compression is not None:
        running.check_choice("compression", params.compression, CODECS)
    check_topic_name(params.topic)
    source = _source(params.source)
    if "://" not in source and not Path(source).exists() and not glob.has_magic(source):
        raise InvalidConfig(f"no such file or directory: {source}")
    form = _form(params, source)
    if form == "text" and (params.key or params.timestamp):
        raise InvalidConfig("lines of text have no columns: key and timestamp are for json, csv and parquet")
    if form in LINES and (params.value or params.schema):
        raise InvalidConfig(f"{form} lines are stored unchanged: value and schema are for csv and parquet")


def run(spark: SparkSession, params: IngestParams, progress: Advance | None = None) -> IngestReport:
    """Ingest the new files, once or until stopped."""
    check_params(params)
    source = _source(params.source)
    form = _form(params, source)
    with DirectoryStore.open(params.data, maintenance_interval_s=None) as store:
        store.create_topic(params.topic, params.partitions, exist_ok=True)
        root = Path(store.path)
    wanted = WantedColumns(form, source, params.key, params.timestamp, params.value, params.header)
    with running.exclusive_directory(place(root, params.topic, source)) as directory:
        with running.one_line_errors():
            ingester = _FileIngester(spark, params, wanted, str(root), directory)
            names = spark.readStream.format("binaryFile").schema(_BINARY).option("recursiveFileLookup", "true")
            writer = names.load(source).select("path").writeStream.foreachBatch(ingester.take)
            writer = writer.option("checkpointLocation", f"{directory.path}/{CHECKPOINT}")
            query = writer.trigger(**running.trigger(params.every_s)).start()
        flow = running.watch(query, look=lambda: ingester.tell(progress))
    counts = ingester.records, ingester.without_key, ingester.transactions
    return IngestReport(params.topic, source, form, *counts, flow.stopped)


def place(root: Path, topic: str, source: str) -> Path:
    """Return the directory for the progress of a topic and source."""
    return root / "pipelines" / f"ingest-{quoted(topic)}-{hashlib.sha256(source.encode()).hexdigest()[:12]}"


def _form(params: IngestParams, source: str) -> str:
    return params.format if params.format != "auto" else guess_format(source)


def _source(source: str) -> str:
    """Return the source as Spark and the checkpoint know it, independent of the working directory."""
    if "://" in source:
        return source
    return str(Path(source).absolute())


def guess_format(source: str) -> str:
    """Guess the format from the suffixes of the files."""
    path = Path(source)
    names = [each.name for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path.name]
    shown = [name for name in names if not name.startswith((".", "_"))]
    found = Counter(form for form in map(_by_ending, shown) if form)
    if len(found) != 1:
        what = "no file has a known suffix" if not found else f"there are {' and '.join(sorted(found))}"
        raise InvalidConfig(
            f"cannot detect the format of {source}: {what}; give format as one of {', '.join(FORMATS[1:])}"
        )
    return next(iter(found))


def _by_ending(name: str) -> str | None:
    path = Path(name)
    return _ENDINGS.get((path.with_suffix("") if path.suffix in _PACKED else path).suffix)


# --- the files


class _FileIngester:
    """Ingests the files that Spark reports as new, in order of name, and counts the records."""

    def __init__(
        self, spark: SparkSession, params: IngestParams, wanted: WantedColumns, root: str, directory: FileDirectory
    ) -> None:
        self._spark, self._params, self._wanted = spark, params, wanted
        self._root, self._directory = root, directory
        self._shape = None if wanted.form in LINES else _shape(spark, params, wanted, directory)
        if self._shape is not None:
            wanted.check(self._shape.names)
        self.records = self.without_key = self.transactions = 0
        self._told = 0

    def take(self, names: DataFrame, batch: int) -> None:
        """Ingest one micro-batch, a list of file names. Each transaction is stored once, however often it is
        repeated."""
        with running.one_line_errors():
            paths = sorted(row.path for row in names.collect())
            for version, some in self._transactions(batch, paths):
                self._write(version, some)

    def _transactions(self, batch: int, paths: list[str]) -> Iterator[tuple[int, list[str]]]:
        """Split files into transactions, with the numbers that identify a repetition.

        The number of files per transaction is stored first: a repeated micro-batch must be split in the same way.
        """
        size = self._params.files
        noted = checksummed.load(self._directory, _BATCH) if self._directory.exists(_BATCH) else {}
        if noted.get("batch") == batch:
            size = noted["files"]
        else:
            checksummed.store(self._directory, _BATCH, {"batch": batch, "files": size})
        for number, first in enumerate(range(0, len(paths), size), 1):
            yield (batch << _NUMBER_BITS) + number, paths[first : first + size]

    def _write(self, version: int, paths: list[str]) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen = Observation()
        rows = records(self._spark, self._wanted, paths, self._shape)
        missing = F.count_if(F.col("key").isNull() if self._wanted.key is not None else F.lit(False))
        rows = rows.observe(seen, F.count(F.lit(1)).alias("records"), missing.alias("without_key"))
        writer = rows.write.format("sawlog").mode("append").option("path", self._root)
        writer = writer.option("topic", self._params.topic)
        if self._params.compression is not None:
            writer = writer.option("compression", self._params.compression)
        query = json.loads((Path(self._directory.path) / CHECKPOINT / "metadata").read_text())["id"]
        writer.option("txnAppId", query).option("txnVersion", str(version)).save()
        counted = seen.get
        self.records += counted["records"]
        self.without_key += counted["without_key"]
        self.transactions += 1

    def tell(self, progress: Advance | None) -> None:
        """Report the progress since the last call."""
        more, self._told = self.records - self._told, self.records
        if more and progress is not None:
            progress(more)


# --- the schema


def _shape(spark: SparkSession, params: IngestParams, wanted: WantedColumns, directory: FileDirectory) -> Shape:
    """Return the schema: the given one, the one inferred before, or one inferred now and kept for the next run."""
    from pyspark.sql.types import StructType

    if params.schema is not None:
        shape = Shape(parsed_schema(params.schema))
    elif directory.exists(_SCHEMA):
        kept = checksummed.load(directory, _SCHEMA)
        return Shape(StructType.fromJson(json.loads(kept["schema"])), kept.get("inferred", False))
    else:
        shape = Shape(_inferred(spark, wanted), wanted.form == "csv")
    checksummed.store(directory, _SCHEMA, {"schema": shape.schema.json(), "inferred": shape.inferred})
    return shape


def _inferred(spark: SparkSession, wanted: WantedColumns) -> StructType:
    from pyspark.errors import AnalysisException

    try:
        if wanted.form != "csv":
            return spark.read.format(wanted.form).load(wanted.source).schema
        found = inferred(spark, wanted, listed(spark, wanted.source))
    except AnalysisException as error:
        why = running.failure(error)
        raise InvalidConfig(f"no schema can be inferred from {wanted.source}, so give one: {why}") from error
    if found is None:
        raise InvalidConfig(f"no schema can be inferred from {wanted.source}, so give one: there are no rows")
    return found


def parsed_schema(text: str) -> StructType:
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructType

    try:
        found = StructType.fromDDL(text)
    except ParseException as error:
        raise InvalidConfig(
            f"{text!r} is not a schema such as 'id int, name string': {running.failure(error)}"
        ) from error
    if not isinstance(found, StructType):
        raise InvalidConfig(f"{text!r} is not a schema such as 'id int, name string'")
    return found
