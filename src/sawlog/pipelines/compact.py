"""`compact`: rewrite a topic so that each key has its last record only; see rewrite.py for how it is swapped in.

Unlike upkeep with `cleanup.policy=compact`, which goes through one log at a time, keeps offsets and leaves the active
segment alone, this takes the whole topic at once, in parallel, and numbers the records from 0. The topic's settings
stay what they are. A last record without a value (a tombstone) is dropped once it is older than the topic's
`delete.retention.ms`. Records without a key all stay. Records that come while it runs are brought over as they are.

Any topic can be compacted. But where `cleanup.policy` is not compact, nobody has said that a record may be dropped when
a later one has its key, so a command line has to say `yes`. With `dry_run` nothing is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InvalidConfig
from .arguments import option, run_main
from .rewrite import RewritePlan, RewriteReport, check_topic, planned, policy_of, rewrite
from .running import Progress

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
    """What is wrong and can be known without Spark: also that the topic is not one to be compacted."""
    check_topic(params.data, params.topic)
    policy = policy_of(params.data, params.topic)
    if "compact" not in policy and not (params.yes or params.dry_run):
        raise InvalidConfig(
            f"the topic {params.topic} has cleanup.policy={policy}: compacting drops all but the last record of each "
            "key; give yes to do it anyway, or dry_run to see how many"
        )


def run(spark: SparkSession, params: CompactParams, progress: Progress | None = None) -> RewriteReport | RewritePlan:
    """Keep the last record of each key, or say what that would do. Who calls this from Python has decided: `yes` is for
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
