"""Topics as tables: for SQL (DuckDB), Polars, pandas and every other reader of Arrow datasets.

`Store.sql`, `Topic.arrow` and their siblings are the entry points. `TopicDataset` is the table: a
`pyarrow.dataset.Dataset` that receives the columns and the filter of a query, reads in threads only the parts that can
match, and stops where the topic ended when the query began.

This package reads and never writes: it needs `plan`, `slices` and `blocks` of a topic.
"""
