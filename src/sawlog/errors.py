"""Every error that sawlog raises, in one place.

```
SawlogError
├── InvalidConfig (ValueError)                 an invalid setting
├── InvalidRecord (ValueError)                 the record cannot be stored; nothing was written
│   ├── InvalidRecordType (TypeError)            such as a value that is not bytes, or a header key that is not str
│   └── RecordTooLarge                           larger than the log allows
│       └── StreamTooLong                          a streamed record exceeded its limit
├── DecodeFailed (ValueError)                  a record does not parse as its view declares; has the record
├── StreamAborted (RuntimeError)               the caller's stream raised; the log is unchanged
├── OffsetOutOfRange (IndexError)              no record at that offset; has the valid range
│   └── RecordRemoved                            removed by compaction, or aborted; has the next existing offset
├── DataLoss                                   records of a planned range are gone, or their offsets were reused
├── OffsetMismatch (ValueError)                expect_offset does not match; nothing was written
├── ProducerError
│   ├── OutOfOrderSequence                       a producer skipped or repeated sequence numbers
│   ├── ProducerFenced                           a producer with an older epoch wrote
│   ├── ProducerInTransaction                    a batch outside the producer's open transaction
│   └── NotInTransaction                         a transactional batch, and no transaction includes its partition
├── CorruptData (ValueError)                   bytes on disk are not what was written
│   ├── CorruptBatch                             has path, position and the next readable offset
│   │   └── DecompressionLimit                     would decompress to more than the limit
│   ├── CorruptFile                              a checkpoint, catalog or other small file
│   └── ForeignDamage                            bytes of another system's log; has path and position
│       ├── NoBase                                 an index without its first offset
│       ├── BaseMismatch                           file name and content have different first offsets
│       ├── IndexSizeMismatch                      an index that is torn, padded, or of another length than the data
│       ├── IndexGap                               an index whose entries skip data, or point to something else
│       ├── MissingRecords                         a gap: records or a whole file are missing
│       ├── OffsetsOutOfOrder                      offsets that restart or are not consecutive
│       ├── ChecksumMismatch                       checksum or length of a record do not match
│       ├── UnreadableRecord                       a record that does not parse
│       └── TornFile                               data that ends inside a record
├── UnsupportedCompression (ValueError)        a codec number or name that Kafka does not define
├── StorageError (OSError)                     the operating system reported an error
│   ├── StorageFull                              no space left; the partial write was rolled back
│   ├── SyncFailed                               fsync failed: it is never retried, and the log is failed
│   ├── ReadBeyondEnd (EOFError)                 a read past the written bytes of a storage
│   ├── UnsafeStorage                            object storage breaks a promise that a store depends on
│   ├── RemoteUnavailable                        records that are only in the replica cannot be read from there now
│   ├── StoreIncomplete                          the directory is being restored, or that was interrupted
│   ├── LogNotFound (FileNotFoundError)          read-only open of a directory that holds no log
│   └── StoreNotFound (FileNotFoundError)        read-only open of a directory that holds no store
├── DirectoryLocked (BlockingIOError)          another writer has locked the partition
├── AmbiguousAppend (TimeoutError)             the process that holds the partition does not answer; it may be stored
├── LogFailed (RuntimeError)                   writing stopped after an earlier failure; reading still works
├── LogClosed (ValueError)                     the log is closed, or belongs to the parent of a fork
├── ReadOnlyLog (UnsupportedOperation)         opened with mode="r"
├── InvalidTopicName (ValueError)              not a valid topic name
├── TopicNotFound (KeyError)                   no topic or partition with that name
├── TopicExists (FileExistsError)              the topic exists, or one whose name differs only in case
├── SnapshotNotFound (KeyError)                no snapshot with that name
├── SnapshotExists (FileExistsError)           the snapshot exists
├── GroupError                                 consumers and their groups
│   ├── GroupNotFound (KeyError)                 no group with that name: nobody has committed or joined
│   ├── GroupActive                              others are in the group: running members, or those of a broker
│   ├── GroupFenced                              session expired; its partitions were reassigned
│   ├── NotCoordinator                           another broker coordinates the group; nothing was committed
│   └── PositionLost (LookupError)               the records at the position are gone, with on_lost="error"
├── UserNotFound (KeyError)                    no user with that name
├── Conflict                                   another process has changed it meanwhile; nothing was stored
├── TransactionError                           a write to several partitions, all or nothing
│   ├── TransactionAborted                       nothing was stored
│   ├── TransactionPending                       committed; completed by the holders, or at the next open for writing
│   └── ReplayMismatch                           that name and sequence are stored with different records
├── InteropError                               other systems' logs
│   ├── UnknownFormat (ValueError)               no known format matches, or more than one
│   ├── ImportMismatch (ValueError)              the target does not match the source
│   ├── ExportRefused (ValueError)               not possible in that format or directory; nothing was written
│   └── SourceInUse (BlockingIOError)            the other system is running: stop it first
├── WireError (ValueError)                     Kafka's wire protocol
│   ├── Malformed                                bytes from the network that are not a valid message
│   │   └── UnsupportedVersion                     an API, or a version of one, that is not known
│   └── Unencodable                              a message that cannot be written as given: a mistake of the caller
├── QueryFailed (ValueError)                   SQL that cannot be run, or is not a query
│   └── TableNotFound (LookupError)              SQL that names something that is neither a topic nor a file
├── MissingPackage (ImportError)               needs a package that is not installed; the message says how to install it
└── BrokerError                                a broker, as its client sees it
    ├── BrokerUnavailable (ConnectionError)      cannot be reached, or the connection broke
    ├── BrokerTimeout (TimeoutError)             did not answer in time
    ├── AuthenticationFailed (PermissionError)   user, password or certificate were not accepted, by either side
    └── BrokerRefused                            answered with an error; has Kafka's name and number of it
```

Each family tells what a caller can do: change the call (Invalid…), use another offset (OffsetOutOfRange), plan again
(DataLoss), retry with the current offset (OffsetMismatch), run `verify` (Corrupt…), check the disk (Storage…), reopen
(LogFailed, LogClosed), check the other members (Group…), check the broker (Broker…).
Where the standard library has a matching type, the error is also an instance of it.
"""

