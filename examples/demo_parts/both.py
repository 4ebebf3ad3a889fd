"""The second half of the demo: a topic of a few million records that is also a table, and queries over both."""

from __future__ import annotations

import time
from pathlib import Path

import duckdb
from tour_parts.screen import Screen

import sawlog

from . import processes, sales

PARTITIONS = 4
#: Number of runs of the last query, over topic and table and over Parquet files; the best one counts.
QUERY = "select decode(key) as customer, count(*) as sales from {} group by key order by sales desc, customer limit 5"
BEST_OF = 5


def play(screen: Screen, output: Path, path: Path, count: int, process: processes.Process) -> None:
    """Acts six and seven, with the Spark process of the acts before."""
    screen.act(
        "Table", f"{count:,} sales of a year become a Delta table in the same Spark, with the fields as columns."
    )
    totals = sales.Totals()
    newer = round(count * (1 - sales.TAIL))
    with sawlog.open(path, maintenance_interval_s=None) as store:
        topic = store.create_topic("sales", PARTITIONS, durability="os", compression_type="lz4")
        sell(screen, topic, totals, 0, newer, count)
        processes.ask(process, "table")
        with screen.waiting("making the table"):
            made = processes.answer(process, output)
        screen.check(made["records"] == newer, f"{made['records']:,} sales are in the table")
        screen.result("parsed and added to the table", newer, "sales", made["took"])
        screen.act(
            "Query", "Sales go on. One query over the table and the log's tail; the same over plain Parquet files."
        )
        sell(screen, topic, totals, newer, count, count)
        processes.ask(process, "query")
        with screen.waiting("copying everything to Parquet files, then querying both"):
            found = processes.answer(process, output)
        screen.check(
            (found["sales"], found["cents"]) == (totals.sales, totals.cents), "Spark has added up every sale once"
        )
        rate_of(screen, "Spark", count, found["seconds"], found["parquet_seconds"])
        ask(screen, store, output, totals)


def sell(screen: Screen, topic: sawlog.Topic, totals: sales.Totals, first: int, last: int, count: int) -> None:
    """Write the sales with these numbers."""
    spent = 0.0
    with screen.progress(last - first) as bar:
        for chunk in sales.sales(first, last, count, totals):
            began = time.perf_counter()
            topic.append_arrow(chunk)
            spent += time.perf_counter() - began
            bar.advance(chunk.num_rows)
    screen.result("written" if not first else "newer ones written", last - first, "sales", spent)


def ask(screen: Screen, store: sawlog.Store, output: Path, totals: sales.Totals) -> None:
    """Run the same query in one line of SQL, without Spark."""
    ours, theirs = [], []
    for _ in range(BEST_OF):
        began = time.perf_counter()
        found = store.sql(QUERY.format("sales")).to_pylist()
        ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        duckdb.execute(QUERY.format(f"'{output}/parquet/*.parquet'")).fetchall()
        theirs.append(time.perf_counter() - began)
    same = [(row["customer"], row["sales"]) for row in found] == totals.best(len(found))
    screen.check(same, f"store.sql: the best customer, {found[0]['customer']}, has bought {found[0]['sales']:,} times")
    rate_of(screen, "SQL", totals.sales, min(ours), min(theirs))


def rate_of(screen: Screen, who: str, count: int, seconds: float, parquet_seconds: float) -> None:
    """Print the rate, and how it compares with Parquet."""
    rate, ratio = count / seconds / 1e6, parquet_seconds / seconds
    screen.print(f"{who}, table and log: {rate:.1f} million events/s, {ratio:.2f} × Parquet", "bold")
    screen.result(f"queried by {who}", count, "sales", seconds)
