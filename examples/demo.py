"""The main demo: a shop's events through Spark, exactly once. Run it with `make demo`, or directly; see `--help`.

A Kafka client sends clicks and orders to a broker (`sawlog serve`). A Spark job in a separate process reads the
broker's directory, joins the events with the catalogue, aggregates them by minute and category, and writes the result
back into the store. Halfway through, the job is killed, Java included, and restarted. Then the result is computed again
without Spark and compared: no window may be lost, duplicated or different.

Then a year of sales, a million, becomes a Delta table. While sales continue, Spark and SQL query the table and the log
together, and the query is timed against plain Parquet files with the same rows.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import sys
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path

# The demo prints whether the kernel is compiled.
warnings.filterwarnings("ignore", message="sawlog: interpreted kernel", category=RuntimeWarning)

import sawlog  # noqa: E402 - after the filter above

try:
    import deltalake  # noqa: F401 - for the table, in a process of its own
    import duckdb  # noqa: F401 - for SQL
    from confluent_kafka import Producer
    from demo_parts import both, check, events, processes
    from tour_parts.screen import Screen, duration, size

    from sawlog.cli import charts as plot
except ModuleNotFoundError as error:
    sys.exit(f"the demo needs {error.name}: run make setup, or pip install '.[cli,spark,sql]' confluent-kafka")

JOB = Path(__file__).with_name("demo_parts") / "job.py"
PARTITIONS = 3
PATIENCE_S = 600.0

_EXAMPLES = """\
examples:
  python examples/demo.py                      all of it, results in demo-output
  python examples/demo.py --events 20000 --sales 100000     a short one
  python examples/demo.py --output elsewhere   results there; an existing directory of an earlier run is replaced
