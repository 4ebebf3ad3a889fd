"""The sizes at which the engine does something else, made small: work of a few kilobytes passes all of them.

A record of 40 bytes never meets a limit of 16 MiB, so a bug beyond such a limit is not seen by any workload. `TABLE`
has every size of the engine; `chosen(seed)` takes some of them, each with a value below, around or above what a
workload writes, and `small` sets them for the duration of a run. What a seed chooses is the same every time.

A size that is not in the table is in `NOT_VARIED`, with the reason. A test (test_thresholds.py) looks for sizes in the
source, so that a new one has to be put into one of the two; and for modules that have imported one of them under its
name, because they keep the old value otherwise.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Threshold:
    """One size: where it is kept, and what it may be. A place is `module:NAME`, or `module:function(parameter)` for the
    default of a parameter, which was taken from the name when the module was imported."""

    places: tuple[str, ...]
    choices: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.places[0]


def _one(places: str, *choices: int) -> Threshold:
    return Threshold(tuple(f"sawlog.{place}" for place in places.split()), choices)


#: Chunks are gathered until there are this many bytes to write.
BLOCK_BYTES = "log.write.streams:_BLOCK_BYTES"
#: A stream that is shorter than this is an append like any other.
SHORT_BYTES = "log.write.appender:_SHORT_BYTES"
TABLE: tuple[Threshold, ...] = (
    # Copies and pieces: one write becomes several.
    _one("log.maintain.recovery:SMALL_BYTES", 0, 100, 400, 900, 2500),
    _one("log.maintain.recovery:_COPY_BYTES", 150, 512, 1100),
    _one("log.write.cutting:_COPY_BYTES", 150, 512, 1100),
    _one("log.write.streams:_COPY_BYTES", 100, 300, 900),
    _one(BLOCK_BYTES, 50, 300, 1000),
    _one("log.maintain.replacement:_WRITE_BYTES", 50, 300, 1500),
    _one("log.maintain.rewrite:MOST_SEGMENTS", 2, 3),
    _one("topics.transactions.placing:_PLACE_BYTES", 70, 200, 1000),
    _one("topics.transactions.numbering:ADOPT_BYTES topics.transactions.staging:ADOPT_BYTES", 0, 300, 2000),
    # How much goes into one batch, one placement, one file.
    _one("log.write.tables:_GROUP_BYTES", 100, 500, 1500),
    _one(
        "log.write.writer:BATCH_BYTES log.log:BATCH_BYTES log.write.tables:BATCH_BYTES "
        "topics.transactions.drafts:BATCH_BYTES "
        "topics.topic:Topic.writer(batch_bytes) log.write.writer:Writer.__init__(batch_bytes) topics.topic:BATCH_BYTES "
        "log.log:Log.writer(batch_bytes) topics.topic:Topic.partition_writer(batch_bytes) "
        "topics.base.partition:BATCH_BYTES topics.base.topic:BATCH_BYTES "
        "topics.base.partition:Partition.writer(batch_bytes) topics.base.topic:Topic.writer(batch_bytes) "
        "topics.base.topic:Topic.partition_writer(batch_bytes) "
        "topics.handover.outlet:BATCH_BYTES topics.handover.outlet:Outlet.writer(batch_bytes) "
        "topics.packing:BATCH_BYTES topics.packing:Packer.__init__(batch_bytes)",
        100,
        300,
        1000,
    ),
    _one("log.maintain.rebatch:BATCH_BYTES", 80, 300, 1000),
    _one(
        "topics.transactions.intents:INLINE_BYTES topics.transactions.drafts:INLINE_BYTES "
        "topics.transactions.staging:INLINE_BYTES spark.writing:INLINE_BYTES",
        0,
        150,
        1000,
    ),
    _one("topics.transactions.drafts:SPILL_BYTES", 0, 100, 400),
    _one("topics.transactions.placing:_MARGIN_BYTES", 0, 500),
    _one("topics.partitioner:Sticky.__init__(sticky_bytes) topics.partitioner:STICKY_BYTES", 1, 60),
    # Offsets that one segment, one batch, one table has room for.
    _one(
        "log.segment.index:MAX_SPAN log.write.appender:MAX_SPAN log.write.active:MAX_SPAN log.write.keeping:MAX_SPAN "
        "log.segment.damage:MAX_SPAN log.maintain.rebatch:MAX_SPAN log.maintain.replacement:MAX_SPAN "
        "log.write.adopting:MAX_SPAN",
        12,
        30,
    ),
    _one("log.write.keeping:_MOST_MISSING", 1, 2, 4),
    _one("log.maintain.compaction:KEY_BYTES log.maintain.compaction:compact(key_bytes)", 192, 400),
    _one("log.maintain.compaction:_LEAST_SLOTS", 8),
    _one("log.files.state:_MOST", 1, 2),
    # How much is looked at in one step.
    _one(
        "log.segment.batches:CHUNK_BYTES log.segment.lookup:CHUNK_BYTES log.segment.segment:CHUNK_BYTES "
        "log.read.reader:CHUNK_BYTES log.segment.segment:Segment.chunks(chunk_bytes) "
        "log.segment.batches:Batches.chunks_in(chunk_bytes) log.segment.batches:Batches.batches(chunk_bytes) "
        "log.read.reader:Reader.chunks(chunk_bytes)",
        64,
        200,
        900,
    ),
    _one("log.segment.lookup:_TIME_CHUNK_BYTES", 64, 200),
    _one("log.segment.batches:CHUNK_ROWS", 1, 2, 5),
    _one("log.segment.lookup:_LANDMARK_STEP", 1, 2),
    _one("log.segment.lookup:_LANDMARK_BATCHES", 1, 2),
    _one("log.segment.lookup:_PAGE_MARGIN_BYTES", 0, 100),
    _one(SHORT_BYTES, 0, 10, 100),
    _one("log.read.reader:RECORD_CHUNK_BYTES", 64, 200, 900),
    _one("log.read.reader:_FORGET_BYTES", 1, 500),
    _one("batch.read:SMALL_BYTES", 0, 100),
    _one("batch.build:KEEP_BYTES log.write.batcher:KEEP_BYTES", 100, 1000),
    _one("log.write.aio:_BUFFER_BYTES", 200, 1000),
)

#: Sizes that no workload changes: why.
NOT_VARIED: Mapping[str, str] = {
    f"sawlog.{name}": why
    for names, why in {
        "log.segment.lookup:_CELL_BYTES": "compiled into the kernel; a checksum that was right is remembered, "
        "and nothing is written",
        "log.write.keeping:_MOST_GAP log.files.epochs:MAX_EPOCH config:MAX_OFFSET "
        "topics.entry:MAX_PARTITIONS": "refused beyond: a promise to the caller, with tests of its own",
        "config:MAX_SEGMENT_BYTES batch.build:MAX_BATCH_BYTES batch.arrow:_MAX_ARRAY_BYTES": "a limit of the format; "
        "segment_bytes stays below it, and is small in every workload",
        "log.files.remote:_MOST_RUNS": "how precisely retention knows what is only in the replica; no workload has one "
        "(tests/log/maintain/test_tiering.py joins runs)",
        "log.write.producers:REMEMBERED": "a promise to producers, with tests of its own",
        "log.segment.index:OFFSET_ENTRY_BYTES log.segment.index:TIME_ENTRY_BYTES log.maintain.compaction:_SLOT_BYTES "
        "batch.kernel:HEADER_BYTES batch.kernel:SLOTS_BYTES "
        "topics.partitioner:_RECORD_BYTES": "the size of a thing, not a limit",
        "batch.kernel:ROW_WIDTH": "the size of a thing, not a limit",
        "batch.codecs.zstd:_DICTIONARY_ID_BYTES config:KIB config:MIB config:GIB "
        "spark.java:LEAST_VERSION": "no size of the engine",
        "topics.base.partition:PAGE_BYTES topics.base.partition:STREAM_BYTES": "object storage only; "
        "no workload has it",
        "log.read.reader:ARROW_ROWS": "readers choose it (`batch_rows`); nothing is written",
        "topics.groups.offsets:_SEGMENTS topics.groups.offsets:_CONFIG": "small in every workload: "
        "stores._small_groups",
        "topics.service:_SEGMENTS": "when a broker's log of transactions is compacted; no workload has a broker",
        "log.maintain.upkeep:_LEAST_RUN": "which segments are worth merging by themselves; workloads merge on demand, "
        "from two",
        "storage.file:_REMAP_BYTES storage.locks:_NOTE_BYTES storage.file:_RESERVE_LEAST_BYTES "
        "storage.system:_PLENTY_BYTES storage.file:_RESERVE_MOST_BYTES": "real files only: tests/storage and `kills`",
        "spark.writing:_HELD_BYTES spark.outgoing:_OWN_BYTES "
        "spark.commit:_INTENT_BYTES": "varied by stores.spark_write itself, which needs both of them small",
        "spark.planning:LEAST_TASK_BYTES spark.planning:TASK_BYTES spark.planning:SHARED_FROM "
        "spark.reading:_BATCH_ROWS spark.history:_BATCH_ROWS": "how reading is shared out; nothing is written",
        "log.summaries:BLOCK_BYTES log.summaries:_STEP_BYTES": "how finely a log is summarised for queries, in memory",
        "spark.losses:_REMEMBERED": "warnings that were given already",
        "batch.counting:_SLOTS batch.counting:_MOST_SLOTS batch.counting:_STORE_BYTES batch.counting:_MOST_STORE_BYTES "
        "batch.counting:_LEAST_RECORDS": "how keys are counted for queries, in memory: tests/batch/test_counting.py",
        "topics.base.partition:MOST_SHOWN topics.base.partition:_SHOWN_BYTES topics.descriptions:_MOST_ROWS "
        "topics.descriptions:_SETTING_CHARACTERS": "what a notebook shows; nothing is written: tests/test_display.py",
        "log.read.verify:_PART_BYTES": "how reading is shared out; nothing is written: tests/log/read/test_verify.py",
        "storage.counting:_MOST_DAMAGED": "what was counted already",
        "topics.transactions.intent:DIGESTS topics.transactions.intent:_MOST_SHOWN": "how a replay is compared, "
        "and how much of it an error shows: tests/spark/test_replays.py",
        "topics.deleted:_MOST": "how many deleted names are remembered: tests/topics/test_deleted.py",
        "topics.queues.delivery:MOST_OPEN topics.queues.delivery:_MOST_AT_ONCE topics.queues.delivery:_MOST_BYTES "
        "topics.queues.letters:_MOST_REASON topics.queues.queue:_MOST_ANSWERS topics.queues.redrive:_CHUNK": "of "
        "queues, whose crashes have workloads of their own: tests/topics/queues",
        "batch.codecs.bounds:DEFAULT_MAX batch.codecs.bounds:RATIO_FREE_BYTES batch.codecs.bounds:RATIO_MAX "
        "batch.codecs.bounds:DECODER_BYTES batch.codecs.bounds:BLOCKS_MAX batch.codecs.zstd:_WINDOW_FREE "
        "batch.codecs.zstd:_WINDOW_MAX batch.codecs.bounds:MIB batch.codecs.lz4:_STORED": "what a decoder "
        "refuses or a format says: tests/batch, and `fuzz`",
        "storage.sockets:_MOST topics.handover.frames:_MOST_HEAD_BYTES topics.handover.frames:MOST_BODY_BYTES "
        "topics.packing:_ROOM_BYTES": "how full a batch may be before the next record begins another: "
        "tests/topics/test_packing.py",
        "topics.handover.outlet:_MESSAGE_BYTES": "between processes: tests/topics/test_handover_processes.py",
        "batch.checksum:_X_TO_THE_8": "a polynomial",
        "batch.checksum:_BLOCK_BYTES": "how CRC-32C is computed where the kernel is not compiled",
        "topics.groups.members:_LONGEST topics.names:_LONGEST topics.transactions.intent:_LONGEST_NAME "
        "spark.replays:_LONGEST_NAME": "the length of a name, a promise to the caller",
    }.items()
    for name in names.split()
}


def _parts(place: str) -> tuple[Any, str, str | None]:
    """The object that has it, the name there, and the parameter whose default it is."""
    module, _, name = place.partition(":")
    name, _, parameter = name.rstrip(")").partition("(")
    owner: Any = importlib.import_module(module)
    *outer, last = name.split(".")
    for each in outer:
        owner = getattr(owner, each)
    return owner, last, parameter or None


def get(place: str) -> int:
    """What it is now."""
    owner, name, parameter = _parts(place)
    found: Any = getattr(owner, name)
    if parameter is None:
        return int(found)
    if parameter in (found.__kwdefaults__ or {}):
        return int(found.__kwdefaults__[parameter])
    return int(found.__defaults__[_place_of(found, parameter)])


def put(place: str, value: int) -> None:
    """Let it be that."""
    owner, name, parameter = _parts(place)
    if parameter is None:
        setattr(owner, name, value)
        return
    function: Any = getattr(owner, name)
    if parameter in (function.__kwdefaults__ or {}):
        function.__kwdefaults__ = {**function.__kwdefaults__, parameter: value}
        return
    defaults = list(function.__defaults__)
    defaults[_place_of(function, parameter)] = value
    function.__defaults__ = tuple(defaults)


def _place_of(function: Any, parameter: str) -> int:
    """Among the defaults, counted from the end."""
    code = function.__code__
    return int(code.co_varnames[: code.co_argcount].index(parameter)) - int(code.co_argcount)


def chosen(seed: int | str) -> dict[str, int]:
    """Which sizes are other than usual under a seed: some, many or nearly all of them."""
    chance = random.Random(f"thresholds {seed}")
    share = chance.choice((0.15, 0.5, 0.9))
    return {each.name: chance.choice(each.choices) for each in TABLE if chance.random() < share}


_PLACES = {each.name: each.places for each in TABLE}


@contextmanager
def small_blocks(size_bytes: int = 250) -> Iterator[None]:
    """Streams of that many bytes are written as they come."""
    with small({f"sawlog.{BLOCK_BYTES}": size_bytes, f"sawlog.{SHORT_BYTES}": 0}):
        yield


@contextmanager
def small(sizes: Mapping[str, int]) -> Iterator[None]:
    """With these sizes, by the name of their first place; afterwards as before."""
    before = [(place, get(place)) for name in sizes for place in _PLACES[name]]
    try:
        for name, value in sizes.items():
            for place in _PLACES[name]:
                put(place, value)
        yield
    finally:
        for place, value in before:
            put(place, value)
