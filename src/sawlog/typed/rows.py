"""`ArrowRows`: a value is a few rows with a fixed schema, as an Arrow IPC stream that any Arrow library reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..batch.given import GivenSchema
from ..errors import InvalidConfig, InvalidRecordType

if TYPE_CHECKING:
    import pyarrow as pa


class ArrowRows:
    """Values are `pyarrow.RecordBatch`es of one schema. The schema is stored with each value (a few hundred bytes), so
    a value that was written with another one is found out and not misread.

    For large tables of keys and values use `append_arrow`: one record per row.
    """

    def __init__(self, schema: GivenSchema) -> None:
        import pyarrow as pa

        if not isinstance(schema, pa.Schema):
            raise InvalidConfig(f"ArrowRows expects a pyarrow.Schema, not {type(schema).__name__}")
        self._schema = schema

    def encode(self, value: pa.RecordBatch, /) -> bytes:
        """The rows as an IPC stream; `InvalidRecordType` if they have another schema."""
        import pyarrow as pa

        if not isinstance(value, pa.RecordBatch):
            raise InvalidRecordType(f"expected a pyarrow.RecordBatch, not {type(value).__name__}")
        if not value.schema.equals(self._schema):
            raise InvalidRecordType(f"expected rows of ({_shown(self._schema)}), not ({_shown(value.schema)})")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as stream:
            stream.write_batch(value)
        made: bytes = sink.getvalue().to_pybytes()
        return made

    def decode(self, data: bytes, /) -> pa.RecordBatch:
        """The rows; `ValueError` if the bytes are not rows of this schema."""
        import pyarrow as pa

        with pa.ipc.open_stream(data) as stream:
            if not stream.schema.equals(self._schema):
                raise ValueError(f"expected rows of ({_shown(self._schema)}), not ({_shown(stream.schema)})")
            batches = list(stream)
        for batch in batches:
            batch.validate(full=True)  # the bytes are anybody's
        if len(batches) != 1:
            raise ValueError(f"expected one record batch, found {len(batches)}")
        return batches[0]

    def __repr__(self) -> str:
        return f"ArrowRows({_shown(self._schema)})"


def _shown(schema: Any) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
