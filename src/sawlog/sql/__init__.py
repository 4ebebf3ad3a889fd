"""Topics as tables: for SQL (DuckDB), Polars, pandas and whatever else reads an Arrow dataset.

`Store.sql`, `Topic.arrow` and their neighbours are the doors. `TopicDataset` is the table: a `pyarrow.dataset.Dataset`
of ours, which gets the wanted columns and the filter of a query, reads only what these leave, in threads, and stops
where the topic ended when the query began.

This package knows logs, not stores: `sources.py` says what it needs of a store. It reads and never writes.
"""
