"""Batches for several partitions, stored all or not at all.

`intents.py` explains how and why. `transaction.py` is for one process, `staging.py` for a job of many.
"""
