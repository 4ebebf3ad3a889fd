"""sawlog: a segmented commit log for Python.

It needs no server. Start with `sawlog.open(path)` for a store of topics, or with `Log.open(path)` for a single log; the
README shows the rest.

The errors are imported at once, everything else when it is first asked for, so that a program starts without what it
does not use.
"""

import typing as _typing
from _thread import RLock as _RLock
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec

from .errors import (
    AmbiguousAppend,
    AuthenticationFailed,
    BaseMismatch,
    BrokerError,
    BrokerRefused,
    BrokerTimeout,
    BrokerUnavailable,
    ChecksumMismatch,
    Conflict,
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
    NotCoordinator,
    NotInTransaction,
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
    RemoteUnavailable,
    ReplayMismatch,
    SawlogError,
    SnapshotExists,
    SnapshotNotFound,
    SourceInUse,
    StorageError,
    StorageFull,
    StoreIncomplete,
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
    UnsafeStorage,
    UnsupportedCompression,
    UnsupportedVersion,
    UserNotFound,
    WireError,
)

if _typing.TYPE_CHECKING:
    from . import aio
    from ._kernel_info import KernelInfo, kernel_info
    from .batch.build import Producer
    from .batch.kernel import Record
    from .caching import LRU, CachePolicy
    from .config import Interval, LogConfig, UpkeepConfig
    from .log.log import Log, SegmentInfo
    from .log.maintain.compaction import CompactionReport
    from .log.maintain.findings import RecoveryReport
    from .log.maintain.retention import RetentionReport
    from .log.maintain.upkeep import MergeReport, RecompressionReport, ScrubReport, UpkeepReport
    from .log.read.pages import Fetched
    from .log.read.verify import VerifyReport
    from .log.write.writer import Writer
    from .opening import open_store as open
    from .topics.base import Offsets, Position
    from .topics.descriptions import PartitionDescription, TopicDescription
    from .topics.groups.consumer import Consumer
    from .topics.groups.groups import GroupDescription, GroupRow, Groups
    from .topics.queues.message import Message
    from .topics.queues.queue import Queue
    from .topics.queues.redrive import Redriven, redrive
    from .topics.store import Store
    from .topics.topic import Topic
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

    #: Opens a store of topics for asyncio, and a single log; see `sawlog.aio`.
    open_async = aio.open_async
    open_log_async = aio.open_log_async

__version__ = "0.3.0"

__all__ = [
    "JSON",
    "LRU",
    "AmbiguousAppend",
    "ArrowRows",
    "AuthenticationFailed",
    "BaseMismatch",
    "BrokerError",
    "BrokerRefused",
    "BrokerTimeout",
    "BrokerUnavailable",
    "Bytes",
    "CachePolicy",
    "ChecksumMismatch",
    "CompactionReport",
    "Conflict",
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
    "NotCoordinator",
    "NotInTransaction",
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
    "RemoteUnavailable",
    "ReplayMismatch",
    "RetentionReport",
    "SawlogError",
    "ScrubReport",
    "SegmentInfo",
    "Serializer",
    "SnapshotExists",
    "SnapshotNotFound",
    "SourceInUse",
    "StorageError",
    "StorageFull",
    "Store",
    "StoreIncomplete",
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
    "UnsafeStorage",
    "UnsupportedCompression",
    "UnsupportedVersion",
    "UpkeepConfig",
    "UpkeepReport",
    "UserNotFound",
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

#: Where the names are: the module, and what it defines.
_HOMES: dict[str, tuple[str, ...]] = {
    "aio": ("open_async", "open_log_async"),
    "_kernel_info": ("KernelInfo", "kernel_info"),
    "batch.build": ("Producer",),
    "batch.kernel": ("Record",),
    "caching": ("LRU", "CachePolicy"),
    "config": ("Interval", "LogConfig", "UpkeepConfig"),
    "log.log": ("Log", "SegmentInfo"),
    "log.maintain.compaction": ("CompactionReport",),
    "log.maintain.findings": ("RecoveryReport",),
    "log.maintain.retention": ("RetentionReport",),
    "log.maintain.upkeep": ("MergeReport", "RecompressionReport", "ScrubReport", "UpkeepReport"),
    "log.read.pages": ("Fetched",),
    "log.read.verify": ("VerifyReport",),
    "log.write.writer": ("Writer",),
    "topics.base": ("Offsets", "Position"),
    "topics.descriptions": ("PartitionDescription", "TopicDescription"),
    "topics.groups.consumer": ("Consumer",),
    "topics.groups.groups": ("GroupDescription", "GroupRow", "Groups"),
    "topics.queues.message": ("Message",),
    "topics.queues.queue": ("Queue",),
    "topics.queues.redrive": ("Redriven", "redrive"),
    "topics.store": ("Store",),
    "topics.topic": ("Topic",),
    "topics.transactions.transaction": ("Transaction",),
    "topics.writer": ("TopicWriter",),
    "typed.consumer": ("TypedConsumer",),
    "typed.headers": ("Headers",),
    "typed.json": ("JSON",),
    "typed.log": ("TypedLog",),
    "typed.record": ("TypedRecord",),
    "typed.rows": ("ArrowRows",),
    "typed.serializer": ("Bytes", "MetadataSerializer", "Nullable", "Serializer", "Utf8"),
    "typed.topic": ("TypedTopic",),
}
_importing = _RLock()
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
#: Modules that can be reached as `sawlog.NAME` without being imported.
_MODULES = frozenset({module.partition(".")[0] for module in _HOMES} | {"opening", "schemas", "storage"})


_kernel = _find_spec(".batch.kernel", __name__)
if _kernel is None or str(_kernel.origin).endswith(".py"):
    from . import _kernel_info  # noqa: F401 - which warns that the kernel is not compiled


if not _typing.TYPE_CHECKING:  # else type checkers would accept every name

    def __getattr__(name: str) -> object:
        """Import what is asked for, and keep it. One thread at a time, and the engine first, by one way: a module and
        its package that two threads begin to import from different ends would wait for each other."""
        if name not in _MODULES and name not in _HOME_OF and name != "open":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with _importing:
            opening = _import_module(".opening", __name__)
            _import_module(".storage.forking", __name__).forkable(_importing)
            if name in _MODULES:
                return _import_module(f".{name}", __name__)  # which also makes it an attribute
            home = opening if name == "open" else _import_module(f".{_HOME_OF[name]}", __name__)
            found = getattr(home, "open_store" if name == "open" else name)
            globals()[name] = found
            return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOME_OF, *_MODULES, "open"})
