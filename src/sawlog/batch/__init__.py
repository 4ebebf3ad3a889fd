"""Kafka's RecordBatch v2: encoding, decoding and checking. Pure functions over buffers, no I/O.

`header.py` draws the format; `build.py` encodes batches, `read.py` and `arrow.py` decode them; `kernel` contains all
per-record work.
"""
