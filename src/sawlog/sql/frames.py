"""Topics for Polars and pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ..errors import MissingPackage
from .dataset import TopicDataset

if TYPE_CHECKING:
    import pandas
    import polars


def lazy_frame(dataset: TopicDataset) -> polars.LazyFrame:
    """A lazy frame over a topic. Polars hands over the columns and the filter of a query as it does to any Arrow
    dataset, and reads batch by batch."""
    try:
        import polars
    except ImportError as error:
        raise MissingPackage("Topic.polars needs polars: run pip install '.[polars]' in a clone of sawlog") from error
    return polars.scan_pyarrow_dataset(dataset)


def data_frame(table: pa.Table) -> pandas.DataFrame:
    """A table in pandas."""
    try:
        import pandas  # noqa: F401 - Arrow's own message does not say how to install it
    except ImportError as error:
        raise MissingPackage("Topic.to_pandas needs pandas: run pip install pandas") from error
    return table.to_pandas()
