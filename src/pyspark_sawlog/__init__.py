"""Registration of `format("sawlog")`: Spark imports every module called `pyspark_*`.

Every Spark session in the environment pays for this import, so it imports only pyspark's own interface. `sawlog.spark`
is imported when the format is used.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """Spark's source and sink for a sawlog store; see `sawlog.spark`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "sawlog"

    def schema(self) -> Any:
        """Return the columns of a batch or a stream."""
        from sawlog.spark import source

        return source.schema(self.options)

    def reader(self, schema: Any) -> Any:
        """Return a batch reader."""
        from sawlog.spark import source

        return source.reader(self.options, schema)

    def streamReader(self, schema: Any) -> Any:
        """Return a stream reader."""
        from sawlog.spark import source

        return source.stream_reader(self.options, schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Return a batch writer."""
        from sawlog.spark import source

        return source.writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        """Return a stream writer."""
        from sawlog.spark import source

        return source.stream_writer(self.options, schema, overwrite=overwrite)
