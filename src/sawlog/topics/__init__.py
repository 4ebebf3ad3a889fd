"""Many logs with names: a store of topics, each with partitions, and who has read how far.

Start reading at `store.py`. Everything on disk goes through `sawlog.storage.Directory`.
"""
