"""Settings of a log, each with its unit, default and rationale.

Settings are immutable: an open log keeps the ones it was opened with. The constructors validate them once, so the rest
of the code does not. An invalid value raises `InvalidConfig` with the field's name and the valid values.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Literal, Protocol, SupportsIndex

from .batch.compression import check_level, codec_id
from .errors import InvalidConfig

#: Highest base offset. The kernel rejects offsets from 2**62 on, and a batch spans several offsets.
MAX_OFFSET = 2**62 - 2**32
#: Positions in Kafka's index files are signed 32-bit integers, so a segment must end below this.
MAX_SEGMENT_BYTES = 2**31 - 1

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Interval:
    """Durability in the background: a power cut can lose at most `ms` milliseconds or `bytes` bytes.

    An append returns once its bytes are written (they survive a killed process). The append that crosses `bytes` calls
    fdatasync itself, so that a fast producer cannot outrun the disk.
    """

    ms: int = 50
    bytes: int = 8 * MIB

    def __post_init__(self) -> None:
        _at_least("Interval.ms", self.ms, 1)
        _at_least("Interval.bytes", self.bytes, 1)


#: The guarantee behind an acknowledgement: "always" (fdatasync before the append returns, shared by all waiting
#: appends), an `Interval`, or "os" (the operating system decides when to write; synced at rotation, seal and close).
Durability = Literal["always", "os"] | Interval

#: "committed" hides the records of open and aborted transactions; "uncommitted" returns every visible record.
Isolation = Literal["committed", "uncommitted"]


class CachedSegment(Protocol):
    """A mapped segment. Hashable, and equal only to itself."""

    @property
    def base_offset(self) -> int:
        """First offset."""

    @property
    def size(self) -> int:
        """Size in bytes."""


class CachePolicy(Protocol):
    """Decides which sealed segments of a log stay mapped. `LogConfig.segment_cache` creates one for each log.

    The log calls it for every use of a segment except consecutive uses of the same one, from one thread at a time,
    while readers wait: a policy must be fast and must not use the log. An evicted segment is unmapped, and mapped again
    when it is next read. An exception from the policy propagates to the reader.
    """

    def use(self, segment: CachedSegment) -> Iterable[CachedSegment]:
        """Record that this segment is about to be read, and return the segments to evict, which must not include it."""

    def forget(self, segment: CachedSegment) -> None:
        """Forget a segment that was trimmed, compacted or truncated away."""


class LRU:
    """Keeps the most recently used segments mapped: the default policy."""

    def __init__(self, most: int | None = 128) -> None:
        #: Maximum number of mapped segments; None: no limit.
        self.most = most
        self._used: OrderedDict[CachedSegment, None] = OrderedDict()

    def use(self, segment: CachedSegment) -> Iterator[CachedSegment]:
        """See `CachePolicy`."""
        self._used[segment] = None
        self._used.move_to_end(segment)
        while self.most is not None and len(self._used) > max(self.most, 1):
            yield self._used.popitem(last=False)[0]

    def forget(self, segment: CachedSegment) -> None:
        """See `CachePolicy`."""
        self._used.pop(segment, None)


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of one log. The defaults are safe; each field says when to change it."""

    #: Maximum size of a segment. 1 GiB as in Kafka; at most 2 GiB - 1.
    segment_bytes: int = GIB
    #: Limit on the overshoot of `segment_bytes` by a streamed record of unknown length. None: half a segment.
    segment_overflow_bytes: int | None = None
    #: Roll the segment when its first record is this old, so that retention by age can drop it.
    segment_age_ms: int | None = 7 * DAY_MS
    #: Roll the segment when its index would exceed this (10 MiB as in Kafka: enough for 5 GiB of 4 KiB batches).
    max_index_bytes: int = 10 * MIB
    #: First offset of a new log. An existing log keeps its own.
    initial_offset: int = 0
    #: The guarantee behind an acknowledgement, see `Durability`. The default survives a power cut.
    durability: Durability = "always"
    #: "none", "gzip", "snappy", "lz4" or "zstd" for batches built here; batches received complete stay unchanged.
    compression: str = "none"
    #: Compression level. None: the codec's default.
    compression_level: int | None = None
    #: "create": records carry the caller's time; "append": the log's clock at the append, for the whole batch.
    timestamp_type: Literal["create", "append"] = "create"
    #: Drop segments whose newest record is older. None keeps everything: nothing is deleted by default.
    retention_ms: int | None = None
    #: Drop the oldest segments while the remaining ones still hold at least this much. None keeps everything.
    retention_bytes: int | None = None
    #: Delete the local copy of replicated sealed segments whose newest record is older; readers then fetch them from
    #: the replica. None: keep local copies until retention drops the segment.
    local_retention_ms: int | None = None
    #: Delete the local copy of the oldest replicated sealed segments while the remaining ones still hold at least this
    #: much. None: keep local copies until retention drops the segment.
    local_retention_bytes: int | None = None
    #: Number of sealed segments that stay mapped (each needs a file descriptor). None: all. 0: mapped only while read.
    max_mapped_segments: int | None = 128
    #: Factory of the policy that decides which segments stay mapped, instead of the `max_mapped_segments` used last:
    #: see `CachePolicy`. Each log gets its own policy.
    segment_cache: Callable[[], CachePolicy] | None = None
    #: One index entry per this many bytes of log, as in Kafka. Smaller: faster lookups, more memory.
    index_interval_bytes: int = 4 * KIB
    #: Largest record (key + value + headers) that `append` and `append_many` accept. None: a segment's size.
    max_record_bytes: int | None = None
    #: Limit on the decompressed size of a batch, whatever size it declares.
    max_decompressed_bytes: int = GIB
    #: Write the durable watermark to disk at least this often while records are appended.
    checkpoint_interval_ms: int = 1000
    #: Drop the state of a producer that is idle for this long (its next batch may start at any sequence number).
    #: 24 h as in Kafka.
    producer_expiry_ms: int = DAY_MS

    def __post_init__(self) -> None:
        _between("segment_bytes", self.segment_bytes, 1, MAX_SEGMENT_BYTES)
        _optional_at_least("segment_overflow_bytes", self.segment_overflow_bytes, 0)
        _optional_at_least("segment_age_ms", self.segment_age_ms, 1)
        _at_least("max_index_bytes", self.max_index_bytes, 16)
        _between("initial_offset", self.initial_offset, 0, MAX_OFFSET)
        if self.durability not in ("always", "os") and not isinstance(self.durability, Interval):
            raise InvalidConfig(f'durability must be "always", "os" or an Interval, not {self.durability!r}')
        if not isinstance(self.compression, str):
            raise InvalidConfig(f"compression must be a name, not {self.compression!r}")
        if self.compression_level is not None:
            _whole("compression_level", self.compression_level)
        check_level(codec_id(self.compression), self.compression_level)
        if self.timestamp_type not in ("create", "append"):
            raise InvalidConfig(f'timestamp_type must be "create" or "append", not {self.timestamp_type!r}')
        _optional_at_least("retention_ms", self.retention_ms, 0)
        _optional_at_least("retention_bytes", self.retention_bytes, 0)
        for name in ("retention_ms", "retention_bytes"):
            self._check_local(name)
        _optional_at_least("max_mapped_segments", self.max_mapped_segments, 0)
        if self.segment_cache is not None and not callable(self.segment_cache):
            raise InvalidConfig(f"segment_cache must be a function that makes a policy, not {self.segment_cache!r}")
        _at_least("index_interval_bytes", self.index_interval_bytes, 0)
        _optional_at_least("max_record_bytes", self.max_record_bytes, 1)
        _at_least("max_decompressed_bytes", self.max_decompressed_bytes, KIB)
        _at_least("checkpoint_interval_ms", self.checkpoint_interval_ms, 1)
        _at_least("producer_expiry_ms", self.producer_expiry_ms, 1)

    def _check_local(self, name: str) -> None:
        """Check that local retention does not exceed retention."""
        local, whole = getattr(self, f"local_{name}"), getattr(self, name)
        _optional_at_least(f"local_{name}", local, 0)
        if local is not None and whole is not None and local > whole:
            raise InvalidConfig(f"local_{name} must be at most {name} ({whole}), not {local}")

    @property
    def overflow_bytes(self) -> int:
        """`segment_overflow_bytes` or its default, capped at the largest position that an index can address."""
        wanted = self.segment_bytes // 2 if self.segment_overflow_bytes is None else self.segment_overflow_bytes
        return min(wanted, MAX_SEGMENT_BYTES - self.segment_bytes)

    def with_(self, **changes: Any) -> LogConfig:
        """Return a copy with some fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class MaintenanceConfig:
    """Settings of maintenance, in addition to the retention settings of `LogConfig`."""

    #: Keep only the last record of every key (Kafka's cleanup.policy=compact).
    compact: bool = False
    #: Apply `retention_ms` and `retention_bytes` (cleanup.policy=delete).
    delete: bool = True
    #: Keep a tombstone this long after its first compaction, so that slow readers see it. 24 h as in Kafka.
    delete_retention_ms: int = DAY_MS
    #: Compact when this share of the sealed bytes is new since the last compaction. 0.5 as in Kafka.
    min_dirty_ratio: float = 0.5
    #: Do not compact records younger than this.
    min_compaction_lag_ms: int = 0
    #: Merge adjacent sealed segments smaller than this, at least four at a time; 0: never. 1 MiB covers the small
    #: segments left by crashes and restarts, but no segment of a normal writer.
    merge_bytes: int = MIB
    #: Recompress sealed segments this old with zstd. None: never, because it costs CPU time.
    recompress_after_ms: int | None = None
    #: Read every sealed segment completely this often, to find bit rot. None: never, because it costs I/O.
    scrub_interval_ms: int | None = None

    def __post_init__(self) -> None:
        _at_least("delete_retention_ms", self.delete_retention_ms, 0)
        ratio = self.min_dirty_ratio
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 <= ratio <= 1:
            raise InvalidConfig(f"min_dirty_ratio must be between 0 and 1, not {ratio!r}")
        _at_least("min_compaction_lag_ms", self.min_compaction_lag_ms, 0)
        _at_least("merge_bytes", self.merge_bytes, 0)
        _optional_at_least("recompress_after_ms", self.recompress_after_ms, 0)
        _optional_at_least("scrub_interval_ms", self.scrub_interval_ms, 0)


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidConfig(f"{name} must be an integer, not {value!r}")
    return value


def _at_least(name: str, value: object, lowest: int) -> None:
    if _whole(name, value) < lowest:
        raise InvalidConfig(f"{name} must be at least {lowest}, not {value}")


def _between(name: str, value: object, lowest: int, highest: int) -> None:
    if not lowest <= _whole(name, value) <= highest:
        raise InvalidConfig(f"{name} must be between {lowest} and {highest}, not {value}")


def _optional_at_least(name: str, value: object, lowest: int) -> None:
    if value is not None:
        _at_least(name, value, lowest)


def whole_number(value: object, what: str = "an offset") -> int:
    """Convert any integer type to int; raise `InvalidConfig` for a float, a boolean or anything else."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise InvalidConfig(f"{what} must be an integer, not {value!r}")
    return index(value)


def checked_count(name: str, value: object, least: int = 1, what: str = "an integer") -> int:
    """Return a number that a caller has given; raise `InvalidConfig` unless it is an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidConfig(f"{name} must be {what}, at least {least}, not {value!r}")
    return value


def is_committed(isolation: Isolation) -> bool:
    """Return True for "committed", False for "uncommitted"; raise `InvalidConfig` for anything else."""
    if isolation == "committed":
        return True
    if isolation == "uncommitted":
        return False
    raise InvalidConfig(f'isolation must be "committed" or "uncommitted", not {isolation!r}')
