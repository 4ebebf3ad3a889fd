"""Every error that sawlog raises, in one place.

```
SawlogError
├── InvalidConfig (ValueError)                 a setting that cannot work
├── InvalidRecord (ValueError)                 the record cannot be stored; nothing was written
│   ├── InvalidRecordType (TypeError)            not bytes, header keys that are not str, ...
│   └── RecordTooLarge                           larger than the log takes
│       └── StreamTooLong                          a streamed record passed its bound
├── StreamAborted (RuntimeError)               the caller's stream raised; the log is as it was
├── OffsetOutOfRange (IndexError)              no record there; carries the valid range
│   └── RecordRemoved                            compaction has removed it; says which one follows
├── DataLoss                                   records of a planned range are gone, or others have their offsets now
├── OffsetMismatch (ValueError)                expect_offset did not hold; nothing was written
├── ProducerError
│   ├── OutOfOrderSequence                       a producer skipped or repeated sequence numbers
│   └── ProducerFenced                           an older epoch of a producer wrote
├── CorruptData (ValueError)                   bytes on disk are not what was written
│   ├── CorruptBatch                             says path, position and the next readable offset
│   │   └── DecompressionLimit                     would unpack to more than is allowed
│   ├── CorruptFile                              a checkpoint, catalogue or other small file
│   └── ForeignDamage                            bytes of another system's log; says path and position
│       ├── NoBase                                 an index that does not say where it begins
│       ├── BaseMismatch                           a name says one first offset, the content another
│       ├── IndexSizeMismatch                      an index that is torn or padded, or of another length than the data
│       ├── IndexGap                               an index whose entries leave something out, or point elsewhere
│       ├── MissingRecords                         a gap: records, or a whole file, that should be there
│       ├── OffsetsOutOfOrder                      offsets that restart or do not follow
│       ├── ChecksumMismatch                       checksum or length of a record are not what was written down
│       ├── UnreadableRecord                       a record that does not parse
│       └── TornFile                               data that ends in the middle of a record
├── UnsupportedCompression (ValueError)        codec number or name that Kafka does not define
├── StorageError (OSError)                     the operating system said no
│   ├── StorageFull                              no space left; what was written was rolled back
│   ├── SyncFailed                               fsync failed: never tried again, the log is failed
│   ├── ReadBeyondEnd (EOFError)                 a read past the written bytes of a storage
│   ├── LogNotFound (FileNotFoundError)          read-only open of a directory that holds no log
│   └── StoreNotFound (FileNotFoundError)        read-only open of a directory that holds no store
├── DirectoryLocked (BlockingIOError)          another writer holds the partition
├── LogFailed (RuntimeError)                   an earlier failure ended writing; reading goes on
├── LogClosed (ValueError)                     the log was closed, or belongs to the parent of a fork
├── ReadOnlyLog (UnsupportedOperation)         opened with mode="r"
├── InvalidTopicName (ValueError)              a name that no topic can have
├── TopicNotFound (KeyError)                   no topic, or no partition, of that name
├── TopicExists (FileExistsError)              there is one of that name already, or one that differs by case only
├── GroupError                                 consumers and their groups
│   ├── GroupNotFound (KeyError)                 nobody has committed or joined under that name
│   ├── GroupActive                              offsets are not moved from outside while members consume
│   ├── GroupFenced                              taken for dead: its partitions went to another member
│   └── PositionLost (LookupError)               the records at its position are gone, and it asked to be told
├── TransactionError                           several partitions, all or nothing
│   ├── TransactionAborted                       nothing of it was stored
│   └── TransactionPending                       committed; it is placed when the store is next opened
└── InteropError                               other systems' logs
    ├── UnknownFormat (ValueError)               no format that we know fits, or more than one
    ├── ImportMismatch (ValueError)              the target holds something else than the source
    ├── ExportRefused (ValueError)               it cannot be written so, or not there; nothing was written
    └── SourceInUse (BlockingIOError)            the other system is running on it: stop it first
```

Families say what a caller can do: change the call (Invalid…), look elsewhere (OffsetOutOfRange), plan again (DataLoss),
try again with a fresh offset (OffsetMismatch), run `verify` (Corrupt…), look at the disk (Storage…), reopen (LogFailed,
LogClosed), look at who else is there (Group…).
Where the standard library has a type for it, the error is that type as well.
"""

