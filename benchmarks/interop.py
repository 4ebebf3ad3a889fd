"""`make bench-interop`: the speed of importing other systems' logs, and of exporting to their formats.

    python benchmarks/interop.py [--quick] [--only PATTERN] [--dir DIRECTORY] [--json FILE] [--list]

- *kafka*: import of a broker's directory into a store; batches are checked and copied unchanged. The batches have
  16 KiB, as Kafka clients send them, or 128 KiB; a third case is a compacted topic without every second batch (no bar:
  an empty batch fills each gap). Compared with a copy of the same files that ends with an fsync, as an import does (the
  bar: 60 % of its speed), and with a copy without fsync, like `cp`.
- *export*: export of a topic to a broker's directory, compared with the same copy.
- *others*: import of records of 100 bytes from laminarmq, RustLog, GUMLOG and the plain segmented log; every record is
  checked as its system would, and encoded again.

All files are in the page cache when they are read.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import command
from bench import Bench, Case
from dataset import Dataset
from rounds import Candidate, Trial, best_of, expect, timed
from rows import Row, Unit, at_least, rate, share

import sawlog
from sawlog import Log, LogConfig, interop
from sawlog.store.directory.store import DirectoryStore

PARTITIONS = 3
#: Values of 1 KiB: how many make a batch of about that size.
SMALL_BATCH, LARGE_BATCH = 15, 120
OTHERS = ("laminarmq", "rustlog", "gumlog", "plain")


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker's directory and its size."""

    path: Path
    records: int
    size_bytes: int

    @property
    def logs(self) -> list[Path]:
        """The files with the batches."""
        return sorted(self.path.glob("*/*.log"))


