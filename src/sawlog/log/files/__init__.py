"""The small files next to the segments, and the names of all files: one module per file.

Each is replaced as a whole. Its content can be checked, and rebuilt from the batches if it is lost.
"""