from __future__ import annotations

import io
from typing import Any


class SawlogError(Exception):
    """The base class of every error that sawlog raises on purpose."""


class InvalidConfig(SawlogError, ValueError):
    """An invalid setting; the message names the field and the valid values."""


class QueryFailed(SawlogError, ValueError):
    """SQL that cannot be run: it does not parse, names what does not exist, or is not a query."""


class TableNotFound(QueryFailed, LookupError):
    """SQL names something that is neither a topic nor a file; the message lists the topics."""


class MissingPackage(SawlogError, ImportError):
    """What was called needs a package that is not installed; the message has the command that installs it."""


class InvalidRecord(SawlogError, ValueError):
    """The record cannot be stored as given; nothing was written."""


class InvalidRecordType(InvalidRecord, TypeError):
    """A field of the record has the wrong Python type; nothing was written."""


class RecordTooLarge(InvalidRecord):
    """The record, or its batch, is larger than the log allows; nothing was written."""


class StreamTooLong(RecordTooLarge):
    """A streamed record exceeded its limit; the log is unchanged, byte for byte."""


class DecodeFailed(SawlogError, ValueError):
    """A record that was read through a typed view does not parse. `record` is the record as it is stored, with topic,
    partition and offset; `part` is "value", "key" or "metadata"; `reason` says why."""

    def __init__(self, part: str, reason: str = "", record: Any = None) -> None:
        self.part, self.reason, self.record = part, reason, record
        super().__init__(f"{_place_of(record)}the {part} cannot be decoded: {reason}")

    def __reduce__(self) -> tuple[object, ...]:
        return DecodeFailed, (self.part, self.reason, self.record)