"""


def arguments(given: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="demo.py",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--events", type=int, default=100_000, metavar="N", help="how many events (default: %(default)s)"
    )
    parser.add_argument(
        "--sales",
        type=int,
        default=1_000_000,
        metavar="N",
        help="how many sales in the second half (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("demo-output"), help="where results go (default: %(default)s)"
    )
    asked = parser.parse_args(given)
    if asked.events < 2000:
        parser.error("--events: a demo needs at least 2,000")
    if asked.sales < 10_000:
        parser.error("--sales: a table needs at least 10,000 to be worth it")
    if asked.output.exists() and not (asked.output / "store" / "sawlog.json").exists() and any(asked.output.iterdir()):
        parser.error(f"{asked.output} is not empty and not of an earlier run; choose another --output")
    return asked


def main(given: list[str] | None = None) -> int:
    """Run the demo; return 0 if every check holds."""
    asked = arguments(given)
    if asked.output.exists():
        shutil.rmtree(asked.output)
    asked.output.mkdir(parents=True)
    screen = Screen()
    kernel = "compiled kernel" if sawlog.kernel_info().compiled else "interpreted kernel (no C compiler was found)"
    screen.head(
        "sawlog: a stream through Spark, exactly once; and a topic that is a table",
        f"sawlog {sawlog.__version__}, {kernel}",
    )
    store = asked.output / "store"
    most = max(asked.events // 4, 1000)
    job = (JOB, store, asked.output, most)
    with processes.started(asked.output, *job) as process:  # Spark starts meanwhile
        write(screen, asked.output, store, asked.events)
        kill(screen, asked.output, store, process)
    with processes.started(asked.output, *job) as process:
        restart(screen, asked.output, process, asked.events)
        compared = compare(screen, store)
        look(screen, asked.output, compared)
        both.play(screen, asked.output, store, asked.sales, process)
        process.communicate()
    screen.act("Summary", "Every number was measured in this run.")
    times = [at for _, at in screen.marks]
    rows = zip(screen.marks, times, times[1:], strict=False)
    screen.table(
        ("act", "began", "took"),
        [(title, f"{at - times[0]:.1f} s", f"{end - at:.1f} s") for (title, _), at, end in rows],
    )
    screen.summary()
    screen.facts(
        ("table", str(asked.output / "revenue.csv")),
        ("picture", str(asked.output / "revenue.svg")),
        ("look on", f"sawlog read revenue -d {store} -o -3"),
        ("query", f'sawlog sql "select count(*), max(timestamp) from sales" -d {store}'),
    )
    screen.line()
    if screen.failed:
        screen.print(f"{len(screen.failed)} of {screen.checks} checks FAILED", "bold red")
        return 1
    screen.print(f"All {screen.checks} checks held.", "bold green")
    return 0


def write(screen: Screen, output: Path, path: Path, count: int) -> None:
    """Act one."""
    screen.act(
        "Write",
        "A Kafka client sends clicks and orders to a broker: few customers and products get most of it, some comes "
        "late.",
    )
    with sawlog.open(path, maintenance_interval_s=None) as store:
        catalogue = store.create_topic("products", 1, cleanup_policy="compact")
        catalogue.append_many([(value, key) for key, value in events.products()])
        for name in ("clicks", "orders"):
            store.create_topic(name, PARTITIONS)
        store.create_topic("revenue", PARTITIONS)
    with processes.broker(output, path) as address:
        began = time.perf_counter()
        settings = {"bootstrap.servers": address, "enable.idempotence": True, "compression.type": "lz4"}
        producer = Producer({**settings, "queue.buffering.max.messages": 10_000_000})
        with screen.progress(count) as bar:
            for number, event in enumerate(events.events(count), 1):
                producer.produce(event.topic, event.value, event.key, timestamp=event.time_ms)
                if number % 1000 == 0:
                    producer.poll(0)
                    bar.advance(1000)
        unsent = producer.flush(PATIENCE_S)
        del producer  # closes its connections before the broker ends
        screen.result("sent by a Kafka client", count, "events", time.perf_counter() - began)
    with sawlog.open(path, mode="r") as store:
        described = [store[name].describe() for name in ("clicks", "orders", "products")]
    screen.table(
        ("topic", "partitions", "records", "size"),
        [(each.name, str(each.partitions), f"{each.records:,}", size(each.size_bytes)) for each in described],
    )
    stored = sum(each.records for each in described[:2])
    screen.check(unsent == 0 and stored == count + 128, f"{count:,} events are acknowledged and in the store")


# --- the job


def kill(screen: Screen, output: Path, path: Path, process: processes.Process) -> None:
    """Act two."""
    screen.act("Kill", "The job runs, and when it has written its first results it is killed: kill -9, Java and all.")
    began = time.perf_counter()
    processes.ask(process, "stream")
    with screen.waiting("Spark starts, reads and writes its first results"):
        before = wait_for_results(process, path, output)
    processes.kill(process)
    lag = sum(row.lag for row in described(path))
    screen.check(
        before > 0, f"killed after {before:,} windows had been written, {duration(time.perf_counter() - began)} in"
    )
    screen.check(lag > 0, f"it was in the middle: {lag:,} events were still to be read")
    staged = [each for each in (path / "staging").glob("*") if not each.name.startswith("=")]
    screen.print(f"left behind in staging/: {len(staged)} files", "dim")


def restart(screen: Screen, output: Path, process: processes.Process, count: int) -> None:
    """Act three."""
    screen.act("Restart", "The same job again. It continues at its checkpoint, and repeats what was not finished.")
    began = time.perf_counter()
    processes.ask(process, "stream")
    with screen.waiting("Spark starts again and reads the rest"):
        found = processes.answer(process, output)
    screen.check(found["micro_batches"] > 0, f"it finished after {found['micro_batches']} more micro-batches")
    screen.result("events read, joined and added up", count, "events", time.perf_counter() - began)


def wait_for_results(process: processes.Process, path: Path, output: Path) -> int:
    """Wait until the job has written records; return how many."""
    deadline = time.monotonic() + PATIENCE_S
    with sawlog.open(path, mode="r") as store:
        while time.monotonic() < deadline:
            found = store["revenue"].describe().records
            if found:
                return found
            if process.poll() is not None:
                sys.exit(f"the job ended too early; {output / 'job.log'} says why")
            time.sleep(0.05)
    sys.exit(f"the job has written nothing; {output / 'job.log'} says why")


def described(path: Path) -> tuple[sawlog.GroupRow, ...]:
    """Return the progress of the job, as a consumer group; empty before its first progress."""
    with sawlog.open(path, mode="r") as store:
        try:
            return store.groups.describe("revenue-job").rows
        except sawlog.errors.GroupNotFound:
            return tuple(
                sawlog.GroupRow(topic, number, None, each.lowest, each.next, each.next - each.lowest, None)
                for topic in ("clicks", "orders")
                for number, each in store[topic].offsets().items()
            )


# --- the result


def compare(screen: Screen, path: Path) -> check.Comparison:
    """Act four."""
    screen.act(
        "Compare", "Everything once more, without Spark: every event read, looked up and added up in plain Python."
    )
    with sawlog.open(path, maintenance_interval_s=None) as store, screen.waiting("adding up"):
        found = check.compare(store)
        healthy = all(topic.partition(n).verify() for topic in store for n in range(topic.partitions))
        staged = [each.name for each in (path / "staging").glob("*.batches")]
    screen.check(not found.missing, f"{len(found.expected):,} windows expected, {len(found.missing)} missing")
    screen.check(not found.doubled, f"{len(found.doubled)} windows twice")
    screen.check(not found.wrong, f"{len(found.wrong)} windows with other numbers")
    screen.check(healthy, "every batch of every topic has the right checksum")
    screen.check(not staged, "nothing is left in staging/")
    return found


def look(screen: Screen, output: Path, compared: check.Comparison) -> None:
    """Act five: a table and a picture."""
    screen.act("Look", "What came of it.")
    rows = sorted((minute, category, *totals) for (minute, category), totals in compared.found.items())
    with (output / "revenue.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("minute", "category", "clicks", "orders", "revenue_cents"))
        for minute, *rest in rows:
            writer.writerow((datetime.fromtimestamp(minute / 1000, UTC).isoformat(), *rest))
    minutes = sorted({minute for minute, *_ in rows})
    by_minute = [sum(row[4] for row in rows if row[0] == minute) / 100 for minute in minutes]
    by_category = {name: sum(row[4] for row in rows if row[1] == name) / 100 for name in events.CATEGORIES}
    charts: list[plot.TimeChart | plot.BarChart] = [
        plot.TimeChart("Revenue a minute", "euros", minutes[0], check.MINUTE_MS, by_minute, _euros),
        plot.BarChart("Revenue by category", "euros", list(by_category), list(by_category.values()), _euros),
    ]
    (output / "revenue.svg").write_text(plot.svg(charts), encoding="utf-8")
    for chart in charts:
        for line in plot.text_lines(chart, screen.width):
            screen.print(line)
        screen.line()
    totals = {name: [row[2:] for row in rows if row[1] == name] for name in events.CATEGORIES}
    screen.table(
        ("category", "windows", "clicks", "orders", "revenue"),
        [
            (name, f"{len(each):,}", *(f"{sum(row[at] for row in each):,}" for at in (0, 1)),
             _euros(sum(row[2] for row in each) / 100))
            for name, each in totals.items()
        ],
    )  # fmt: skip


def _euros(value: float) -> str:
    return f"{value:,.0f} €"


if __name__ == "__main__":
    sys.exit(main())
