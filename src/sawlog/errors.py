"""The exception hierarchy.

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
│   ├── NotYetVisible                            written but not durable, or not committed: wait
│   └── RecordRemoved                            removed by compaction, or aborted; has the next existing offset
├── DataLoss                                   records of a planned range are gone, or their offsets were reused
├── OffsetMismatch (ValueError)                expect_offset does not match; nothing was written
├── ProducerError
│   ├── OutOfOrderSequence                       a producer skipped or repeated sequence numbers
│   ├── ProducerFenced                           a producer with an older epoch wrote
│   ├── ProducerInTransaction                    a batch outside the producer's open transaction
│   └── NotInTransaction                         a transactional batch for a partition outside its transaction
├── CorruptData (ValueError)                   stored bytes are damaged
│   ├── CorruptBatch                             has path, position and the next readable offset
│   │   └── DecompressionLimit                     would decompress to more than the limit
│   ├── CorruptFile                              a checkpoint, catalog or other small file
│   └── ForeignDamage                            another system's log is damaged; has path and position
│       ├── NoBase                                 an index without its first offset
│       ├── BaseMismatch                           file name and content have different first offsets
│       ├── IndexSizeMismatch                      an index that is torn, padded, or does not match the data's length
│       ├── IndexGap                               an index whose entries skip data, or point to something else
│       ├── MissingRecords                         a gap: records or a whole file are missing
│       ├── OffsetsOutOfOrder                      offsets that restart or are not consecutive
│       ├── ChecksumMismatch                       a record's checksum or length does not match
│       ├── UnreadableRecord                       a record that does not parse
│       └── TornFile                               data that ends inside a record
├── UnsupportedCompression (ValueError)        a codec that Kafka does not define
├── StorageError (OSError)                     the operating system reported an error
│   ├── StorageFull                              no space left; the partial write was rolled back
│   ├── SyncFailed                               fsync failed; it is never retried, and the log stops writing
│   ├── ReadBeyondEnd (EOFError)                 a read past the written bytes of a storage
│   ├── UnsafeStorage                            object storage violates a guarantee that stores depend on
│   ├── RemoteUnavailable                        tiered records cannot be read from the replica right now
│   ├── StoreIncomplete                          a restore into this directory is running or was interrupted
│   ├── LogNotFound (FileNotFoundError)          read-only open of a directory that holds no log
│   └── StoreNotFound (FileNotFoundError)        read-only open of a directory that holds no store
├── DirectoryLocked (BlockingIOError)          another writer has locked the partition
├── AmbiguousAppend (TimeoutError)             object storage did not answer; outcome unknown
├── LogFailed (RuntimeError)                   writing stopped after an earlier failure; reading still works
├── LogClosed (ValueError)                     the log is closed, or was opened by the parent before a fork
├── ReadOnlyLog (UnsupportedOperation)         opened with mode="r"
├── InvalidTopicName (ValueError)              not a valid topic name
├── TopicNotFound (KeyError)                   no topic or partition with that name
├── TopicExists (FileExistsError)              a topic of that name exists (names are compared ignoring case)
├── SnapshotNotFound (KeyError)                no snapshot with that name
├── SnapshotExists (FileExistsError)           a snapshot of that name exists
├── GroupError                                 consumers and their groups
│   ├── GroupNotFound (KeyError)                 no group with that name
│   ├── GroupActive                              the group has running members, or members of the other kind
│   ├── GroupFenced                              session expired; its partitions were reassigned
│   ├── NotCoordinator                           another broker coordinates the group; nothing was committed
│   └── PositionLost (LookupError)               the records at the position are gone, with on_lost="error"
├── UserNotFound (KeyError)                    no user with that name
├── Conflict                                   a concurrent change won; nothing was stored
├── TransactionError                           an atomic write to several partitions
│   ├── TransactionAborted                       nothing was stored
│   ├── TransactionPending                       committed; completed by the next process that writes
│   └── ReplayMismatch                           name and sequence are already stored with different records
├── InteropError                               other systems' logs
│   ├── UnknownFormat (ValueError)               no known format matches, or more than one
│   ├── ImportMismatch (ValueError)              the target does not match the source
│   ├── ExportRefused (ValueError)               that format or directory cannot take the log; nothing was written
│   └── SourceInUse (BlockingIOError)            the other system is running: stop it first
├── WireError (ValueError)                     Kafka's wire protocol
│   ├── Malformed                                bytes from the network that are not a valid message
│   │   └── UnsupportedVersion                     an unknown API or API version
│   └── Unencodable                              a message that does not match its schema: a bug in the caller
├── QueryFailed (ValueError)                   SQL that cannot be run, or is not a query
│   └── TableNotFound (LookupError)              SQL names something that is neither a topic nor a file
├── MissingPackage (ImportError)               an optional package is not installed; the message has the command
└── BrokerError                                raised by clients of a broker
    ├── BrokerUnavailable (ConnectionError)      cannot be reached, or the connection broke
    ├── BrokerTimeout (TimeoutError)             did not answer in time
    ├── AuthenticationFailed (PermissionError)   user, password or certificate rejected, by either side
    └── BrokerRefused                            answered with an error; has Kafka's error name and code
```

Each family tells the caller what to do next: change the call (Invalid…), use another offset (OffsetOutOfRange), replan
(DataLoss), retry with the current offset (OffsetMismatch), run `verify` (Corrupt…), check the disk (Storage…), reopen
(LogFailed, LogClosed), check the other members (Group…), check the broker (Broker…).
Where the standard library has a matching type, the error is also an instance of it.
"""

