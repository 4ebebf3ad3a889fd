"""A partition stored in files: segments, indexes, recovery, reads, appends and maintenance.

`Log` (log.py) is the public interface and the place to start reading. Every other module is about one noun.
"""
