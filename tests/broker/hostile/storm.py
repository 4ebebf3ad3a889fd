"""A broker process under attack: its memory has a limit, and good clients are served meanwhile.

`python -m tests.broker.hostile.storm [--seconds 20]` does that with each attack and with all of them at once. It prints
how long good clients waited before and meanwhile, and how much memory there was.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from sawlog.broker.wire import ErrorCode, Key

from ...faults.report import say
from ..peers import Peer, batch, fetch_body, produce_body
from ..serving import Serving
from .attacks import ATTACKS, TOPIC, attacking

MIB = 1 << 20
#: Memory that the broker may use beyond that of an idle broker that has served a client: its budget for buffers, a
#: quarter more for small requests, a decompressed batch, and some for Python, thousands of connections and threads.
BUDGET, UNPACKED, OTHER = 128 * MIB, 32 * MIB, 160 * MIB
SETTINGS = ("--set", f"max_buffered_bytes={BUDGET}", "--set", f"max_decompressed_bytes={UNPACKED}")


class Limited(Serving):
    """A broker whose address space has a limit."""

    def __init__(self, data: Path) -> None:
        os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # arenas take address space, not memory
        super().__init__(data, *SETTINGS, "--set", "first_frame_timeout_s=3", "--set", "frame_timeout_s=5", fresh=True)

    def limit(self) -> int:
        """Limit the address space of the process; return the limit."""
        most = self.size_bytes("VmSize") + BUDGET * 5 // 4 + UNPACKED + OTHER
        resource.prlimit(self.pid, resource.RLIMIT_AS, (most, most))
        return most

    def size_bytes(self, name: str) -> int:
        """A line of /proc/PID/status."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    @property
    def descriptors(self) -> int:
        """Number of open files and sockets."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


@dataclass(slots=True)
class Served:
    """Latencies of good clients: seconds for each produce and the fetch after it."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    def at(self, share: float) -> float:
        """The time within which this share was served."""
        return sorted(self.seconds)[min(int(len(self.seconds) * share), len(self.seconds) - 1)]

    def __str__(self) -> str:
        return (
            f"{len(self.seconds):5} served, p50 {self.median_s * 1e3:6.2f} ms, "
            f"p90 {self.at(0.9) * 1e3:6.2f} ms, p99 {self.at(0.99) * 1e3:7.2f} ms, {self.failed} failed"
        )


def warm(address: str, *, records: int = 60) -> None:
    """Make the broker start all threads, import all modules and store records worth fetching."""
    with Peer(address) as peer:
        for name in (TOPIC, "good"):
            peer.ask(Key.METADATA, 9, {"topics": [{"name": name}], "allow_auto_topic_creation": True})
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            raw = batch(*[os.urandom(1000)] * 800, compression=codec)
            peer.ask(Key.PRODUCE, 9, produce_body(TOPIC, raw))
        for _ in range(records):
            peer.ask(Key.PRODUCE, 9, produce_body(TOPIC, batch(os.urandom(900_000))))


def be_good(address: str, seconds: float) -> Served:
    """Produce a record and fetch it, twenty times a second, on a connection that is opened again now and then."""
    served, deadline = Served(), time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with Peer(address) as peer:
                for _ in range(50):
                    began = time.monotonic()
                    _put_and_get(peer)
                    served.seconds.append(time.monotonic() - began)
                    time.sleep(max(0.05 - served.seconds[-1], 0))
                    if time.monotonic() > deadline:
                        break
        except (OSError, EOFError):
            served.failed += 1
    return served


def _put_and_get(peer: Peer) -> None:
    raw = batch(b"x" * 1000)
    [answer] = peer.ask(Key.PRODUCE, 9, produce_body("good", raw))["responses"]
    [part] = answer["partition_responses"]
    assert part["error_code"] == ErrorCode.NONE, part
    [found] = peer.ask(Key.FETCH, 11, fetch_body("good", part["base_offset"], wait_ms=5000))["responses"]
    assert bytes(found["partitions"][0]["records"])[8:] == raw[8:]


def main() -> int:
    """Each attack, and all of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.broker.hostile.storm", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="for each attack (default: 15)")
    parser.add_argument("attacks", nargs="*", help=f"some of {', '.join(ATTACKS)} (default: each, then all)")
    options = parser.parse_args()
    rounds = [(name,) for name in options.attacks] or [*((name,) for name in ATTACKS), tuple(ATTACKS)]
    with tempfile.TemporaryDirectory(prefix="sawlog-storm-") as directory, Limited(Path(directory) / "data") as broker:
        warm(broker.address)
        be_good(broker.address, 2)
        most = broker.limit()
        say(f"address space: {most / MIB:,.0f} MiB; resident: {broker.size_bytes('VmRSS') / MIB:,.0f} MiB")
        slowest = 0.0
        for names in rounds:
            usual = be_good(broker.address, options.seconds / 2)
            with attacking(broker.address, *names):
                time.sleep(3)  # they have to come
                meanwhile = be_good(broker.address, options.seconds)
            slowest = max(slowest, meanwhile.median_s / usual.median_s)
            title = ", ".join(names) if len(names) < len(ATTACKS) else "all of them"
            say(f"{title}", f"  usual      {usual}", f"  meanwhile  {meanwhile}")
            resident, peak = broker.size_bytes("VmRSS"), broker.size_bytes("VmPeak")
            say(f"  {resident / MIB:,.0f} MiB resident, address space at most {peak / MIB:,.0f} MiB")
            assert broker.is_running, broker.said[-4000:]
        assert "Traceback" not in broker.said, broker.said[-4000:]
        size = len(broker.said)
        say(f"the median was at most {slowest:.2f} times the usual one; {size:,} characters were logged")
    return 0


if __name__ == "__main__":
    sys.exit(main())
