"""Kafka's four codecs, one module each: `compress` and `decompress` of whole buffers, within what bounds.py allows."""
