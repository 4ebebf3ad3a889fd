"""What can be set about one partition's log, with unit, default and reason.

All of it is immutable: a running log never changes its mind. Values are checked here, once, so that the engine
need not doubt them. A wrong one raises `InvalidConfig` with the field's name and what would be valid.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import index
from typing import Any, Literal, SupportsIndex

from .batch.compression import check_level, codec_id
from .errors import InvalidConfig

#: No log begins, or is let go on, after this offset: the kernel believes none from 2**62 on, and a batch spans some.
MAX_OFFSET = 2**62 - 2**32
#: Positions in Kafka's index files are signed 32-bit numbers, so a segment must end below this.
MAX_SEGMENT_BYTES = 2**31 - 1

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Interval:
    """Durability in the background: at most `ms` milliseconds or `bytes` bytes can be lost to a power cut.

    An append returns once its bytes are written (they survive a killed process). The append that crosses
    `bytes` does the fdatasync itself, so that a fast producer cannot run away from the disk.
    """

    ms: int = 50
    bytes: int = 8 * MIB

    def __post_init__(self) -> None:
        _at_least("Interval.ms", self.ms, 1)
        _at_least("Interval.bytes", self.bytes, 1)


#: What an acknowledgement means: "always" (fdatasync before the append returns, shared by everyone who waits),
#: an `Interval`, or "os" (written, the operating system decides when; also synced at rotation, seal and close).
Durability = Literal["always", "os"] | Interval


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of one log. `LogConfig()` is safe for every use; each field says why one would change it."""

    #: A segment is closed before it would pass this. 1 GiB as in Kafka; at most 2 GiB - 1.
    segment_bytes: int = GIB
    #: How far a streamed record, whose length nobody knows, may pass `segment_bytes`. None: half a segment.
    segment_overflow_bytes: int | None = None
    #: A segment is closed when its first record is this old, so that retention by age has segments to drop.
    segment_age_ms: int | None = 7 * DAY_MS
    #: A segment is closed when an index of it would pass this (10 MiB as in Kafka: enough for 5 GiB of 4 KiB batches).
    max_index_bytes: int = 10 * MIB
    #: The first offset of a new log. An existing log keeps its own.
    initial_offset: int = 0
    #: What an acknowledgement means, see `Durability`. The default survives a power cut.
    durability: Durability = "always"
    #: "none", "gzip", "snappy", "lz4" or "zstd" for batches that are built here; finished batches stay as they came.
    compression: str = "none"
    #: The codec's own level; None leaves it to the codec.
    compression_level: int | None = None
    #: "create": records carry the caller's time; "append": the log's clock at placing, for all records of a batch.
    timestamp_type: Literal["create", "append"] = "create"
    #: Drop segments whose newest record is older. None keeps everything: a library must not delete unasked.
    retention_ms: int | None = None
    #: Drop the oldest segments while the rest still holds this much. None keeps everything.
    retention_bytes: int | None = None
    #: How many sealed segments stay mapped (each costs a descriptor). None: all. 0: mapped only while read.
    max_mapped_segments: int | None = 128
    #: One index entry for so many bytes of log, as in Kafka. Smaller finds faster and costs memory.
    index_interval_bytes: int = 4 * KIB
    #: The largest record (key + value + headers) that `append` and `append_many` take. None: what a segment holds.
    max_record_bytes: int | None = None
    #: No compressed batch is unpacked to more than this, whatever it declares.
    max_decompressed_bytes: int = GIB
    #: The durable watermark is written to disk at least so often while the log is written to.
    checkpoint_interval_ms: int = 1000
    #: A producer that was silent for so long is forgotten (its next batch may start at any sequence). Kafka's 24 h.
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
            raise InvalidConfig(f"compression is a name, not {self.compression!r}")
        if self.compression_level is not None:
            _whole("compression_level", self.compression_level)
        check_level(codec_id(self.compression), self.compression_level)
        if self.timestamp_type not in ("create", "append"):
            raise InvalidConfig(f'timestamp_type must be "create" or "append", not {self.timestamp_type!r}')
        _optional_at_least("retention_ms", self.retention_ms, 0)
        _optional_at_least("retention_bytes", self.retention_bytes, 0)
        _optional_at_least("max_mapped_segments", self.max_mapped_segments, 0)
        _at_least("index_interval_bytes", self.index_interval_bytes, 0)
        _optional_at_least("max_record_bytes", self.max_record_bytes, 1)
        _at_least("max_decompressed_bytes", self.max_decompressed_bytes, KIB)
        _at_least("checkpoint_interval_ms", self.checkpoint_interval_ms, 1)
        _at_least("producer_expiry_ms", self.producer_expiry_ms, 1)

    @property
    def overflow_bytes(self) -> int:
        """`segment_overflow_bytes` with its default filled in, kept inside what an index can address."""
        wanted = self.segment_bytes // 2 if self.segment_overflow_bytes is None else self.segment_overflow_bytes
        return min(wanted, MAX_SEGMENT_BYTES - self.segment_bytes)

    def with_(self, **changes: Any) -> LogConfig:
        """A copy with some fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class UpkeepConfig:
    """What upkeep does to a log, beyond what `LogConfig` says about retention."""

    #: Keep only the last record of every key (Kafka's cleanup.policy=compact).
    compact: bool = False
    #: Drop what `retention_ms` and `retention_bytes` say (cleanup.policy=delete).
    delete: bool = True
    #: A tombstone stays so long after it was first compacted, for readers that are on their way. Kafka's 24 h.
    delete_retention_ms: int = DAY_MS
    #: Compaction starts when so much of the sealed bytes is new since the last time. Kafka's half.
    min_dirty_ratio: float = 0.5
    #: What is younger is not compacted.
    min_compaction_lag_ms: int = 0
    #: Neighbouring sealed segments smaller than this are merged, four or more at once; 0: never. 1 MiB: what crashes
    #: and restarts leave behind, not what a writer makes.
    merge_bytes: int = MIB
    #: Sealed segments this old are packed with zstd. None: never, because it costs processor time.
    recompress_after_ms: int | None = None
    #: Every sealed segment is read whole this often, to find bit rot. None: never, because it costs reading.
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
        raise InvalidConfig(f"{name} must be a whole number, not {value!r}")
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
    """Return it as an int; `InvalidConfig` for a float, a boolean or anything else."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise InvalidConfig(f"{what} is a whole number, not {value!r}")
    return index(value)
