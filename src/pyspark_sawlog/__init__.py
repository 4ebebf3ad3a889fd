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
        from sawlog.spark import options

        return options.schema(self.options)

    def reader(self, schema: Any) -> Any:
        """Return a batch reader."""
        from sawlog.spark import options, reading

        chosen = options.read_options(self.options, streaming=False)
        return reading.BatchReader(chosen, options.check_read_columns(schema))

    def streamReader(self, schema: Any) -> Any:
        """Return a stream reader."""
        from sawlog.spark import options, streaming

        chosen = options.read_options(self.options, streaming=True)
        return streaming.StreamReader(chosen, options.check_read_columns(schema))

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Return a batch writer."""
        from sawlog.errors import InvalidConfig
        from sawlog.spark import options, writing

        if overwrite:
            raise InvalidConfig('a log can only be appended to: use .mode("append"), not overwrite')
        return writing.BatchWriter(options.write_options(self.options), options.check_written_columns(schema))

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        """Return a stream writer."""
        from sawlog.errors import InvalidConfig
        from sawlog.spark import options, writing

        if overwrite:
            raise InvalidConfig('a log can only be appended to: use .outputMode("append"), not complete')
        return writing.StreamWriter(options.write_options(self.options), options.check_written_columns(schema))
