"""What bytes mean: Kafka's RecordBatch v2, built, taken apart, checked. Pure: nothing here does I/O.

`header.py` draws the format; `build.py` makes batches, `read.py` and `arrow.py` take them apart, `compression.py` and
`checksum.py` do what their names say, and `kernel.py` does everything that happens per record.
"""
