"""sawlog: a segmented commit log for Python.

A library that needs no server. Start with `sawlog.open(path)` for a store of topics, or with `Log.open(path)` for one
log; the README shows the rest.
"""

from ._kernel_info import KernelInfo, kernel_info
from .batch.build import Producer
from .batch.kernel import Record
from .config import Interval, LogConfig, UpkeepConfig
from .errors import (
    BaseMismatch,
    ChecksumMismatch,
    CorruptBatch,
    CorruptData,
    CorruptFile,
    DecompressionLimit,
    DirectoryLocked,
    ExportRefused,
    ForeignDamage,
    GroupActive,
    GroupError,
    GroupFenced,
    GroupNotFound,
    ImportMismatch,
    IndexGap,
    IndexSizeMismatch,
    InteropError,
    InvalidConfig,
    InvalidRecord,
    InvalidRecordType,
    InvalidTopicName,
    LogClosed,
    LogFailed,
    LogNotFound,
    MissingRecords,
    NoBase,
    OffsetMismatch,
    OffsetOutOfRange,
    OffsetsOutOfOrder,
    OutOfOrderSequence,
    PositionLost,
    ProducerError,
    ProducerFenced,
    ReadBeyondEnd,
    ReadOnlyLog,
    RecordRemoved,
    RecordTooLarge,
    SawlogError,
    StorageError,
    StorageFull,
    StoreNotFound,
    StreamAborted,
    StreamTooLong,
    SyncFailed,
    TopicExists,
    TopicNotFound,
    TornFile,
    TransactionAborted,
    TransactionError,
    TransactionPending,
    UnknownFormat,
    UnreadableRecord,
    UnsupportedCompression,
)
from .log.compaction import CompactionReport
from .log.log import Log, SegmentInfo
from .log.reading import Fetched
from .log.recovery import RecoveryReport
from .log.retention import RetentionReport
from .log.upkeep import MergeReport, RecompressionReport, ScrubReport, UpkeepReport
from .log.verify import VerifyReport
from .log.writer import Writer
from .topics.consumer import Consumer
from .topics.groups import GroupDescription, GroupRow, Groups
from .topics.store import Store
from .topics.topic import Offsets, PartitionDescription, Position, Topic, TopicDescription
from .topics.transaction import Transaction
from .topics.writer import TopicWriter

#: `sawlog.open(path)`: a store of topics; see `Store.open`.
open = Store.open

__version__ = "0.2.0"

__all__ = [
    "BaseMismatch",
    "ChecksumMismatch",
    "CompactionReport",
    "Consumer",
    "CorruptBatch",
    "CorruptData",
    "CorruptFile",
    "DecompressionLimit",
    "DirectoryLocked",
    "ExportRefused",
    "Fetched",
    "ForeignDamage",
    "GroupActive",
    "GroupDescription",
    "GroupError",
    "GroupFenced",
    "GroupNotFound",
    "GroupRow",
    "Groups",
    "ImportMismatch",
    "IndexGap",
    "IndexSizeMismatch",
    "InteropError",
    "Interval",
    "InvalidConfig",
    "InvalidRecord",
    "InvalidRecordType",
    "InvalidTopicName",
    "KernelInfo",
    "Log",
    "LogClosed",
    "LogConfig",
    "LogFailed",
    "LogNotFound",
    "MergeReport",
    "MissingRecords",
    "NoBase",
    "OffsetMismatch",
    "OffsetOutOfRange",
    "Offsets",
    "OffsetsOutOfOrder",
    "OutOfOrderSequence",
    "PartitionDescription",
    "Position",
    "PositionLost",
    "Producer",
    "ProducerError",
    "ProducerFenced",
    "ReadBeyondEnd",
    "ReadOnlyLog",
    "RecompressionReport",
    "Record",
    "RecordRemoved",
    "RecordTooLarge",
    "RecoveryReport",
    "RetentionReport",
    "SawlogError",
    "ScrubReport",
    "SegmentInfo",
    "StorageError",
    "StorageFull",
    "Store",
    "StoreNotFound",
    "StreamAborted",
    "StreamTooLong",
    "SyncFailed",
    "Topic",
    "TopicDescription",
    "TopicExists",
    "TopicNotFound",
    "TopicWriter",
    "TornFile",
    "Transaction",
    "TransactionAborted",
    "TransactionError",
    "TransactionPending",
    "UnknownFormat",
    "UnreadableRecord",
    "UnsupportedCompression",
    "UpkeepConfig",
    "UpkeepReport",
    "VerifyReport",
    "Writer",
    "__version__",
    "kernel_info",
    "open",
]
