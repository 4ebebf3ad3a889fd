"""A Kafka broker over a store, for unmodified Kafka clients, and a small client for it.

`wire` implements the protocol without I/O: it imports neither asyncio nor sockets.
"""
