"""Jobs that run on Spark: files into a topic, a topic into Parquet or Delta, checks, repartitioning, statistics.

    ingest        text, JSON lines, CSV or Parquet files into a topic; once or continuously
    export        a topic to partitioned Parquet or a Delta table; once or continuously
    table         a topic as a Delta, Iceberg or Parquet table with typed columns; once or continuously
    verify        every batch of every segment of a store, in parallel
    repartition   a topic with a different number of partitions
    stats         records, bytes, keys and rates over time
    scaffold      a project for Spark's own declarative pipelines around a topic

Each is a module with a frozen dataclass of parameters and `run(spark, params, progress=None)`, which returns a report.
Call it from Python, as `sawlog pipeline …`, or on a cluster whose machines all see the store under the same path:

    spark-submit $(sawlog pipeline script) ingest orders incoming -d data

Streaming jobs are exactly once: they keep a checkpoint. To resume after a crash, run the job again.
"""