def _broker(bench: Bench, batch_records: int, *, compacted: bool = False) -> Broker:
    """Create a broker's directory by an export, which Kafka's tools can read (tests/interop/test_kafka_tools.py)."""
    count = bench.scaled(500_000, 150_000)
    data, path, source = Dataset(1024, count), bench.path(), bench.path()
    records = 0
    with DirectoryStore.open(source, maintenance_interval_s=None) as store:
        topic = store.create_topic("measured", PARTITIONS, durability="os")
        rows = [(value, key) for key, value in data.batch]
        for number in range(PARTITIONS):
            log = topic.partition(number)
            for _ in range(data.batches // PARTITIONS):
                for first in range(0, len(rows), batch_records):
                    batch = rows[first : first + batch_records]
                    if compacted:
                        log._advance(log.next_offset + len(batch))
                    log.append_many(batch)
                    records += len(batch)
        interop.export_topic(topic, path, format="kafka")
    shutil.rmtree(source)
    if compacted:
        _drop_empty_batches(path)
    made = Broker(path, records, 0)
    return Broker(path, records, sum(each.stat().st_size for each in made.logs))


def _drop_empty_batches(path: Path) -> None:
    """Remove empty batches like Kafka's cleaner, which leaves gaps. Kafka rebuilds the indexes."""
    from sawlog.batch.header import scan

    for log in path.glob("*/*.log"):
        raw = log.read_bytes()
        kept = [raw[each.position : each.position + each.size_bytes] for each in scan(raw) if each.count]
        log.write_bytes(b"".join(kept))
        for suffix in (".index", ".timeindex"):
            log.with_suffix(suffix).unlink()


def _importing(bench: Bench, broker: Broker) -> Candidate:
    @contextmanager
    def trial() -> Iterator[Trial]:
        target = bench.path()
        with DirectoryStore.open(target, maintenance_interval_s=None) as store:
            store.create_topic("measured", PARTITIONS)  # some fsyncs a partition, however much is in it
            done: list[interop.ImportReport] = []
            yield Trial(
                lambda: timed(lambda: done.append(interop.import_log(broker.path, store))),
                lambda: expect(_stored(store), broker.records, "records imported"),
            )
        shutil.rmtree(target)

    return Candidate("import", trial)


def _stored(store: DirectoryStore) -> int:
    return sum(log.verify().records for log in map(store["measured"].partition, range(PARTITIONS)))


def _copying(bench: Bench, broker: Broker, *, sync: bool) -> Candidate:
    @contextmanager
    def trial() -> Iterator[Trial]:
        target = bench.path()
        target.mkdir()
        files = [(each, target / f"{number}") for number, each in enumerate(broker.logs)]
        yield Trial(
            lambda: timed(lambda: _copy(files, sync=sync)),
            lambda: expect(sum(each.stat().st_size for _, each in files), broker.size_bytes, "bytes copied"),
        )
        shutil.rmtree(target)

    return Candidate("copy and fsync" if sync else "copy", trial)


def _copy(files: list[tuple[Path, Path]], *, sync: bool) -> None:
    for source, target in files:
        shutil.copyfile(source, target)
        if sync:
            with target.open("rb+") as file:
                os.fdatasync(file.fileno())


def _kafka(bench: Bench) -> list[Row]:
    rows = []
    for what, batch_records, bar in (
        ("batches of 16 KiB", SMALL_BATCH, share(0.6)),
        ("batches of 128 KiB", LARGE_BATCH, share(0.6)),
        ("16 KiB, half gone", SMALL_BATCH, None),
    ):
        broker = _broker(bench, batch_records, compacted=bar is None)
        candidates = [_importing(bench, broker)] + [_copying(bench, broker, sync=sync) for sync in (True, False)]
        best = best_of(candidates, bench.effort)
        figures = {name: rate(Unit.BYTES, sample, broker.size_bytes) for name, sample in best.items()}
        named = f"import of Kafka's, {broker.size_bytes / 1e6:.0f} MB, {what}"
        rows += [
            Row(named, figures["import"], "copy and fsync", figures["copy and fsync"], bar, percent=True),
            Row(named, figures["import"], "copy", figures["copy"], percent=True),
        ]
        shutil.rmtree(broker.path)
    return rows


def _export(bench: Bench) -> list[Row]:
    broker = _broker(bench, LARGE_BATCH)
    source = bench.path()
    with DirectoryStore.open(source, maintenance_interval_s=None) as store:
        interop.import_log(broker.path, store)
        topic = store["measured"]

        @contextmanager
        def trial() -> Iterator[Trial]:
            target = bench.path()
            yield Trial(
                lambda: timed(lambda: interop.export_topic(topic, target, format="kafka")),
                lambda: expect(
                    sum(each.stat().st_size for each in target.glob("*/*.log")), broker.size_bytes, "bytes exported"
                ),
            )
            shutil.rmtree(target)

        best = best_of([Candidate("export", trial), _copying(bench, broker, sync=True)], bench.effort)
    shutil.rmtree(source)
    shutil.rmtree(broker.path)
    figures = {name: rate(Unit.BYTES, sample, broker.size_bytes) for name, sample in best.items()}
    what = f"export as Kafka's, {broker.size_bytes / 1e6:.0f} MB"
    return [Row(what, figures["export"], "copy and fsync", figures["copy and fsync"], percent=True)]


def _others(bench: Bench) -> list[Row]:
    """Import into a log that is synced only at the end."""
    data = Dataset(100, bench.scaled(1_000_000, 100_000))
    rows = []
    source = bench.path()
    with Log.open(source, LogConfig(durability="os")) as log:
        values = [value for _, value in data.batch]
        for _ in range(data.batches):
            log.append_many(values)
        for system in OTHERS:
            foreign = bench.path()
            interop.export_log(log, foreign, format=system)
            best = best_of([_importing_one(bench, foreign, system, data.count)], bench.effort)
            figure = rate(Unit.RECORDS, best[system], data.count)
            rows.append(Row(f"import of {system}'s, {data.size}", figure, bar=at_least(Unit.RECORDS, 1e6)))
            shutil.rmtree(foreign)
    shutil.rmtree(source)
    return rows


def _importing_one(bench: Bench, source: Path, system: str, count: int) -> Candidate:
    @contextmanager
    def trial() -> Iterator[Trial]:
        target = bench.path()
        with Log.open(target, LogConfig(durability="os")) as log:
            work: Callable[[], object] = lambda: interop.import_log(source, log, format=system)  # noqa: E731
            yield Trial(lambda: timed(work), lambda: expect(log.verify().records, count, "records imported"))
        shutil.rmtree(target)

    return Candidate(system, trial)


CASES = [Case("kafka", _kafka), Case("export", _export), Case("others", _others)]

if __name__ == "__main__":
    assert sawlog.kernel_info().compiled, "the kernel is not compiled: run `make kernel`"
    command.run(CASES, "Measure imports from and exports to other systems' formats.")