from __future__ import annotations

import io
from functools import partial
from typing import Any


class SawlogError(Exception):
    """Base class of every error that sawlog raises on purpose."""


class _NotFound(KeyError):
    """A `KeyError` that is displayed without quotes around its message."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class InvalidConfig(SawlogError, ValueError):
    """An invalid setting; the message names the field and the valid values."""


class QueryFailed(SawlogError, ValueError):
    """SQL that cannot be run: it does not parse, refers to an unknown name, or is not a query."""


class TableNotFound(QueryFailed, LookupError):
    """SQL names something that is neither a topic nor a file; the message lists the topics."""


class MissingPackage(SawlogError, ImportError):
    """An optional package is not installed; the message has the command that installs it."""


class InvalidRecord(SawlogError, ValueError):
    """The record cannot be stored as given; nothing was written."""


class InvalidRecordType(InvalidRecord, TypeError):
    """A field of the record has the wrong Python type; nothing was written."""


class RecordTooLarge(InvalidRecord):
    """The record, or its batch, is larger than the log allows; nothing was written."""


class StreamTooLong(RecordTooLarge):
    """A streamed record exceeded its limit; the log is unchanged, byte for byte."""


class DecodeFailed(SawlogError, ValueError):
    """A record read through a typed view does not parse. `record` is the stored record, with topic, partition and
    offset; `part` is "value", "key" or "metadata"; `reason` says why."""

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
        """Offset that the next record will get."""
        return self.next

    @property
    def lowest_offset(self) -> int:
        """First offset that the log still holds."""
        return self.lowest


class NotYetVisible(OffsetOutOfRange):
    """The record at that offset is written, but readers may not see it yet: it is not durable, or its offset is above
    an open transaction (`in_transaction`). The message says what to do."""

    def __init__(
        self, requested: int, lowest: int, next_offset: int, where: str = "", *, in_transaction: bool = False
    ) -> None:
        super().__init__(requested, lowest, next_offset, where)
        self.in_transaction = in_transaction
        log = f"the log{where and f' {where}'}"
        if in_transaction:
            message = (
                f"the record at offset {requested} is not committed yet: {log} has an open transaction from offset "
                f'{next_offset} on; wait until it ends, or read with isolation="uncommitted"'
            )
        else:
            message = (
                f"the record at offset {requested} is written but not durable yet, and {log} is readable below offset "
                f"{next_offset}: wait until its append returns, or call sync() if that was made with wait=False"
            )
        self.args = (message,)

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(type(self), in_transaction=self.in_transaction)
        return make, (self.requested, self.lowest, self.next, self.where)


class RecordRemoved(OffsetOutOfRange):
    """No record at that offset, although the log has later ones: compaction removed it, it belongs to an aborted
    transaction, or the offset is a transaction marker. `following` is the offset of the next record."""

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
    """A transactional batch was sent for a partition that its producer has not added to a transaction."""


class CorruptData(SawlogError, ValueError):
    """Stored bytes are damaged: they differ from the bytes that were written."""


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
    """A small metadata file (checkpoint, producer state, catalog) fails its checksum or does not parse."""


class ForeignDamage(CorruptData):
    """Another system's log is damaged.

    `path` and `position` locate the damage; `offset` is the affected record or the next one, if known.
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

    #: True if a failed write could not be rolled back: the file needs recovery before it is used again.
    torn = False


class StorageFull(StorageError):
    """No space left, or a quota or file-size limit was reached; the partial write was rolled back."""


class SyncFailed(StorageError):
    """fsync failed. It is never retried, because the kernel may already have dropped the unwritten pages."""


class ReadBeyondEnd(StorageError, EOFError):
    """A read past the written bytes of a storage."""


class UnsafeStorage(StorageError):
    """Object storage violates a guarantee that a store depends on; the message has the evidence."""


