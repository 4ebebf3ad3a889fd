"""One partition in files: segments, indexes, recovery, and everything a caller does with them.

`Log` is the public interface; the other modules have one noun each. Start reading at `log.py`.
"""
