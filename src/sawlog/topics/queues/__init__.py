"""Queues: records of a topic that are handed to workers one by one, and acknowledged one by one.

`Store.queue` returns a `Queue`. docs/adr/0024-a-queue-is-pages-in-the-groups-log.md says how and why.
"""
