"""All per-record work, in Cython's pure-Python mode: the same units run compiled or interpreted.

```
records       Record; batches to records: all (decode_records), one by one (RecordCursor, page_cursor), a certain one
              (record_at); whether they parse (records_parse)
batches       batch headers: reading (scan_batches, or one: sole_batch), finding (find_batch, find_header), writing
              (write_header)
builder       Python objects to a batch (BatchBuilder)
arrow         Arrow buffers to a batch (encode_arrow) and back (decode_columns, decode_headers)
partitions    the partition of a key (partition_of, Dispatcher)
keys          what compaction keeps (KeyMap, keep_records)
frames        other systems' records
lookup        one record, or one page of batches, from a log in one call (FastReader) or from a buffer (page_fast)
slots         two numbers that a log publishes to readers in other processes at every append (Slots)
placing       one batch at the end of a log (Placer)
sparse        the sparse index of a segment (SparseIndex)
fields        fields of a log's objects and of its files that one call uses, and writing to a file
walk          one record in a buffer, and the walk from record to record that all of these take
primitives    numbers in a buffer
declarations  names of columns and numbers, and two structs: .pxi for the compiler, .py for Python
```

The bytes are Kafka's RecordBatch v2, drawn in `header.py`.

Compiled, all units are one module: `__init__.pyx` includes them, and Python prefers the extension next to this file. A
call between units is then a C call, which the compiler can inline. This imposes three rules: a name is defined
in one unit only; there is no `from __future__ import annotations`, which Cython accepts only at the beginning of a
module; interpreted, annotations are evaluated and have no effect; and `cython` is always imported from
`sawlog.batch.cyshim`, which the compiler ignores.

Guarantees. No input makes these functions read or write outside their buffers, loop forever or crash: every length is
checked against the remaining bytes before it is used. Errors are reported by return values, which the calling Python
code turns into exceptions with path and position. The kernel checks structure, not content: verifying the CRC is up to
the caller. Only `fields` does I/O, and only a `RecordCursor` and `Slots` keep a buffer after the call returns.

Threads. The Arrow functions run without the GIL. A `BatchBuilder` is thread-safe only where the GIL makes a compiled
call atomic; `sawlog.log.writer` adds a lock elsewhere.

Interpreted, the same code is 20 to 200 times slower: a correctness fallback (see `sawlog.kernel_info()`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .arrow import decode_columns, decode_headers, encode_arrow, oldest_times
from .batches import (
    any_attribute,
    check_small,
    checksum,
    find_batch,
    find_header,
    patch_crc,
    patch_place,
    scan_batches,
    select_entries,
    sole_batch,
    write_header,
)
from .builder import SMALL_CRC_BYTES, BatchBuilder, Encoded, gather_chunks
from .declarations import *  # noqa: F403 - all columns and numbers
from .fields import (
    ActiveSegmentFields,
    AppenderFields,
    DescriptorFields,
    DurabilityFields,
    ExtentFields,
    FileFields,
    LookupFields,
    MappedFields,
    SegmentSetFields,
)
from .frames import crc32_of, gather, numbers_at, parse_messages, put_messages, walk_frames, weave
from .json import gather_slices, json_fields
from .keys import KeyMap, keep_records
from .lookup import FastReader, page_fast, read_fast
from .partitions import Dispatcher, murmur2, partition_of, partitions_of
from .placing import Placer
from .records import (
    MAX_TIMESTAMP,
    RecordCursor,
    decode_records,
    handed_out,
    head_of,
    landmarks,
    page_cursor,
    payload,
    record_after,
    record_at,
    records_parse,
)
from .slots import SLOTS_BYTES, Slots
from .sparse import SparseIndex

if TYPE_CHECKING:
    from .typed import Record, placed
else:
    from .records import Record, placed

COMPILED = False

for _each in (BatchBuilder, Dispatcher, Encoded, KeyMap, Record, RecordCursor, Slots):
    _each.__module__ = __name__  # as when compiled, so that pickles are interchangeable
