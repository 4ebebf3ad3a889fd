"""Appends and transactions for partitions whose lock another process holds: it places what others hand over.

See docs/adr/0018-the-holder-places.md.
"""