class RemoteUnavailable(StorageError):
    """Tiered records, whose only copy is the replica on object storage, cannot be read from there; the message says why
    and what to do. Local records stay readable."""


class LogNotFound(StorageError, FileNotFoundError):
    """The directory holds no log."""


class StoreIncomplete(StorageError):
    """A restore into this directory is running or was interrupted; the message says how to continue."""


class StoreNotFound(StorageError, FileNotFoundError):
    """The directory holds no store."""


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
        """Return the same error with the time that the caller waited for the lock."""
        return DirectoryLocked(self.path, f"{self.holder or 'another writer'} (timed out after {seconds:g} s)")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.path, self.holder)


class AmbiguousAppend(SawlogError, TimeoutError):
    """Object storage did not answer in time. The records may be stored already, may be stored later, or may be
    lost."""


class LogFailed(SawlogError, RuntimeError):
    """Writing stopped after an earlier failure (see `__cause__`). Reading still works; close and reopen to recover."""


class LogClosed(SawlogError, ValueError):
    """The log is closed, or was opened by the parent process before a fork."""


class ReadOnlyLog(SawlogError, io.UnsupportedOperation):
    """The log was opened with mode="r"."""


class InvalidTopicName(SawlogError, ValueError):
    """Not a valid topic name; the message says which names are valid."""


class TopicNotFound(SawlogError, _NotFound):
    """No topic or partition with that name."""


class TopicExists(SawlogError, FileExistsError):
    """A topic of that name exists, or one whose name differs only in case."""


class SnapshotNotFound(SawlogError, _NotFound):
    """No snapshot with that name."""


class SnapshotExists(SawlogError, FileExistsError):
    """A snapshot of that name exists."""


class GroupError(SawlogError):
    """Base class of errors about consumers and consumer groups."""


class GroupNotFound(GroupError, _NotFound):
    """No consumer has committed or joined under that group name."""


class GroupActive(GroupError):
    """The group has other members. Offsets cannot be reset while members are running, and a group cannot mix members
    that use a broker with consumers that opened the store themselves."""


class GroupFenced(GroupError):
    """This consumer's session expired; its partitions were reassigned to other members."""


class NotCoordinator(GroupError):
    """Another broker has become the group's coordinator: nothing was committed, and members rejoin there."""


class Conflict(SawlogError):
    """A concurrent change by another process won: nothing was stored. Read the current state and retry."""


class PositionLost(GroupError, LookupError):
    """The records at a consumer's position are gone, and the consumer was opened with `on_lost="error"`."""


class TransactionError(SawlogError):
    """An atomic write to several partitions failed or is not complete."""


class TransactionAborted(TransactionError):
    """The transaction was aborted; nothing of it was stored."""


class TransactionPending(TransactionError):
    """The transaction is committed but not fully applied. The processes that hold the partitions complete it, or the
    next open of the store for writing does."""


class ReplayMismatch(TransactionError):
    """A commit repeated a name and sequence that are already stored, with different records; the second commit stored
    nothing."""


class InteropError(SawlogError):
    """Base class of errors about other systems' logs."""


class UnknownFormat(InteropError, ValueError):
    """No known format matches the directory, or more than one does; the message says how to choose one."""


class ImportMismatch(InteropError, ValueError):
    """The target of an import is not a prefix of the source, so the import cannot continue."""


class ExportRefused(InteropError, ValueError):
    """The log cannot be exported in that format or to that directory; nothing was written."""


class SourceInUse(InteropError, BlockingIOError):
    """The other system is running on that directory: stop it first."""


class WireError(SawlogError, ValueError):
    """A message of Kafka's wire protocol cannot be read or written."""


class Malformed(WireError):
    """Bytes from the network are not a valid message. The connection must be closed."""


class UnsupportedVersion(Malformed):
    """The API, or this version of it, is unknown."""


class Unencodable(WireError):
    """A message does not match its schema: an unknown field, a wrong type, or null where it is not allowed."""


class UserNotFound(SawlogError, _NotFound):
    """No user with that name."""


class BrokerError(SawlogError):
    """Base class of the errors that a broker's client raises."""


class BrokerUnavailable(BrokerError, ConnectionError):
    """The broker cannot be reached, or the connection broke. The outcome of a request in flight is unknown."""


class BrokerTimeout(BrokerError, TimeoutError):
    """The broker did not answer in time. The outcome of the request is unknown."""


class AuthenticationFailed(BrokerError, PermissionError):
    """One side could not prove its identity. The message contains no secret."""


class BrokerRefused(BrokerError):
    """The broker answered with an error that has no class of its own; `code` and `name` are Kafka's."""

    def __init__(self, message: str, code: int = -1, name: str = "UNKNOWN_SERVER_ERROR") -> None:
        self.code, self.name = code, name
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.code, self.name)
