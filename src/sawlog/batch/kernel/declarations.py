"""Declarations shared by all units, for the interpreter: the columns of a row, named constants, and two small structs.

`declarations.pxi` has the same for the compiler, as C constants and C structs; tests/batch/test_kernel_declarations.py
compares the two.
"""

#: Columns of a row of the int64 array that `scan_batches` fills.
POSITION = 0  # byte in the buffer where the batch starts
SIZE = 1  # bytes, header included
BASE = 2  # first offset
LAST = 3  # last offset
COUNT = 4  # records
ATTRIBUTES = 5
BASE_TIME = 6
MAX_TIME = 7
PRODUCER_ID = 8
PRODUCER_EPOCH = 9
BASE_SEQUENCE = 10
CRC = 11
BODY = 12  # byte in the buffer where the records start
BODY_END = 13
LEADER_EPOCH = 14
MARKER = 15  # type and coordinator epoch of a control batch (see `marker_of`); else 0
ROW_WIDTH = 16

#: Columns of the table of a `KeyMap`.
HASH_LOW = 0
HASH_HIGH = 1
OFFSET_PLUS_ONE = 2  # 0: the slot is free
KEY_WIDTH = 3

#: Bits of the attributes of a batch.
COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

#: Types of a marker, the lowest byte of `MARKER`.
ABORT_MARKER = 1
COMMIT_MARKER = 2
OTHER_MARKER = 3  # not the end of a transaction
MARKER_MASK = 0xFF
MARKER_SHIFT = 8  # above it: the epoch of the coordinator that wrote it

#: Sizes in bytes: a batch's header, and its part up to and including the batch length; the smallest record, and the
#: smallest value of its length; a view of Arrow.
HEADER_BYTES = 61
LENGTH_END = 12
LEAST_RECORD = 7
LEAST_LENGTH = 6
VIEW_BYTES = 16

#: The largest offset delta that the format can store.
MOST_DELTA = 0x7FFFFFFF

#: Verified checksums are remembered per cell of the file. A cell is 4 KiB; this is its log2.
CELL_SHIFT = 12
#: Flag of a cell: all batches that start there were verified, and none is transactional.
PLAIN_CELL = 0x8000

#: Reasons of `scan_batches` to stop.
SCAN_MORE = 0
SCAN_END = 1
SCAN_SHORT = 2
SCAN_BAD = 3

#: Reasons of `walk_frames` to stop: the results are full; exactly at the end; the last frame is incomplete; an
#: impossible length.
WALK_MORE = 0
WALK_END = 1
WALK_SHORT = 2
WALK_BAD = 3

#: Columns of a row of the wanted fields of JSON texts: see json.py.
JSON_KIND = 0
JSON_SLOT = 1
JSON_CHILD = 2
JSON_MANY = 3
JSON_NAME = 4
JSON_SIZE = 5
JSON_NODE_WIDTH = 6

#: Type of a requested field.
JSON_STRUCT = 0
JSON_LONG = 1
JSON_DOUBLE = 2
JSON_BOOLEAN = 3
JSON_STRING = 4

#: State of a requested field in a text.
JSON_ABSENT = 0
JSON_PRESENT = 1
JSON_NULL = 2

#: Maximum nesting depth of skipped values.
JSON_DEPTH = 64
#: Maximum number of digits before the decimal point.
JSON_DIGITS = 200


class Fields:
    """Positions and sizes of the parts of one record; a size of -1 is null."""

    __slots__ = (
        "delta",  # offset - base offset of the batch
        "end",
        "header_count",
        "headers_at",
        "key_at",
        "key_size",
        "time_delta",
        "value_at",
        "value_size",
    )


class Walk:
    """A walk over the records of one batch: where it is, what may come next, and the current record."""

    __slots__ = (
        "at",  # start of the next record
        "base",  # from the row of the batch
        "base_time",
        "end",  # end of the records
        "left",  # number of records left
        "log_time",  # the log set the times: `max_time` is the time of every record
        "max_time",
        "most",  # the largest offset delta that the next record may have
        "previous",  # minimum of its offset delta, exclusive
        "record",
    )

    def __init__(self) -> None:
        self.record = Fields()
