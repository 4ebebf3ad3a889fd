"""The small files beside the segments, and how all files are named: one module per file.

Each is replaced as a whole. What it says can be checked, and can be rebuilt from the batches if it is lost.
"""
