"""Many logs with names: a store of topics with partitions, and the progress of their consumers.

Start reading at `store.py`. Everything on disk goes through `sawlog.storage.Directory`.
"""
