"""Throughput and lag of a replica: `python benchmarks/replicas.py [MEGABYTES]`.

A proxy (tests/objects/proxy.py, in its own process) adds 50 ms to every request, because a server on the same machine
is nearer than any bucket. The server is SeaweedFS, or moto if SeaweedFS is not installed.

- *ship* and *restore*: a store of that size in records of 1000 bytes, in four partitions.
- *behind*: a writer appends 1,000 records a second for ten seconds; the time from each append until a client that polls
  the server sees the record in the replica.
- *requests*: requests per second of the replicator, during the writes and afterwards.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from tests.objects import servers  # noqa: E402
from tests.objects.proxy import Faults, Proxy  # noqa: E402

import sawlog  # noqa: E402
from sawlog.store.objects.store import ObjectStore  # noqa: E402
from sawlog.store.replica import replicate, restore  # noqa: E402

LATENCY_S = 0.05
PARTITIONS, VALUE_BYTES, BATCH = 4, 1000, 100
RATE, SECONDS = 1000, 10


@contextmanager
def server(place: Path) -> Iterator[servers.Server]:
    """SeaweedFS if it is there, else moto."""
    if shutil.which("weed") or (Path(sys.executable).parent / "weed").exists():
        with servers.seaweedfs(place) as found:
            yield found
    else:
        with servers.moto() as found:
            yield found


@contextmanager
def slowed(endpoint: str) -> Iterator[str]:
    """The endpoint of a proxy in a process of its own."""
    command = [sys.executable, "-m", "tests.objects.proxy", endpoint, "--latency-ms", str(int(LATENCY_S * 1000))]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.kill()


def fill(store: sawlog.Store, size: int) -> None:
    """A topic of that size."""
    topic, value = store.create_topic("orders", PARTITIONS), b"x" * VALUE_BYTES
    for number in range(size // (VALUE_BYTES * BATCH)):
        topic.append_many([value] * BATCH, partition=number % PARTITIONS)


def main(megabytes: int) -> None:
    """Measure, and print."""
    with tempfile.TemporaryDirectory() as name, server(Path(name) / "server") as found:
        place = Path(name)
        url = found.new_url()
        with sawlog.open(place / "data", maintenance_interval_s=None) as store, slowed(found.endpoint) as endpoint:
            options = {**found.options, "endpoint": endpoint}
            fill(store, megabytes * 1_000_000)
            began = time.perf_counter()
            done = replicate(place / "data", url, once=True, options=options, maintenance_interval_s=None)
            print(f"ship      {done.size_bytes / (time.perf_counter() - began) / 1e6:8.1f} MB/s")
            began = time.perf_counter()
            back = restore(url, place / "again", options=options)
            print(f"restore   {back.size_bytes / (time.perf_counter() - began) / 1e6:8.1f} MB/s")
            assert back.size_bytes == done.size_bytes
        with sawlog.open(place / "live", maintenance_interval_s=None) as store:
            follow(store, place / "live", found.new_url(), found)


def requests(proxy: Proxy) -> int:
    """Number of requests so far."""
    return sum(proxy.counts[method] for method in ("GET", "PUT", "POST", "HEAD", "DELETE"))


def follow(store: sawlog.Store, data: Path, url: str, found: servers.Server) -> None:
    """Run a writer, a replicator behind a proxy, and a client that polls the replica."""
    log = store.create_topic("orders").partition(0)
    appended: list[float] = []
    delays: list[float] = []
    stopped = threading.Event()
    with Proxy(found.endpoint, Faults(latency_s=LATENCY_S)) as proxy:
        options = {**found.options, "endpoint": proxy.endpoint}
        with ObjectStore.open(url, options=found.options, maintenance_interval_s=None) as watched:
            more = {"options": options, "stopped": stopped, "maintenance_interval_s": None}
            shipping = threading.Thread(target=replicate, args=(data, url), kwargs=more)
            shipping.start()
            time.sleep(2)
            before = requests(proxy)

            def look() -> None:
                seen = 0
                while seen < RATE * SECONDS:
                    end = watched._session.look(lambda state: state.ends(store["orders"].id, 0)[1], fresh=True)
                    now = time.perf_counter()
                    delays.extend(now - each for each in appended[seen:end])
                    seen = max(seen, end)
                    time.sleep(0.005)

            watching = threading.Thread(target=look)
            watching.start()
            began = time.perf_counter()
            for number in range(RATE * SECONDS):
                log.append(b"x" * 200)
                appended.append(time.perf_counter())
                time.sleep(max(began + number / RATE - time.perf_counter(), 0))
            watching.join()
            busy = (requests(proxy) - before) / (time.perf_counter() - began)
            before, began = requests(proxy), time.perf_counter()
            time.sleep(10)
            idle = (requests(proxy) - before) / (time.perf_counter() - began)
            stopped.set()
            shipping.join()
    cuts = statistics.quantiles(delays, n=100)
    print(f"behind    {cuts[49]:8.2f} s p50, {cuts[98]:.2f} s p99, {max(delays):.2f} s at most")
    print(f"requests  {busy:8.1f} a second at {RATE} records a second, {idle:.1f} idle")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
