"""sawlog: a segmented commit log for Python.

It needs no server. Start with `sawlog.open(path)` for a store of topics, or with `Log.open(path)` for a single log; the
README shows the rest.
"""

from . import aio
from ._kernel_info import KernelInfo, kernel_info
from .batch.build import Producer
from .batch.kernel import Record
from .caching import LRU, CachePolicy
from .config import Interval, LogConfig, UpkeepConfig
from .errors import (
    AmbiguousAppend,
    BaseMismatch,
    BrokerError,
    BrokerRefused,
    BrokerTimeout,
    BrokerUnavailable,
    ChecksumMismatch,
    CorruptBatch,
    CorruptData,
    CorruptFile,
    DataLoss,
    DecodeFailed,
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
    Malformed,
    MissingPackage,
    MissingRecords,
    NoBase,
    OffsetMismatch,
    OffsetOutOfRange,
    OffsetsOutOfOrder,
    OutOfOrderSequence,
    PositionLost,
    ProducerError,
    ProducerFenced,
    ProducerInTransaction,
    QueryFailed,
    ReadBeyondEnd,
    ReadOnlyLog,
    RecordRemoved,
    RecordTooLarge,
    SawlogError,
    SourceInUse,
    StorageError,
    StorageFull,
    StoreNotFound,
    StreamAborted,
    StreamTooLong,
    SyncFailed,
    TableNotFound,
    TopicExists,
    TopicNotFound,
    TornFile,
    TransactionAborted,
    TransactionError,
    TransactionPending,
    Unencodable,
    UnknownFormat,
    UnreadableRecord,
    UnsupportedCompression,
    UnsupportedVersion,
    WireError,
)
from .log.log import Log, SegmentInfo
from .log.maintain.compaction import CompactionReport
from .log.maintain.findings import RecoveryReport
from .log.maintain.retention import RetentionReport
from .log.maintain.upkeep import MergeReport, RecompressionReport, ScrubReport, UpkeepReport
from .log.read.pages import Fetched
from .log.read.verify import VerifyReport
from .log.write.writer import Writer
from .topics.descriptions import PartitionDescription, TopicDescription
from .topics.groups.consumer import Consumer
from .topics.groups.groups import GroupDescription, GroupRow, Groups
from .topics.queues.message import Message
from .topics.queues.queue import Queue
from .topics.queues.redrive import Redriven, redrive
from .topics.store import Store
from .topics.topic import Offsets, Position, Topic
from .topics.transactions.transaction import Transaction
from .topics.writer import TopicWriter
from .typed.consumer import TypedConsumer
from .typed.headers import Headers
from .typed.json import JSON
from .typed.log import TypedLog
from .typed.record import TypedRecord
from .typed.rows import ArrowRows
from .typed.serializer import Bytes, MetadataSerializer, Nullable, Serializer, Utf8
from .typed.topic import TypedTopic

#: Opens a store of topics; see `Store.open`.
open = Store.open

#: Opens a store of topics for asyncio, and a single log; see `sawlog.aio`.
open_async = aio.open_async
open_log_async = aio.open_log_async

__version__ = "0.3.0"

__all__ = [
    "JSON",
    "LRU",
    "AmbiguousAppend",
    "ArrowRows",
    "BaseMismatch",
    "BrokerError",
    "BrokerRefused",
    "BrokerTimeout",
    "BrokerUnavailable",
    "Bytes",
    "CachePolicy",
    "ChecksumMismatch",
    "CompactionReport",
    "Consumer",
    "CorruptBatch",
    "CorruptData",
    "CorruptFile",
    "DataLoss",
    "DecodeFailed",
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
    "Headers",
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
    "Malformed",
    "MergeReport",
    "Message",
    "MetadataSerializer",
    "MissingPackage",
    "MissingRecords",
    "NoBase",
    "Nullable",
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
    "ProducerInTransaction",
    "QueryFailed",
    "Queue",
    "ReadBeyondEnd",
    "ReadOnlyLog",
    "RecompressionReport",
    "Record",
    "RecordRemoved",
    "RecordTooLarge",
    "RecoveryReport",
    "Redriven",
    "RetentionReport",
    "SawlogError",
    "ScrubReport",
    "SegmentInfo",
    "Serializer",
    "SourceInUse",
    "StorageError",
    "StorageFull",
    "Store",
    "StoreNotFound",
    "StreamAborted",
    "StreamTooLong",
    "SyncFailed",
    "TableNotFound",
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
    "TypedConsumer",
    "TypedLog",
    "TypedRecord",
    "TypedTopic",
    "Unencodable",
    "UnknownFormat",
    "UnreadableRecord",
    "UnsupportedCompression",
    "UnsupportedVersion",
    "UpkeepConfig",
    "UpkeepReport",
    "Utf8",
    "VerifyReport",
    "WireError",
    "Writer",
    "__version__",
    "kernel_info",
    "open",
    "open_async",
    "open_log_async",
    "redrive",
]
