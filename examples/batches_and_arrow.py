"""Many records at once: an atomic batch, a buffered writer, and Arrow tables in and out."""

from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc

from sawlog import Log, LogConfig

with TemporaryDirectory() as directory, Log.open(directory, LogConfig(compression="zstd")) as log:
    # One batch: stored completely or not at all, even after a crash.
    print("batch:", log.append_many([b"plain", (b"with a key", b"k"), {"value": b"as a dict", "timestamp": 1_000}]))

    # The fast way to append single records: offsets are known when the writer flushes.
    with log.writer() as writer:
        for number in range(10_000):
            writer.append(b"%d" % number, key=b"odd" if number % 2 else b"even")
    print("after the writer:", log.next_offset)

    # No Python object per record, in either direction.
    print("table:", log.append_arrow(pa.table({"value": ["x", "yy", "zzz"], "key": ["a", "b", "c"]})))

    table = pa.Table.from_batches(log.scan_arrow(start=3))
    print("columns:", table.column_names)
    counts = {row["values"]: row["counts"] for row in pc.value_counts(table["key"]).to_pylist()}
    print("records per key:", counts)
    print("longest value:", pc.max(pc.binary_length(table["value"])).as_py(), "bytes")