def _place_of(record: Any) -> str:
    if record is None:
        return ""
    where = "" if record.topic is None else f"{record.topic}/{record.partition} "
    return f"{where}offset {record.offset}: "


class StreamAborted(SawlogError, RuntimeError):
    """The stream of chunks raised (see `__cause__`); the log is unchanged, byte for byte."""


class OffsetOutOfRange(SawlogError, IndexError):
    """No record at that offset. Valid offsets are lowest <= offset < next."""

    def __init__(self, requested: int, lowest: int, next_offset: int, where: str = "") -> None:
        self.requested, self.lowest, self.next, self.where = requested, lowest, next_offset, where
        held = f"holds offsets {lowest} to {next_offset - 1}" if next_offset > lowest else "is empty"
        end = "" if next_offset > lowest else f"; the next record will get offset {next_offset}"
        super().__init__(f"offset {requested} is out of range: the log{where and f' {where}'} {held}{end}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.requested, self.lowest, self.next, self.where)

    @property
    def next_offset(self) -> int:
        """The offset that the next record will get."""
        return self.next

    @property
    def lowest_offset(self) -> int:
        """The first offset that the log still holds."""
        return self.lowest


class RecordRemoved(OffsetOutOfRange):
    """There is no record at that offset, although the log has later ones: compaction has removed it, or it is part of
    an aborted transaction, or the marker at the end of one. `following` is the next existing one."""

    def __init__(self, requested: int, lowest: int, next_offset: int, following: int) -> None:
        super().__init__(requested, lowest, next_offset)
        self.following = following
        self.args = (
            f"there is no record at offset {requested}: it was removed by compaction, or its transaction was aborted; "
            f"the next is at {following}",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.requested, self.lowest, self.next, self.following)


class DataLoss(SawlogError):
    """Records of a planned range are gone: dropped, truncated, or replaced by others with the same offsets.

    A reader of a planned range either reads all of it or raises this error.
    """


class OffsetMismatch(SawlogError, ValueError):
    """`expect_offset` does not match: another append came first. Nothing was written."""

    def __init__(self, expected: int, actual: int) -> None:
        self.expected, self.actual = expected, actual
        super().__init__(
            f"expected to append at offset {expected}, but the log is at {actual}; nothing was written: "
            f"read the new records from {min(expected, actual)}, then retry"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.expected, self.actual)


class ProducerError(SawlogError):
    """An idempotent producer's batch does not continue its earlier batches; nothing was written."""


class OutOfOrderSequence(ProducerError):
    """The batch's first sequence number is not the one that follows the producer's last."""


class ProducerFenced(ProducerError):
    """A newer epoch of this producer id has already written."""


class ProducerInTransaction(ProducerError):
    """The producer has an open transaction, and the batch is not part of it."""


class NotInTransaction(ProducerError):
    """A transactional batch was sent for a partition that no transaction of its producer includes; it was refused."""


class CorruptData(SawlogError, ValueError):
    """Bytes on disk are not what was written."""


class CorruptBatch(CorruptData):
    """A batch fails its checksum or does not parse. It is never skipped silently.

    `path` and `position` are where it starts; `next_offset` is the next readable offset after it, or None if nothing
    readable follows.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        position: int | None = None,
        next_offset: int | None = None,
    ) -> None:
        self.reason, self.path, self.position, self.next_offset = message, path, position, next_offset
        where = f"{path} at byte {position}: " if path is not None else ""
        then = f"; the next readable offset is {next_offset}" if next_offset is not None else ""
        super().__init__(f"{where}{message}{then}")

    def at(self, path: str, position: int, next_offset: int | None) -> CorruptBatch:
        """Return the same error with its location."""
        return type(self)(self.reason, path=path, position=position, next_offset=next_offset)


class DecompressionLimit(CorruptBatch):
    """The batch would decompress to more bytes than the limit; it was not decompressed."""


class CorruptFile(CorruptData):
    """A small file of sawlog (checkpoint, producer state) fails its checksum or does not parse."""


class ForeignDamage(CorruptData):
    """Another system's log is damaged.

    `path` and `position` are where; `offset` is the affected record, or the next one, if known.
    """

    def __init__(
        self, message: str, path: str | None = None, position: int | None = None, offset: int | None = None
    ) -> None:
        self.reason, self.path, self.position, self.offset = message, path, position, offset
        super().__init__(f"{path} at byte {position}: {message}" if path is not None else message)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.reason, self.path, self.position, self.offset)


class NoBase(ForeignDamage):
    """An index does not contain its first offset."""


class BaseMismatch(ForeignDamage):
    """The name of a file and its content have different first offsets."""


class IndexSizeMismatch(ForeignDamage):
    """An index is torn or padded, has an extra marker, or is longer or shorter than its data."""


class IndexGap(ForeignDamage):
    """An index whose entries skip bytes of the data, or point to something that is not a record."""


class MissingRecords(ForeignDamage):
    """A gap: records or a whole file are missing."""


class OffsetsOutOfOrder(ForeignDamage):
    """Offsets restart at an earlier one, or are not consecutive."""


class ChecksumMismatch(ForeignDamage):
    """The checksum or the length of a record does not match the recorded one."""


class UnreadableRecord(ForeignDamage):
    """A record, or its frame, does not parse."""


class TornFile(ForeignDamage):
    """Data ends inside a record, or in zeros."""


class UnsupportedCompression(SawlogError, ValueError):
    """A compression that Kafka's format does not define."""


class StorageError(SawlogError, OSError):
    """The operating system reported an error; see `errno` and `__cause__`."""

    #: Whether a failed write could not be rolled back, so that the file must be recovered before it is used.
    torn = False


class StorageFull(StorageError):
    """No space left, or a quota or file-size limit was reached; the partial write was rolled back."""


class SyncFailed(StorageError):
    """fsync failed. It is never retried, because the kernel may already have dropped the unwritten pages."""


class ReadBeyondEnd(StorageError, EOFError):
    """A read past the written bytes of a storage."""


class UnsafeStorage(StorageError):
    """Object storage does not keep a promise that a store depends on; the message has the evidence."""


class RemoteUnavailable(StorageError):
    """Records that were removed here, because the replica on object storage has them, cannot be read from there; the
    message says why, and what to do. Records that are stored here can be read."""


class LogNotFound(StorageError, FileNotFoundError):
    """There is no log in that directory."""


class StoreIncomplete(StorageError):
    """The directory is being restored from elsewhere, or that was interrupted; the message says how to continue."""


class StoreNotFound(StorageError, FileNotFoundError):
    """There is no store in that directory."""


class DirectoryLocked(SawlogError, BlockingIOError):
    """Another writer has locked this directory; `holder` describes it, if known."""

    def __init__(self, path: str, holder: str = "") -> None:
        self.path, self.holder = path, holder
        by = f" by {holder}" if holder else ""
        super().__init__(
            f"{path} is locked for writing{by}; a partition has one writer: close it there, or append through a "
            'store\'s topic, which waits for it; reading needs no lock: mode="r"'
        )

    def after(self, seconds: float) -> DirectoryLocked:
        """The same error, which says that somebody has waited."""
        return DirectoryLocked(self.path, f"{self.holder or 'another writer'} (timed out after {seconds:g} s)")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.path, self.holder)


