"""The counters of a broker. Counting costs a dictionary lookup and an addition; `monitoring` reports them.

Everything is counted in the event loop's thread.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from ..storage.counters import Histogram


class Metrics:
    """The counters of one broker."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.errors: Counter[tuple[str, str]] = Counter()
        self.seconds: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.records_in: Counter[str] = Counter()
        self.bytes_in: Counter[str] = Counter()
        self.bytes_out: Counter[str] = Counter()
        self.connections = 0
        self.connections_total = 0
        self.rejected: Counter[str] = Counter()

    def produced(self, topic: str, records: int, size_bytes: int) -> None:
        """Count a stored batch."""
        self.records_in[topic] += records
        self.bytes_in[topic] += size_bytes

    def fetched(self, topic: str, size_bytes: int) -> None:
        """Count sent batches."""
        self.bytes_out[topic] += size_bytes

    def answered(self, api: str, seconds: float) -> None:
        """Count an answered request."""
        self.requests[api] += 1
        self.seconds[api].add(seconds)

    def failed(self, api: str, error: str) -> None:
        """Count an error code in a response: of the whole request, or of a partition, topic or group."""
        self.errors[api, error] += 1
