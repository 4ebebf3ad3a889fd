"""What bytes mean: Kafka's RecordBatch v2, encoded, decoded, checked. Pure: nothing here does I/O.

`header.py` draws the format; `build.py` encodes batches, `read.py` and `arrow.py` decode them, `compression.py` and
`checksum.py` do what their names say, and `kernel` does everything that happens per record.
"""
