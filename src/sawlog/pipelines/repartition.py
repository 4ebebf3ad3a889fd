"""`repartition`: rewrite a topic with a different number of partitions, more or fewer; see rewrite.py.

With an unchanged number it moves every record to the partition of its key: after partitions were added to a topic,
older records are still where their keys belonged before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..errors import InvalidConfig
from .rewrite import RewriteReport, check_topic, rewrite
from .running import Advance, option, run_main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class RepartitionParams:
    """Parameters of `repartition`."""

    data: str = option("the store's directory")
    topic: str = option("the topic")
    partitions: int = option("the new number of partitions")


def check_params(params: RepartitionParams) -> None:
    """Raise for errors that can be detected without Spark."""
    check_topic(params.data, params.topic)
    if params.partitions < 1:
        raise InvalidConfig(f"partitions must be at least 1, not {params.partitions}")


def run(spark: SparkSession, params: RepartitionParams, progress: Advance | None = None) -> RewriteReport:
    """Distribute the records over that many partitions."""
    return rewrite(spark, params.data, params.topic, params.partitions, last_only=False, progress=progress)


main = partial(run_main, RepartitionParams, run, "Change the number of partitions of a topic.", check=check_params)
