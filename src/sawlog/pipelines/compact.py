"""`compact`: rewrite a topic so that each key has only its last record; see rewrite.py for how the topic is replaced.

Maintenance with `cleanup.policy=compact` processes one log at a time, keeps offsets and skips the active segment. This
job rewrites the whole topic in parallel and numbers the records from 0. The topic's settings do not change. A last
record without a value (a tombstone) is dropped if it is older than the topic's `delete.retention.ms`. All records
without a key are kept. Records that arrive meanwhile are copied unchanged.

Any topic can be compacted. But if its `cleanup.policy` is not compact, its owner has not agreed that a later record
with the same key replaces earlier ones, so the command line requires `yes`. With `dry_run` nothing is changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..errors import InvalidConfig
from .rewrite import RewritePlan, RewriteReport, check_topic, plan_compaction, policy_of, rewrite
from .running import Advance, option, run_main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class CompactParams:
    """Parameters of `compact`."""

    data: str = option("the store's directory")
    topic: str = option("the topic")
    dry_run: bool = option("show how many records would be dropped, without changing anything", False)
    yes: bool = option("compact even if the topic's cleanup.policy is not compact", False)


def check_params(params: CompactParams) -> None:
    """Raise for errors that can be detected without Spark, and for a topic that is not meant to be compacted."""
    check_topic(params.data, params.topic)
    policy = policy_of(params.data, params.topic)
    if "compact" not in policy and not (params.yes or params.dry_run):
        raise InvalidConfig(
            f"the topic {params.topic} has cleanup.policy={policy}: compacting drops all but the last record of each "
            "key; give yes to do it anyway, or dry_run to see how many"
        )


def run(spark: SparkSession, params: CompactParams, progress: Advance | None = None) -> RewriteReport | RewritePlan:
    """Keep the last record of each key, or report what that would do. Calls from Python do not need `yes`: it is for
    command lines."""
    if params.dry_run:
        return plan_compaction(spark, params.data, params.topic, progress)
    return rewrite(spark, params.data, params.topic, None, last_only=True, progress=progress)


main = partial(run_main, CompactParams, run, "Rewrite a topic with the last record of each key.", check=check_params)
