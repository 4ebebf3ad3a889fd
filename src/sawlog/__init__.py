"""sawlog: a segmented commit log for Python.

A library that needs no server. Start with `Log.open(path)`; the README shows the rest.
"""

from ._kernel_info import KernelInfo, kernel_info
from .batch.build import Producer
from .batch.kernel import Record
from .config import Interval, LogConfig
from .errors import (
    CorruptBatch,
    CorruptData,
    CorruptFile,
    DecompressionLimit,
    DirectoryLocked,
    InvalidConfig,
    InvalidRecord,
    InvalidRecordType,
    LogClosed,
    LogFailed,
    LogNotFound,
    OffsetMismatch,
    OffsetOutOfRange,
    OutOfOrderSequence,
    ProducerError,
    ProducerFenced,
    ReadBeyondEnd,
    ReadOnlyLog,
    RecordRemoved,
    RecordTooLarge,
    SawlogError,
    StorageError,
    StorageFull,
    StreamAborted,
    StreamTooLong,
    SyncFailed,
    UnsupportedCompression,
)
from .log.log import Log, SegmentInfo
from .log.reading import Fetched
from .log.recovery import RecoveryReport
from .log.retention import RetentionReport
from .log.verify import VerifyReport
from .log.writer import Writer

__version__ = "0.1.0"

__all__ = [
    "CorruptBatch",
    "CorruptData",
    "CorruptFile",
    "DecompressionLimit",
    "DirectoryLocked",
    "Fetched",
    "Interval",
    "InvalidConfig",
    "InvalidRecord",
    "InvalidRecordType",
    "KernelInfo",
    "Log",
    "LogClosed",
    "LogConfig",
    "LogFailed",
    "LogNotFound",
    "OffsetMismatch",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "Producer",
    "ProducerError",
    "ProducerFenced",
    "ReadBeyondEnd",
    "ReadOnlyLog",
    "Record",
    "RecordRemoved",
    "RecordTooLarge",
    "RecoveryReport",
    "RetentionReport",
    "SawlogError",
    "SegmentInfo",
    "StorageError",
    "StorageFull",
    "StreamAborted",
    "StreamTooLong",
    "SyncFailed",
    "UnsupportedCompression",
    "VerifyReport",
    "Writer",
    "__version__",
    "kernel_info",
]
