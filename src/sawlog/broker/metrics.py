"""What a broker counts, in Prometheus' text format.

Counting costs a dictionary lookup and an addition; what is expensive to know (sizes, lags) is looked at when somebody
asks. Everything is counted in the event loop's thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

#: Upper ends of the buckets of a histogram, in seconds.
_BUCKETS_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192)

Sample = tuple[str, Mapping[str, str], float]


class Histogram:
    """How often something took how long."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(_BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def samples(self, name: str, labels: Mapping[str, str]) -> list[Sample]:
        """As Prometheus has them."""
        found: list[Sample] = []
        total = 0
        for end_s, count in zip((*map(str, _BUCKETS_S), "+Inf"), self.counts, strict=True):
            total += count
            found.append((f"{name}_bucket", {**labels, "le": end_s}, total))
        found.append((f"{name}_sum", labels, self.sum_s))
        found.append((f"{name}_count", labels, total))
        return found


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
        """A batch was stored."""
        self.records_in[topic] += records
        self.bytes_in[topic] += size_bytes

    def fetched(self, topic: str, size_bytes: int) -> None:
        """Batches were sent."""
        self.bytes_out[topic] += size_bytes

    def answered(self, api: str, seconds: float) -> None:
        """A request was answered."""
        self.requests[api] += 1
        self.seconds[api].add(seconds)

    def failed(self, api: str, error: str) -> None:
        """A request failed as a whole."""
        self.errors[api, error] += 1

    def families(self) -> list[tuple[str, str, str, list[Sample]]]:
        """(name, type, help, samples) of everything that is counted."""
        times = [
            sample
            for api, histogram in sorted(self.seconds.items())
            for sample in histogram.samples("sawlog_request_seconds", {"api": api})
        ]
        return [
            ("sawlog_requests_total", "counter", "Requests that were answered.", _by("api", self.requests)),
            (
                "sawlog_errors_total",
                "counter",
                "Requests that failed as a whole.",
                [("", {"api": api, "error": error}, count) for (api, error), count in sorted(self.errors.items())],
            ),
            ("sawlog_request_seconds", "histogram", "From the request to its response.", times),
            ("sawlog_append_records_total", "counter", "Records produced.", _by("topic", self.records_in)),
            ("sawlog_append_bytes_total", "counter", "Bytes of batches produced.", _by("topic", self.bytes_in)),
            ("sawlog_fetch_bytes_total", "counter", "Bytes of batches sent.", _by("topic", self.bytes_out)),
            ("sawlog_connections", "gauge", "Open connections.", [("", {}, self.connections)]),
            ("sawlog_connections_total", "counter", "Connections accepted.", [("", {}, self.connections_total)]),
            ("sawlog_rejected_total", "counter", "Connections that were closed.", _by("reason", self.rejected)),
        ]


def _by(label: str, counter: Counter[str]) -> list[Sample]:
    return [("", {label: name}, count) for name, count in sorted(counter.items())]


def as_text(families: Iterable[tuple[str, str, str, list[Sample]]]) -> str:
    """Prometheus' text format."""
    lines: list[str] = []
    for name, kind, about, samples in families:
        lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        for own, labels, value in samples:
            inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            lines.append(f"{own or name}{{{inner}}} {value:g}" if inner else f"{own or name} {value:g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
