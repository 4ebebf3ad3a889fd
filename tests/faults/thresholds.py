"""Small values for the sizes at which the engine changes its behaviour, so that a few kilobytes of work exceed them.

A record of 40 bytes never meets a limit of 16 MiB, so no workload would find a bug beyond such a limit. `TABLE` lists
every size of the engine; `chosen(seed)` picks some of them, each with a value below, around or above the sizes of a
workload, and `small` sets them during a run. A seed always picks the same.

A size outside the table is in `NOT_VARIED`, with the reason. test_thresholds.py searches the source for sizes, so that
a new one has to be put into one of the two, and for modules that import a size by name, because they would keep the old
value.
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
    """A size: its place and its possible values. A place is `module:NAME`, or `module:function(parameter)` for the
    default of a parameter, which was evaluated when the module was imported."""

    places: tuple[str, ...]
    choices: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.places[0]


def _one(places: str, *choices: int) -> Threshold:
    return Threshold(tuple(f"sawlog.{place}" for place in places.split()), choices)


#: Chunks are collected up to this size before they are written.
BLOCK_BYTES = "log.streams:_BLOCK_BYTES"
#: A shorter stream is stored like an ordinary append.
SHORT_BYTES = "log.streams:_SHORT_BYTES"
TABLE: tuple[Threshold, ...] = (
    # Copies and pieces: one write becomes several.
    _one("log.recovery:SMALL_BYTES", 0, 100, 400, 900, 2500),
    _one("log.recovery:_COPY_BYTES", 150, 512, 1100),
    _one("log.active_segment:_COPY_BYTES", 150, 512, 1100),
    _one("log.streams:_COPY_BYTES", 100, 300, 900),
    _one(BLOCK_BYTES, 50, 300, 1000),
    _one("log.rewrite:_WRITE_BYTES", 50, 300, 1500),
    _one("log.rewrite:MAX_SEGMENTS", 2, 3),
    _one("store.directory.transactions.placement:_PLACE_BYTES", 70, 200, 1000),
    _one(
        "store.directory.transactions.placement:ADOPT_BYTES store.directory.transactions.staging:ADOPT_BYTES",
        0,
        300,
        2000,
    ),
    # Sizes of one batch, one placement, one file.
    _one("log.ingest:_GROUP_BYTES", 100, 500, 1500),
    _one(
        "log.writer:BATCH_BYTES log.log:BATCH_BYTES log.ingest:BATCH_BYTES "
        "store.directory.transactions.transaction:BATCH_BYTES "
        "store.directory.topic:DirectoryTopic.writer(batch_bytes) log.writer:Writer.__init__(batch_bytes) "
        "store.directory.topic:BATCH_BYTES "
        "log.log:Log.writer(batch_bytes) "
        "store.base.partition:BATCH_BYTES store.base.topic:BATCH_BYTES "
        "store.base.partition:Partition.writer(batch_bytes) store.base.topic:Topic.writer(batch_bytes) "
        "store.base.topic:Topic._partition_writer(batch_bytes) "
        "store.writer:BATCH_BYTES store.writer:Packer.__init__(batch_bytes)",
        100,
        300,
        1000,
    ),
    _one("log.rebatch:BATCH_BYTES", 80, 300, 1000),
    _one(
        "store.directory.transactions.commits:INLINE_BYTES store.directory.transactions.transaction:INLINE_BYTES "
        "store.directory.transactions.staging:INLINE_BYTES spark.writing:INLINE_BYTES",
        0,
        150,
        1000,
    ),
    _one("store.directory.transactions.transaction:SPILL_BYTES", 0, 100, 400),
    _one("store.directory.transactions.placement:_MARGIN_BYTES", 0, 500),
    _one("store.partitioner:Sticky.__init__(sticky_bytes) store.partitioner:STICKY_BYTES", 1, 60),
    # Capacity of a segment, a batch or a table, in offsets.
    _one(
        "log.batches:MAX_SPAN log.appender:MAX_SPAN log.active_segment:MAX_SPAN log.ingest:MAX_SPAN "
        "log.index:MAX_SPAN log.rebatch:MAX_SPAN log.rewrite:MAX_SPAN",
        12,
        30,
    ),
    _one("log.ingest:_MOST_MISSING", 1, 2, 4),
    _one("log.compaction:KEY_BYTES log.compaction:compact(key_bytes)", 192, 400),
    _one("log.compaction:_MIN_SLOTS", 8),
    _one("log.maintenance_state:_MOST", 1, 2),
    # Amounts read in one step.
    _one(
        "log.batches:CHUNK_BYTES log.index:CHUNK_BYTES log.segment:CHUNK_BYTES "
        "log.reader:CHUNK_BYTES log.segment:Segment.chunks(chunk_bytes) "
        "log.batches:Batches.chunks_in(chunk_bytes) log.batches:Batches.batches(chunk_bytes) "
        "log.reader:Reader.chunks(chunk_bytes)",
        64,
        200,
        900,
    ),
    _one("log.index:_TIME_CHUNK_BYTES", 64, 200),
    _one("log.batches:CHUNK_ROWS", 1, 2, 5),
    _one("log.index:_LANDMARK_STEP", 1, 2),
    _one("log.index:_LANDMARK_BATCHES", 1, 2),
    _one("batch.kernel:_PAGE_MARGIN_BYTES", 0, 100),
    _one(SHORT_BYTES, 0, 10, 100),
    _one("log.reader:RECORD_CHUNK_BYTES", 64, 200, 900),
    _one("log.reader:_FORGET_BYTES", 1, 500),
    _one("batch.read:SMALL_BYTES", 0, 100),
    _one("batch.build:KEEP_BYTES log.writer:KEEP_BYTES", 100, 1000),
    _one("log.async_appends:_BUFFER_BYTES", 200, 1000),
)

#: Sizes that no workload changes, with the reasons.
NOT_VARIED: Mapping[str, str] = {
    f"sawlog.{name}": why
    for names, why in {
        "log.index:_CELL_BYTES": "compiled into the kernel; a checksum that was right is remembered, "
        "and nothing is written",
        "log.ingest:_MOST_GAP log.epochs:MAX_EPOCH config:MAX_OFFSET "
        "store.directory.topic_entry:MAX_PARTITIONS": "refused beyond: a promise to the caller, with tests of its own",
        "config:MAX_SEGMENT_BYTES batch.build:MAX_BATCH_BYTES batch.arrow:_MAX_ARRAY_BYTES": "a limit of the format; "
        "segment_bytes stays below it, and is small in every workload",
        "log.remote:_MOST_RUNS": "how precisely retention knows what is only in the replica; no workload has one "
        "(tests/log/maintain/test_tiering.py joins runs)",
        "log.producers:REMEMBERED": "a promise to producers, with tests of its own",
        "log.index:OFFSET_ENTRY_BYTES log.index:TIME_ENTRY_BYTES log.compaction:_SLOT_BYTES "
        "batch.kernel:HEADER_BYTES batch.kernel:SLOTS_BYTES "
        "store.partitioner:_RECORD_BYTES": "the size of a thing, not a limit",
        "batch.kernel:ROW_WIDTH storage.words:WORD_BYTES "
        "storage.published:_WORDS_BYTES storage.published:_BELL_BYTES": "the size of a thing, not a limit",
        "storage.words:_MOST_WAITERS": "a limit of the system call",
        "batch.codecs:_DICTIONARY_ID_BYTES config:KIB config:MIB config:GIB "
        "spark.session:LEAST_VERSION": "no size of the engine",
        "store.base.partition:PAGE_BYTES store.base.partition:STREAM_BYTES": "object storage only; no workload has it",
        "log.reader:ARROW_ROWS": "readers choose it (`batch_rows`); nothing is written",
        "store.directory.offsets:_SEGMENTS store.directory.offsets:_CONFIG": "small in every workload: "
        "stores._small_groups",
        "store.directory.service:_SEGMENTS": (
            "when a broker's log of transactions is compacted; no workload has a broker"
        ),
        "log.maintenance:_MIN_RUN": "which segments are worth merging by themselves; workloads merge on demand, "
        "from two",
        "storage.file:_REMAP_BYTES storage.locks:_NOTE_BYTES storage.file:_RESERVE_LEAST_BYTES "
        "storage.system:_PLENTY_BYTES storage.file:_RESERVE_MOST_BYTES": "real files only: tests/storage and `kills`",
        "spark.writing:_HELD_BYTES spark.writing:_OWN_BYTES "
        "spark.commit:_INTENT_BYTES": "varied by stores.spark_write itself, which needs both of them small",
        "spark.planning:LEAST_TASK_BYTES spark.planning:TASK_BYTES spark.planning:SHARED_FROM "
        "spark.reading:_BATCH_ROWS spark.reading:_FILE_BATCH_ROWS": "how reading is shared out; nothing is written",
        "log.summaries:BLOCK_BYTES log.summaries:_STEP_BYTES": "how finely a log is summarised for queries, in memory",
        "spark.subscription:_REMEMBERED": "warnings that were given already",
        "store.base.partition:MOST_SHOWN store.base.partition:_SHOWN_BYTES store.descriptions:_MOST_ROWS "
        "store.descriptions:_SETTING_CHARACTERS": "what a notebook shows; nothing is written: tests/test_display.py",
        "log.verify:_PART_BYTES": "how reading is shared out; nothing is written: tests/log/read/test_verify.py",
        "storage.counters:_MOST_DAMAGED": "what was counted already",
        "store.directory.transactions.intent:DIGESTS store.directory.transactions.intent:_MOST_SHOWN": (
            "how a replay is compared, and how much of it an error shows: tests/spark/test_replays.py"
        ),
        "store.directory.topic_entry:_MOST": "how many deleted names are remembered: tests/topics/test_deleted.py",
        "store.queues.delivery:MOST_OPEN store.queues.delivery:_MOST_AT_ONCE store.queues.delivery:_MOST_BYTES "
        "store.queues.message:_MOST_REASON store.queues.queue:_MOST_ANSWERS store.queues.redrive:_CHUNK": "of "
        "queues, whose crashes have workloads of their own: tests/topics/queues",
        "batch.codecs:DEFAULT_MAX batch.codecs:RATIO_FREE_BYTES batch.codecs:RATIO_MAX "
        "batch.codecs:DECODER_BYTES batch.codecs:BLOCKS_MAX batch.codecs:_WINDOW_FREE "
        "batch.codecs:_WINDOW_MAX batch.codecs:MIB batch.codecs:_LZ4_STORED": "what a decoder "
        "refuses or a format says: tests/batch, and `fuzz`",
        "store.writer:_ROOM_BYTES": "how full a batch may be before the next record begins another: "
        "tests/topics/test_packing.py",
        "batch.checksum:_X_TO_THE_8": "a polynomial",
        "batch.checksum:_BLOCK_BYTES": "how CRC-32C is computed where the kernel is not compiled",
        "store.directory.members:_LONGEST store.names:_LONGEST store.directory.transactions.intent:_LONGEST_NAME "
        "spark.commit:_LONGEST_NAME": "the length of a name, a promise to the caller",
    }.items()
    for name in names.split()
}


def _parts(place: str) -> tuple[Any, str, str | None]:
    """Return the object that has it, its name there, and the parameter whose default it is."""
    module, _, name = place.partition(":")
    name, _, parameter = name.rstrip(")").partition("(")
    owner: Any = importlib.import_module(module)
    *outer, last = name.split(".")
    for each in outer:
        owner = getattr(owner, each)
    return owner, last, parameter or None


def get(place: str) -> int:
    """Return the current value."""
    owner, name, parameter = _parts(place)
    found: Any = getattr(owner, name)
    if parameter is None:
        return int(found)
    if parameter in (found.__kwdefaults__ or {}):
        return int(found.__kwdefaults__[parameter])
    return int(found.__defaults__[_place_of(found, parameter)])


def put(place: str, value: int) -> None:
    """Set the value."""
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
    """Return the index of the parameter's default, counted from the end."""
    code = function.__code__
    return int(code.co_varnames[: code.co_argcount].index(parameter)) - int(code.co_argcount)


def chosen(seed: int | str) -> dict[str, int]:
    """Choose the sizes that a seed changes: some, many or nearly all of them."""
    chance = random.Random(f"thresholds {seed}")
    share = chance.choice((0.15, 0.5, 0.9))
    return {each.name: chance.choice(each.choices) for each in TABLE if chance.random() < share}


_PLACES = {each.name: each.places for each in TABLE}


@contextmanager
def small_blocks(size_bytes: int = 250) -> Iterator[None]:
    """Write streams from that many bytes on chunk by chunk."""
    with small({f"sawlog.{BLOCK_BYTES}": size_bytes, f"sawlog.{SHORT_BYTES}": 0}):
        yield


@contextmanager
def small(sizes: Mapping[str, int]) -> Iterator[None]:
    """Set these sizes, by the name of their first place, and restore them at the end of the block."""
    before = [(place, get(place)) for name in sizes for place in _PLACES[name]]
    try:
        for name, value in sizes.items():
            for place in _PLACES[name]:
                put(place, value)
        yield
    finally:
        for place, value in before:
            put(place, value)
