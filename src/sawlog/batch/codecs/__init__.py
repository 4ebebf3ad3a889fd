"""Kafka's four codecs, one module each: `compress` and `decompress` whole buffers within the limits in bounds.py."""