class AmbiguousAppend(SawlogError, TimeoutError):
    """Records were handed to the process that holds the partition, and it did not answer in time: they may be stored,
    now or when it continues, or not."""


class LogFailed(SawlogError, RuntimeError):
    """Writing stopped after an earlier failure (see `__cause__`). Reading still works; close and reopen to recover."""


class LogClosed(SawlogError, ValueError):
    """The log is closed, or was opened by the parent process, before a fork."""


class ReadOnlyLog(SawlogError, io.UnsupportedOperation):
    """The log was opened with mode="r"."""


class InvalidTopicName(SawlogError, ValueError):
    """Not a valid topic name; the message says which names are valid."""


class TopicNotFound(SawlogError, KeyError):
    """No topic or partition with that name."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class TopicExists(SawlogError, FileExistsError):
    """The topic already exists, or one whose name differs only in case."""


class SnapshotNotFound(SawlogError, KeyError):
    """No snapshot with that name."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class SnapshotExists(SawlogError, FileExistsError):
    """The snapshot already exists."""


class GroupError(SawlogError):
    """Something about consumers and their groups."""


class GroupNotFound(GroupError, KeyError):
    """Nobody has committed or joined under that name."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class GroupActive(GroupError):
    """Others are in the group. Its offsets cannot be moved while its members are running; and it has members of a
    broker or consumers that opened the store themselves, never both."""


class GroupFenced(GroupError):
    """This consumer's session expired; its partitions were reassigned to other members."""