from __future__ import annotations

import io


class SawlogError(Exception):
    """The root: `except SawlogError` catches whatever sawlog raises on purpose."""


class InvalidConfig(SawlogError, ValueError):
    """A setting that cannot work; the message names the field and what would be valid."""


class InvalidRecord(SawlogError, ValueError):
    """The record cannot be stored as given; nothing was written."""


class InvalidRecordType(InvalidRecord, TypeError):
    """A field of the record has the wrong Python type; nothing was written."""


class RecordTooLarge(InvalidRecord):
    """The record, or the batch around it, is larger than the log takes; nothing was written."""


class StreamTooLong(RecordTooLarge):
    """A streamed record passed its bound; the log is byte for byte what it was before."""


class StreamAborted(SawlogError, RuntimeError):
    """The stream of chunks raised (see `__cause__`); the log is byte for byte what it was before."""


class OffsetOutOfRange(SawlogError, IndexError):
    """No record at that offset. `lowest` and `next` say which are there: lowest <= offset < next."""

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
    """Compaction has removed the record at that offset; `following` is the next one that is there."""

    def __init__(self, requested: int, lowest: int, next_offset: int, following: int) -> None:
        super().__init__(requested, lowest, next_offset)
        self.following = following
        self.args = (f"the record at offset {requested} was removed by compaction; the next is at {following}",)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.requested, self.lowest, self.next, self.following)


class DataLoss(SawlogError):
    """Records that were to be read are gone: dropped, cut off, or replaced by others with the same offsets.

    Raised by those who read a range that was planned before. They have read all of it, or they raise this.
    """


class OffsetMismatch(SawlogError, ValueError):
    """`expect_offset` did not hold: somebody else appended first. Nothing was written."""

    def __init__(self, expected: int, actual: int) -> None:
        self.expected, self.actual = expected, actual
        super().__init__(
            f"expected to append at offset {expected}, but the log is at {actual}; nothing was written: "
            f"read what is new from {min(expected, actual)}, then decide again"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.expected, self.actual)


class ProducerError(SawlogError):
    """An idempotent producer's batch does not follow the ones before it; nothing was written."""


class OutOfOrderSequence(ProducerError):
    """The batch's first sequence number is not the one that follows the producer's last."""


class ProducerFenced(ProducerError):
    """A newer epoch of this producer id has already written."""


class CorruptData(SawlogError, ValueError):
    """Bytes on disk are not what was written."""


class CorruptBatch(CorruptData):
    """A batch that fails its checksum or does not parse. It is never skipped in silence.

    `path` and `position` say where it starts; `next_offset` is the next offset that can be read after it,
    or None where nothing readable follows.
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
        """The same finding, once it is known where it was found."""
        return type(self)(self.reason, path=path, position=position, next_offset=next_offset)


class DecompressionLimit(CorruptBatch):
    """The batch would unpack to more bytes than is allowed; it was not unpacked."""


class CorruptFile(CorruptData):
    """A small file of ours (checkpoint, producer state) fails its checksum or does not parse."""


class ForeignDamage(CorruptData):
    """Bytes of another system's log are not what they should be.

    `path` and `position` say where; `offset` is the record concerned, or the next one, where that is known.
    """

    def __init__(
        self, message: str, path: str | None = None, position: int | None = None, offset: int | None = None
    ) -> None:
        self.reason, self.path, self.position, self.offset = message, path, position, offset
        super().__init__(f"{path} at byte {position}: {message}" if path is not None else message)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.reason, self.path, self.position, self.offset)


class NoBase(ForeignDamage):
    """An index that does not say at which offset it begins."""


class BaseMismatch(ForeignDamage):
    """The name of a file says one first offset and its content another."""


class IndexSizeMismatch(ForeignDamage):
    """An index that is torn or padded, has a mark too many, or is longer or shorter than the data beside it."""


class IndexGap(ForeignDamage):
    """An index whose entries leave bytes of the data out, or point at something that is no record."""


class MissingRecords(ForeignDamage):
    """A gap: records, or a whole file, that should be there and are not."""


class OffsetsOutOfOrder(ForeignDamage):
    """Offsets that go back to an earlier one, or do not follow."""


class ChecksumMismatch(ForeignDamage):
    """The checksum or the length of a record is not what was written down for it."""


class UnreadableRecord(ForeignDamage):
    """A record, or the frame around it, that does not parse."""


class TornFile(ForeignDamage):
    """Data that ends in the middle of a record, or in zeros."""


class UnsupportedCompression(SawlogError, ValueError):
    """A compression that Kafka's format does not define."""


