"""The counters of a broker, in Prometheus' text format.

Counting costs a dictionary lookup and an addition; values that are expensive to compute (sizes, lags) are read when
scraped. Everything is counted in the event loop's thread.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from ..storage.counters import COUNTERS, SYNC_DURATIONS, Histogram

#: A name, or none for that of its family; labels; a number.
Sample = tuple[str, Mapping[str, str], float]
#: Name, type, help, samples.
Family = tuple[str, str, str, list[Sample]]

#: Counters of the process: name and help text.
_DONE = {
    "segments_created": "Segments begun by rotation.",
    "segments_removed": "Segments deleted by retention, trimming and compaction.",
    "compaction_removed_bytes": "Bytes that compaction has removed.",
    "recovery_truncated_bytes": "Bytes of torn tails that recovery has cut off.",
    "index_rebuilds": "Indexes that were rebuilt.",
    "scrubbed_bytes": "Bytes of sealed segments that were read to see whether they are good.",
    "scrub_problems": "Problems that scrubbing has found.",
    "corrupt_batches": "Damaged batches that recovery, scrubbing or a fetch has met; each is counted once.",
}


def _histogram(histogram: Histogram, name: str, labels: Mapping[str, str]) -> list[Sample]:
    """Return the samples of a histogram."""
    found: list[Sample] = [(f"{name}_bucket", {**labels, "le": end}, count) for end, count in histogram]
    return [*found, (f"{name}_sum", labels, histogram.sum_s), (f"{name}_count", labels, found[-1][2])]


def _done(name: str) -> Family:
    """Return a counter of the process."""
    return f"sawlog_{name}_total", "counter", _DONE[name], [("", {}, COUNTERS[name])]


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

    def families(self) -> list[Family]:
        """Return the counters of the broker and of the process."""
        times = [
            sample
            for api, histogram in sorted(self.seconds.items())
            for sample in _histogram(histogram, "sawlog_request_seconds", {"api": api})
        ]
        return [
            ("sawlog_requests_total", "counter", "Requests that were answered.", _by("api", self.requests)),
            (
                "sawlog_errors_total",
                "counter",
                "Error codes in responses: of whole requests, and of each partition, topic or group in them.",
                [("", {"api": api, "error": error}, count) for (api, error), count in sorted(self.errors.items())],
            ),
            ("sawlog_request_seconds", "histogram", "From the request to its response.", times),
            ("sawlog_append_records_total", "counter", "Records produced.", _by("topic", self.records_in)),
            ("sawlog_append_bytes_total", "counter", "Bytes of batches produced.", _by("topic", self.bytes_in)),
            ("sawlog_fetch_bytes_total", "counter", "Bytes of batches sent.", _by("topic", self.bytes_out)),
            ("sawlog_connections", "gauge", "Open connections.", [("", {}, self.connections)]),
            ("sawlog_connections_total", "counter", "Connections accepted.", [("", {}, self.connections_total)]),
            ("sawlog_rejected_total", "counter", "Connections that were closed.", _by("reason", self.rejected)),
            (
                "sawlog_fsync_seconds",
                "histogram",
                "How long syncs of files took.",
                _histogram(SYNC_DURATIONS, "sawlog_fsync_seconds", {}),
            ),
            *map(_done, _DONE),
        ]


def _by(label: str, counter: Counter[str]) -> list[Sample]:
    return [("", {label: name}, count) for name, count in sorted(counter.items())]


def as_text(families: Iterable[Family]) -> str:
    """Format families as Prometheus' text format."""
    lines: list[str] = []
    for name, kind, about, samples in families:
        lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        for own, labels, value in samples:
            inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            lines.append(f"{own or name}{{{inner}}} {value:g}" if inner else f"{own or name} {value:g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
