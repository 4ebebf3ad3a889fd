"""`scaffold`: a project for Spark's declarative pipelines (`spark-pipelines`) around a topic, ready to run.

```
project/
  spark-pipeline.yml         the sources, and where the checkpoints are
  transformations/orders.py  tables over the topic: the records, and a count by key
  run                        a script that runs it
  README.md
```

Each run processes the records that are new since the last run. The tables' catalog must outlive a run: Spark's default
catalog, in memory, forgets the tables, and their leftover files block the next run; so `run` selects the one on disk
(Hive's, embedded).
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from ..addresses import check_local
from ..errors import InvalidConfig
from ..store.directory.store import DirectoryStore

_YAML = """\
name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.sql.shuffle.partitions: "2"
  spark.sql.session.timeZone: UTC
"""

_TABLES = '''\
"""Tables over the topic {topic!r}. `spark` is provided by spark-pipelines."""

from pyspark import pipelines as dp
from pyspark.sql import functions as F

DATA = {data!r}


@dp.table(comment="Every record of the topic, once; each run adds the new ones.")
def {table}():
    return (
        spark.readStream.format("sawlog")
        .option("path", DATA)
        .option("subscribe", {topic!r})
        .option("startingOffsets", "earliest")
        .load()
        .withColumn("value", F.col("value").cast("string"))
        .withColumn("key", F.col("key").cast("string"))
    )


@dp.materialized_view(comment="Number of records per key.")
def {table}_by_key():
    records = spark.read.table("{table}")
    return records.groupBy("key").agg(F.count("*").alias("records"), F.max("timestamp").alias("last"))
'''

_SINK = """

# Results can be written to a topic again, exactly once.
dp.create_sink(
    name="{sink}", format="sawlog", options={{"path": DATA, "topic": {to!r}, "partitions": "{partitions}"}}
)


@dp.append_flow(target="{sink}")
def to_{sink}():
    return spark.readStream.table("{table}").select("key", F.upper("value").alias("value"))
"""

_RUN = """\
#!/bin/sh
# Runs the pipeline: ./run, or ./run --full-refresh-all; see `spark-pipelines run --help`.
cd "$(dirname "$0")" || exit 1
python="${{PYSPARK_PYTHON:-{python}}}"
export PYSPARK_PYTHON="$python"
java="$("$python" -c 'from sawlog.spark.session import find_java; print(find_java() or "")')" || exit 1
if [ -n "$java" ]; then export JAVA_HOME="$java"; fi
PATH="$(dirname "$python"):$PATH"
exec spark-pipelines run --conf spark.sql.catalogImplementation=hive "$@"
"""

_README = """\
# {name}

A pipeline over the topic `{topic}` of the sawlog store `{data}`.

    ./run

Each run adds the new records of the topic to the table `{table}` and recomputes `{table}_by_key`. Edit
`transformations/{table}.py`, or add more files next to it. It needs
`pip install '.[spark]'`, run in a clone of sawlog.

Tables and their catalog are in `spark-warehouse/` and `metastore_db/`, checkpoints in `storage/`. Remove all three to
start again.
"""


@dataclass(frozen=True, slots=True)
class ScaffoldParams:
    """Parameters of `scaffold`."""

    #: The project's directory; new or empty.
    target: str
    #: Directory of the store.
    data: str
    #: The topic to read.
    topic: str
    #: Also write the results to this topic.
    to: str | None = None
    #: Number of partitions, if that topic is created.
    partitions: int = 1


@dataclass(frozen=True, slots=True)
class ScaffoldReport:
    """The created files."""

    target: str
    files: tuple[str, ...]


def run(params: ScaffoldParams) -> ScaffoldReport:
    """Create the project."""
    check_local(params.target, "the directory of a project")
    target = Path(params.target).absolute()
    with DirectoryStore.open(params.data, "r") as store:
        topic, data = store.topic(params.topic).name, str(Path(store.path).absolute())
    if params.to == params.topic:
        raise InvalidConfig(
            "a pipeline cannot write to the topic that it reads: it would never end; give another topic"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidConfig(f"{target} is not empty; choose a new directory")
    table = identifier(topic)
    names = {"name": identifier(target.name), "topic": topic, "data": data, "table": table}
    code = _TABLES.format(**names)
    if params.to is not None:
        sink = f"{identifier(params.to)}_sink"
        code += _SINK.format(**names, to=params.to, sink=sink, partitions=params.partitions)
    files = {
        "spark-pipeline.yml": _YAML.format(**names, storage=(target / "storage").as_uri()),
        f"transformations/{table}.py": code,
        "run": _RUN.format(python=sys.executable),
        "README.md": _README.format(**names),
    }
    for name, text in files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (target / "run").chmod(0o755)
    return ScaffoldReport(str(target), tuple(files))


def identifier(name: str) -> str:
    """Return a name that SQL and Python accept without quotes."""
    made = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").lower() or "topic"
    return f"t_{made}" if made[0].isdigit() else made