class NotCoordinator(GroupError):
    """Another broker coordinates the group by now: nothing was committed, and its members join there."""


class Conflict(SawlogError):
    """Another process has changed what a change relied on: nothing was stored. Read it again, and try again."""


class PositionLost(GroupError, LookupError):
    """The records at a consumer's position are gone from the log, and it was opened with `on_lost="error"`."""


class TransactionError(SawlogError):
    """A write to several partitions failed or is not complete."""


class TransactionAborted(TransactionError):
    """The transaction was aborted; nothing of it was stored."""


class TransactionPending(TransactionError):
    """The transaction is committed but not completely written; the processes that hold the partitions complete it, or
    opening the store for writing does."""


class ReplayMismatch(TransactionError):
    """A name and sequence that are already stored were committed again with different records; nothing was stored by
    the second commit."""


class InteropError(SawlogError):
    """The base class of errors about other systems' logs."""


class UnknownFormat(InteropError, ValueError):
    """No known format matches the directory, or more than one does; the message says how to choose one."""


class ImportMismatch(InteropError, ValueError):
    """The target of an import does not hold the beginning of the source, so the import cannot continue."""


class ExportRefused(InteropError, ValueError):
    """The log cannot be exported in that format or to that directory; nothing was written."""


class SourceInUse(InteropError, BlockingIOError):
    """The other system is running on that directory: stop it first."""


class WireError(SawlogError, ValueError):
    """A message of Kafka's wire protocol cannot be read or written."""


class Malformed(WireError):
    """Bytes from the network are not a valid message. The connection they came from cannot go on."""


class UnsupportedVersion(Malformed):
    """The API, or this version of it, is not known."""


class Unencodable(WireError):
    """A message does not fit its table: an unknown field, a wrong type, or null where it is not allowed."""


class UserNotFound(SawlogError, KeyError):
    """There is no user with that name."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class BrokerError(SawlogError):
    """The base class of what a client of a broker raises."""


class BrokerUnavailable(BrokerError, ConnectionError):
    """The broker cannot be reached, or the connection broke. Whether a request that was sent was carried out is not
    known."""


class BrokerTimeout(BrokerError, TimeoutError):
    """The broker did not answer in time. Whether it carried out the request is not known."""


class AuthenticationFailed(BrokerError, PermissionError):
    """One side could not prove who it is. The message contains no secret."""


class BrokerRefused(BrokerError):
    """The broker answered with an error that has no counterpart here; `code` and `name` are Kafka's."""

    def __init__(self, message: str, *, code: int = -1, name: str = "UNKNOWN_SERVER_ERROR") -> None:
        self.code, self.name = code, name
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return _refused, (str(self), self.code, self.name)


def _refused(message: str, code: int, name: str) -> BrokerRefused:
    return BrokerRefused(message, code=code, name=name)
