"""Kafka's clients, unchanged: a store behind Kafka's wire protocol, and a small client for it.

`wire` knows bytes and nothing else: it imports neither asyncio nor sockets.
"""
