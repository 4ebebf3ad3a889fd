"""What makes `format("sawlog")` known to Spark: it looks for modules called `pyspark_*` and imports them.

Every Spark user of an environment pays for this import, so nothing but pyspark's own interface is imported here; the
rest waits in `sawlog.spark` until somebody asks for the format.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """Spark's source and sink for a sawlog store; see `sawlog.spark`."""

    @classmethod
    def name(cls) -> str:
        """What `format()` is given."""
        return "sawlog"

    def schema(self) -> Any:
        """The columns, as a batch or a stream would have them."""
        from sawlog.spark import source

        return source.schema(self.options)

    def reader(self, schema: Any) -> Any:
        """A batch."""
        from sawlog.spark import source

        return source.reader(self.options, schema)

    def streamReader(self, schema: Any) -> Any:
        """A stream."""
        from sawlog.spark import source

        return source.stream_reader(self.options, schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """A batch that is written."""
        from sawlog.spark import source

        return source.writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        """A stream that is written."""
        from sawlog.spark import source

        return source.stream_writer(self.options, schema, overwrite=overwrite)
