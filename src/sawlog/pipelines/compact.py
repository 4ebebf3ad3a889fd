"""`compact`: rewrite a topic so that each key has only its last record; rewrite.py says how the topic is replaced.

Unlike upkeep with `cleanup.policy=compact`, which processes one log at a time, keeps offsets and skips the active
segment, this rewrites the whole topic in parallel and numbers the records from 0. The topic's settings do not change. A
last record without a value (a tombstone) is dropped if it is older than the topic's `delete.retention.ms`. All records
without a key are kept. Records that arrive while it runs are copied unchanged.

Any topic can be compacted. But if its `cleanup.policy` is not compact, its owner has not agreed that records are
dropped when a later one has the same key, so the command line requires `yes`. With `dry_run` nothing is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InvalidConfig
from .rewrite import RewritePlan, RewriteReport, check_topic, planned, policy_of, rewrite
from .running import Advance, option, run_main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class CompactParams:
    """What to compact."""

    data: str = option("the store's directory")
    topic: str = option("the topic")
    dry_run: bool = option("show how many records would be dropped, without changing anything", False)
    yes: bool = option("compact even if the topic's cleanup.policy is not compact", False)


def check_params(params: CompactParams) -> None:
    """Raise what is wrong and can be detected without Spark, also if the topic is not meant to be compacted."""
    check_topic(params.data, params.topic)
    policy = policy_of(params.data, params.topic)
    if "compact" not in policy and not (params.yes or params.dry_run):
        raise InvalidConfig(
            f"the topic {params.topic} has cleanup.policy={policy}: compacting drops all but the last record of each "
            "key; give yes to do it anyway, or dry_run to see how many"
        )


def run(spark: SparkSession, params: CompactParams, progress: Advance | None = None) -> RewriteReport | RewritePlan:
    """Keep the last record of each key, or report what that would do. From Python, `yes` is not required: it is for
    command lines."""
    if params.dry_run:
        return planned(spark, params.data, params.topic, progress)
    return rewrite(spark, params.data, params.topic, None, last_only=True, progress=progress)


def main(arguments: Sequence[str] | None = None) -> int:
    """For `python -m` and `spark-submit`."""
    return run_main(
        CompactParams, run, arguments, "Rewrite a topic with the last record of each key.", check=check_params
    )


if __name__ == "__main__":
    raise SystemExit(main())