class StorageError(SawlogError, OSError):
    """The operating system refused; `errno` and `__cause__` say why."""

    #: Whether a failed write could not be taken back, so that the file has to be recovered before it is used.
    torn = False


class StorageFull(StorageError):
    """No space left, or a quota or file-size limit was met; the partial write was rolled back."""


class SyncFailed(StorageError):
    """fsync failed. It is never tried again, because the kernel has forgotten the lost pages by then."""


class ReadBeyondEnd(StorageError, EOFError):
    """A read past the written bytes of a storage."""


class LogNotFound(StorageError, FileNotFoundError):
    """There is no log in that directory."""


class StoreNotFound(StorageError, FileNotFoundError):
    """There is no store in that directory."""


class DirectoryLocked(SawlogError, BlockingIOError):
    """Another writer holds this directory; `holder` describes it where it is known."""

    def __init__(self, path: str, holder: str = "") -> None:
        self.path, self.holder = path, holder
        by = f" by {holder}" if holder else ""
        super().__init__(
            f"{path} is locked for writing{by}; a partition has one writer: close it there, "
            'or open with mode="r" to read beside it'
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.path, self.holder)


class LogFailed(SawlogError, RuntimeError):
    """An earlier failure (see `__cause__`) ended writing. Reading goes on; close and reopen to recover."""


class LogClosed(SawlogError, ValueError):
    """The log was closed, or was opened by the process that this one was forked from."""


class ReadOnlyLog(SawlogError, io.UnsupportedOperation):
    """The log was opened with mode="r"."""


class InvalidTopicName(SawlogError, ValueError):
    """A name that no topic can have; the message says which ones can be."""


class TopicNotFound(SawlogError, KeyError):
    """No topic, or no partition of a topic, of that name."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class TopicExists(SawlogError, FileExistsError):
    """There is a topic of that name already, or one that differs by upper and lower case only."""


class GroupError(SawlogError):
    """Something about consumers and their groups."""


class GroupNotFound(GroupError, KeyError):
    """Nobody has committed or joined under that name."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class GroupActive(GroupError):
    """Offsets of a group are not moved from outside while its members consume."""


class GroupFenced(GroupError):
    """This consumer was silent for so long that it was taken for dead; its partitions went to another member."""


class PositionLost(GroupError, LookupError):
    """The records at a consumer's position are gone from the log, and it asked to be told (`on_lost="error"`)."""


class TransactionError(SawlogError):
    """A write to several partitions did not end as it should."""


class TransactionAborted(TransactionError):
    """Nothing of the transaction was stored."""


class TransactionPending(TransactionError):
    """The transaction is committed, but not all of it is placed: that is done when the store is next opened."""


class InteropError(SawlogError):
    """Something about another system's log."""


class UnknownFormat(InteropError, ValueError):
    """No format that we know fits what is there, or more than one does; the message says how to name one."""


class ImportMismatch(InteropError, ValueError):
    """The log that an import was to go on with holds something else than what it would continue."""


class ExportRefused(InteropError, ValueError):
    """The log cannot be written in that format, or not to that place; nothing was written."""


class SourceInUse(InteropError, BlockingIOError):
    """The other system is running on that directory, and changes it: stop it first."""
