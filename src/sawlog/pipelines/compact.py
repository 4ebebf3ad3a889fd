"""`compact`: rewrite a topic so that each key has its last record only; see rewrite.py for how it is swapped in.

Unlike upkeep with `cleanup.policy=compact`, which goes through one log at a time, keeps offsets and leaves the active
segment alone, this takes the whole topic at once, in parallel, and numbers the records anew. Any topic can be compacted
so; its settings stay what they are. A last record without a value (a tombstone) is dropped once it is older than the
topic's `delete.retention.ms`. Records without a key all stay. Records that come while it runs are brought over as they
are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .arguments import option, run_main
from .rewrite import RewriteReport, rewrite
from .running import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class CompactParams:
    """What to compact."""

    data: str = option("the store's directory")
    topic: str = option("the topic")


def run(spark: SparkSession, params: CompactParams, progress: Progress | None = None) -> RewriteReport:
    """Keep the last record of each key."""
    return rewrite(spark, params.data, params.topic, None, last_only=True, progress=progress)


def main(arguments: Sequence[str] | None = None) -> int:
    """For `python -m` and `spark-submit`."""
    return run_main(CompactParams, run, arguments, "Rewrite a topic with the last record of each key.")


if __name__ == "__main__":
    raise SystemExit(main())
