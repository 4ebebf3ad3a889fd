"""Segments: a file of batches, its indexes, and the list of segments that is a log.

Nothing here takes the writer's lock or decides what is durable: that is `write`.
"""
