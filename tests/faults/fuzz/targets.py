"""Fuzzing targets: every parser of bytes that another program may have written, with its seeds and its checks.

A target returns if the code under test returned or raised a documented error: a `SawlogError`; a `ValueError` of the
parser for offsets on the command line, and of the kernel for ranges outside the buffer. Anything else is a finding:
another error, an `AssertionError` of a check here (two readers disagree, an index points outside its segment, output
exceeds its limit), a crash, or a hang.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from sawlog import Log, LogConfig, interop
from sawlog.batch import kernel
from sawlog.batch.arrow import COLUMNS, to_arrow
from sawlog.batch.build import Producer, encode
from sawlog.batch.codecs import RATIO_FREE_BYTES
from sawlog.batch.compression import CODECS, compress, decompress
from sawlog.batch.header import BASE, BODY, BODY_END, COMPRESSION_MASK, COUNT, LAST, new_rows
from sawlog.batch.header import scan as scan_headers
from sawlog.batch.read import decode, first_bad_crc, malformed
from sawlog.cli import parsing
from sawlog.errors import CorruptBatch, OffsetOutOfRange, SawlogError
from sawlog.log.checkpoint import Checkpoint, TurnNote
from sawlog.log.files import CHECKPOINT, PRODUCERS, file_name, run_name
from sawlog.log.index import SegmentIndex
from sawlog.log.maintenance_state import MaintenanceState
from sawlog.log.producers import ProducerState
from sawlog.schemas import checking
from sawlog.schemas import parse as parse_schema
from sawlog.schemas.columns import arrow_type
from sawlog.schemas.columns import decode as decode_values
from sawlog.spark.options import read_options, write_options
from sawlog.storage import MemoryDirectory, checksummed
from sawlog.store.directory.members import Members
from sawlog.store.directory.offsets import OffsetStore
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.directory.transactions.intent import Intent

from . import mutate

FOR_EVER = 2**63 - 1
#: Limit on decompressed sizes.
MAX_BYTES = 1 << 20
GOLDEN = Path(__file__).resolve().parents[2] / "golden"

Mutate = Callable[[bytes, Sequence[bytes], Random], bytes]


@dataclass(frozen=True, slots=True)
class Target:
    """One fuzzing target."""

    name: str
    call: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    mutate: Mutate
    #: Relative share of the executions when all targets run.
    weight: int = 10
    #: True if one execution takes microseconds; the other targets open a log or a store each time.
    quick: bool = field(default=True)


def allowed(call: Callable[[], object], *errors: type[Exception]) -> object:
    """Return the result of a call, or None if it raised an allowed error."""
    try:
        return call()
    except (SawlogError, *errors):
        return None


# --- batches


def exact(data: bytes) -> memoryview:
    """Copy the bytes to a buffer of exactly their size, so that AddressSanitizer detects reads beyond it."""
    return memoryview(np.frombuffer(data, np.uint8).copy())


def outside(error: ValueError) -> None:
    """Re-raise an error unless it is the kernel's refusal of a range outside the buffer."""
    if type(error) is not ValueError or "outside" not in str(error):
        raise error


def kernel_target(data: bytes) -> None:
    """Run every kernel function that parses batches, and compare those that return the same facts."""
    view = exact(data)
    size = len(view)
    rows = new_rows(6)
    table = memoryview(rows)
    for least, dense in ((-1, False), (0, True), (0, False)):
        count, end, _, _ = kernel.scan_batches(view, 0, size, size, least, table, dense)
        assert 0 <= count <= 6
        assert 0 <= end <= size
    probe = size % 64
    kernel.find_header(view, min(probe, size), size, 0)
    kernel.find_batch(view, 0, size, probe)
    if not count:
        return
    rows = rows[:count]
    table = memoryview(rows)
    kernel.check_small(view, table, 0, 512)
    kernel.select_entries(table, count, 100, 0, memoryview(np.empty(count, np.int64)))
    if (rows[:, 5] & COMPRESSION_MASK).any():  # like the reader: a record count that the bytes cannot hold is reduced
        rows[:, COUNT] = np.minimum(rows[:, COUNT], (rows[:, BODY_END] - rows[:, BODY]) // 7)
    found: list[Any] = []
    bad = kernel.decode_records(view, table, 0, count, 0, FOR_EVER, found)
    cursor = kernel.RecordCursor(view, table, 0, FOR_EVER)
    assert list(cursor) == found, "cursor and decode_records return different records"
    assert cursor.bad == bad, "cursor and decode_records stop at different batches"
    _columns(view, rows, bad, found)
    for row in rows[:2].tolist():
        _one_batch(view, row)
    _keep(view, rows, found if bad < 0 else None)


def _columns(view: memoryview, rows: np.ndarray, bad: int, found: list[Any]) -> None:
    total = int(rows[:, COUNT].sum())
    room = int((rows[:, BODY_END] - rows[:, BODY]).sum())
    table, count = memoryview(rows), len(rows)

    def longs() -> memoryview:
        return memoryview(np.empty(total, np.int64))

    def ints(number: int) -> memoryview:
        return memoryview(np.empty(number + 1, np.int32))

    def raw(size: int) -> memoryview:
        return memoryview(np.zeros(size, np.uint8))

    bits = (total + 7) >> 3
    where = longs()
    said = kernel.decode_columns(
        view,
        table,
        count,
        -1,
        where,
        longs(),
        ints(total),
        raw(room),
        raw(bits),
        ints(total),
        raw(room),
        raw(bits),
        True,
        True,
    )
    origin = int(rows[0, BODY])
    views = [ints(0), raw(total * 16), raw(bits), ints(0), raw(total * 16), raw(bits)]
    also = kernel.decode_columns(view, table, count, origin, longs(), longs(), *views, True, True)
    assert said[0] == also[0], "columns and views disagree"
    if said[0] >= 0:
        assert 0 <= bad <= said[0], "decode_columns rejects records that decode_records accepts"
        return
    headers = said[6]
    named = kernel.decode_headers(
        view, table, count, ints(total), ints(headers), raw(room), ints(headers), raw(room), raw((headers + 7) >> 3)
    )
    assert (named[0] >= 0) == (bad >= 0), "headers and records disagree"
    if bad < 0:
        assert where.tolist() == [record.offset for record in found], "columns and records differ"


def _one_batch(view: memoryview, row: list[int]) -> None:
    body = row[BODY], row[BODY_END], row[COUNT]
    for offset in (row[BASE], row[BASE] + 1, row[LAST]):
        got = kernel.record_at(view, *body, row[BASE], row[LAST], *row[5:8], offset)
        assert not got or offset <= got.offset <= row[LAST]
    kernel.record_after(view, *body, row[BASE], row[6], row[BASE], row[6])
    kernel.head_of(view, *body, 2)
    kernel.landmarks(view, *body, 2, memoryview(np.empty(row[COUNT] // 2 + 1, np.int32)))


_SECRET = bytes(range(16))


def _keep(view: memoryview, rows: np.ndarray, found: list[Any] | None) -> None:
    """Compact batches. The kept records must parse and be unchanged."""
    table = memoryview(rows)
    keys = kernel.KeyMap(np.zeros((64, 3), np.uint64), _SECRET)
    keys.note(view, table)
    room = int((rows[:, BODY_END] - rows[:, BODY]).sum()) + 24 * int(rows[:, COUNT].sum()) + 61
    out = memoryview(np.zeros(room, np.uint8))
    base = int(rows[0, BASE])
    last, kept, end, *_, bad = kernel.keep_records(
        view, table, 0, len(rows), keys, base, base + 1, out, 61, room, base, 0, True
    )
    assert 61 <= end <= room
    if found is None or bad:
        assert found is None or not bad, "compaction rejects records that can be read"
        return
    if last < len(rows):
        return
    line = rows[:1].copy()
    line[0, BODY], line[0, BODY_END], line[0, COUNT], line[0, LAST], line[0, 5] = 61, end, kept, base + 2**31 - 1, 0
    again: list[Any] = []
    if int(rows[-1, LAST]) - base < 2**31 and kept:
        assert kernel.decode_records(out, memoryview(line), 0, 1, 0, FOR_EVER, again) == -1, "kept records do not parse"
        known = {record.offset: (record.key, record.value, record.headers) for record in found}
        assert all(known[r.offset] == (r.key, r.value, r.headers) for r in again), "a kept record has changed"


# --- JSON


_FIELDS = "id BIGINT, n INT, amount DOUBLE, paid BOOLEAN, name STRING, place STRUCT<city: STRING, x: FLOAT>"
_PYTHONS = {"id": int, "n": int, "amount": (int, float), "paid": bool, "name": str, "place": dict}


def json_target(data: bytes) -> None:
    """Decode JSON values, separated by record separators, with the kernel and with Python, and compare the results."""
    schema = parse_schema(_FIELDS)
    texts = data.split(b"\x1e")
    values = pa.array([None, *texts], pa.binary())
    for part in (values, values.slice(1)):
        found = decode_values(schema, part).to_pylist()
        assert repr(found) == repr(pa.array(list(map(_read, part.to_pylist())), arrow_type(schema)).to_pylist())
    for text, read in zip(texts, found, strict=True):
        if read is None:
            continue
        document = json.loads(text)
        for name, kind in _PYTHONS.items():
            there = document.get(name)
            assert (read[name] is None) == (there is None), name
            assert there is None or isinstance(there, kind)
            if name in ("id", "n", "paid", "name"):
                assert read[name] == there, name
            elif name == "amount" and there is not None:
                assert read[name] == float(there)


def _read(value: bytes | None) -> dict[str, Any] | None:
    try:
        return None if value is None else checking.read(parse_schema(_FIELDS), value)
    except checking.Mismatch:
        return None


def json_seeds() -> list[bytes]:
    usual = {"id": 7, "n": -3, "amount": 12.5, "paid": True, "name": "Zo\u00eb", "place": {"city": "Bern", "x": 0.5}}
    return [
        json.dumps(usual).encode(),
        json.dumps(usual, ensure_ascii=False, indent=1).encode(),
        json.dumps({**usual, "more": [1, {"id": None}], "place": None}, separators=(",", ":")).encode(),
        b'{}\x1e{"id": 123456789012345678}\x1e{"amount": 0.1e-7, "n": 2147483648}',
    ]


def batch_target(data: bytes) -> None:
    """Decode batches, checksums and compression included, to records and to Arrow, and compare the results."""
    records = allowed(lambda: decode(data, max_bytes=MAX_BYTES))
    headers = allowed(lambda: scan_headers(data))
    view = memoryview(data)
    rows = new_rows(16)
    count, _, why, _ = kernel.scan_batches(view, 0, len(view), len(view), 0, memoryview(rows))
    rows = rows[:count]
    if why == kernel.SCAN_MORE or not count:
        return
    bad = first_bad_crc(view, rows)
    rows = rows if bad < 0 else rows[:bad]
    if headers is not None and bad < 0:
        assert records is not None or any(malformed(view, rows, MAX_BYTES)), "decode rejects sound batches"
    for views in (False, True):
        try:
            made = to_arrow(view, rows, 0, FOR_EVER, columns=COLUMNS, views=views, max_bytes=MAX_BYTES)
        except SawlogError:
            assert records is None, "to_arrow rejects batches that decode accepts"
            continue
        made.validate(full=True)
        if isinstance(records, list):
            assert made.column(4).to_pylist() == [record.value for record in records], "the readers disagree"


@cache
def batch_seeds() -> list[bytes]:
    plain = [path.read_bytes() for path in sorted(GOLDEN.glob("*.bin")) if path.stat().st_size < 2000]
    packed = [
        encode([(b"value %d" % n * 9, b"key", [("h", b"1")], 10**12) for n in range(6)], compression=codec)
        for codec in CODECS
    ]
    mine = [
        encode([(b"v" * n, b"k%d" % (n % 3), (), 10**12 + n) for n in range(9)]),
        encode([(None, b"k", [("a", None), ("b", b"")], 5)], producer=Producer(7, 1, 3)),
        encode([(b"x", None, (), 5)], append_time=True),
    ]
    two = mine[0] + encode([(b"y", b"k", (), 5)], base_offset=9)
    return [*plain, *packed, *mine, two]


# --- compression


def decompress_target(codec: int) -> Callable[[bytes], None]:
    """Return a target for one codec: the output never exceeds its limit."""

    def call(data: bytes) -> None:
        if not data:
            return
        made = allowed(lambda: decompress(codec, data, max_bytes=MAX_BYTES))
        assert made is None or len(made) <= min(MAX_BYTES, max(RATIO_FREE_BYTES, 1000 * len(data)))  # type: ignore[arg-type]

    return call


def packed_seeds(codec: int) -> Callable[[], list[bytes]]:
    """Return seeds for a codec, compressed by us and by other clients."""

    def make() -> list[bytes]:
        contents = [b"a" * 100, bytes(range(256)) * 3, b"record " * 300, bytes(70_000)]
        made = [bytes(packed) for each in contents if (packed := compress(codec, each)) is not None]
        name = {number: name for name, number in CODECS.items()}[codec]
        made += [path.read_bytes()[61:] for path in sorted(GOLDEN.glob(f"{name}-*.bin"))]
        return made + [one + one for one in made[:1]]

    return make


# --- the small files of a log


def index_target(data: bytes) -> None:
    """Decode both index files of a segment: they are rejected, or every lookup stays within the segment."""
    if len(data) < 2:
        return
    (split,) = struct.unpack_from(">H", data)
    span, size = 1000, 50_000
    made = SegmentIndex.decode(5000, 4096, data[2 : 2 + split], data[2 + split :], span=span, size_bytes=size)
    if made is None:
        return
    for offset in (5000, 5001, 5500, 5999):
        start, end, check = made.bounds(offset, size)
        assert 0 <= start < size, "an index points outside its segment"
        assert start < end <= size, "an index returns an empty range"
        assert check == -1 or 5000 <= check <= offset
    again = made.encode()
    assert again == (data[2 : 2 + split], data[2 + split :]), "an index changes when it is encoded again"


def index_seeds() -> list[bytes]:
    made = SegmentIndex(5000, 100)
    for at in range(40):
        made.add(5000 + at * 20, at * 1000, 1000, 10**12 + at)
    index, times = made.encode()
    return [struct.pack(">H", len(one)) + one + two for one, two in ((index, times), (b"", times), (index[:16], b""))]


def small_file(read: Callable[[bytes], object]) -> Callable[[bytes], None]:
    """Return a target for a parser that returns a value or raises `CorruptFile`."""

    def call(data: bytes) -> None:
        allowed(lambda: read(data))

    return call


def checkpoint_seeds() -> list[bytes]:
    return [Checkpoint(clean, 12, 0, 700, 3).encode() for clean in (True, False)]


def producer_seeds() -> list[bytes]:
    made = ProducerState(10**9)
    for number in range(12):
        made.note(number % 3, 0, number * 2, number * 2, number * 2 + 1, 10**12)
    return [made.encode(24, 1), ProducerState(1).encode(0, 0)]


def maintenance_seeds() -> list[bytes]:
    return [MaintenanceState([(10, 10**12)], False, 3, 7, {0: 10**12}).encode(), MaintenanceState().encode()]


# --- a log with one bad file in it

_LOG_CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=60, max_decompressed_bytes=MAX_BYTES)


@cache
def log_image() -> dict[str, bytes]:
    """Return the files of a log of a few segments, by name."""
    directory = MemoryDirectory()
    with Log.open(directory, _LOG_CONFIG) as log:
        for number in range(12):
            log.append(b"%d" % number * 30, b"k%d" % (number % 3), timestamp=10**12 + number)
        log.append_many([b"x"], producer=Producer(7, 0, 0))
    return {name: directory.read(name) for name in directory.names()}


def files(image: dict[str, bytes]) -> MemoryDirectory:
    directory = MemoryDirectory()
    for name, content in image.items():
        directory.replace(name, content)
    return directory


def read_all(log: Log) -> dict[int, bytes | None]:
    """Return all readable records by offset; continue after damage where `CorruptBatch` says."""
    found: dict[int, bytes | None] = {}
    position, tries = log.lowest_offset, 0
    while position < log.next_offset and tries < 50:
        tries += 1
        began = position
        try:
            for record in log.scan(position):
                assert record.offset >= position, "a scan goes back"
                found[record.offset] = record.value
                position = record.offset + 1
            break
        except CorruptBatch as error:
            if error.next_offset is None:
                break
            assert error.next_offset > position or tries == 1 or error.next_offset >= position, (
                "CorruptBatch continues at an earlier offset"
            )
            # Damage may be detected after the last record of a batch; then continue with the next batch.
            position = max(error.next_offset, position, began + 1)
        except OffsetOutOfRange:
            break
    assert tries < 50, "reading after damage does not terminate"
    return found


def log_with(name: str, hit: range = range(0)) -> Callable[[bytes], None]:
    """Return a target for a log with these bytes as one of its files. Records at offsets outside `hit` must be
    readable. An empty `hit` is for caches, whose damage affects no record."""

    def call(data: bytes) -> None:
        image = dict(log_image())
        truth = _truth()
        must_read = not hit
        image[name] = data
        for mode in ("r", "w"):
            log = allowed(lambda mode=mode: Log.open(files(image), _LOG_CONFIG, mode=mode))  # type: ignore[misc]
            if log is None:
                assert not must_read, f"a damaged cache prevents opening in mode {mode}"
                continue
            assert isinstance(log, Log)
            found = read_all(log)
            spared = {offset: value for offset, value in truth.items() if offset not in hit}
            assert {offset: found.get(offset) for offset in spared} == spared, (
                "damage affects records of other segments"
            )
            assert not must_read or found == truth, "a damaged cache changes the records"
            for offset in (log.lowest_offset, log.next_offset - 1):
                allowed(lambda offset=offset, log=log: log.read(offset))  # type: ignore[misc]
            allowed(lambda log=log: log.offset_at(10**12 + 5))  # type: ignore[misc]
            allowed(log.verify)
            if mode == "w":
                allowed(lambda log=log: log.append(b"after", b"k"))  # type: ignore[misc]
                allowed(log.compact)
            allowed(log.close)

    return call


@cache
def _truth() -> dict[int, bytes | None]:
    with Log.open(files(log_image()), _LOG_CONFIG) as log:
        return {record.offset: record.value for record in log.scan()}


def _segments() -> list[str]:
    return sorted(name for name in log_image() if name.endswith(".log"))


def _bases() -> list[int]:
    """Return the first offsets of the segments, and the offset after the last record."""
    return [*(int(name[:20]) for name in _segments()), max(_truth()) + 1]


def swap_seeds() -> list[bytes]:
    bases = _segments()
    return [log_image()[bases[1]] + log_image()[bases[2]], log_image()[bases[1]]]


def index_file_seeds() -> list[bytes]:
    return [content for name, content in log_image().items() if name.endswith(".index")]


def time_file_seeds() -> list[bytes]:
    return [content for name, content in log_image().items() if name.endswith(".timeindex")]


# --- a store with one bad file in it


@cache
def store_image() -> MemoryDirectory:
    """A store with two topics, a group and a named transaction."""
    root = MemoryDirectory()
    with DirectoryStore.open(root, maintenance_interval_s=None) as store:
        store.create_topic("orders", partitions=2, retention_ms=1000)
        store.create_topic("stock")
        with store.transaction("job", 3) as tx:
            tx.append("orders", b"1", partition=0)
            tx.append("stock", b"2")
        store.groups.commit("billing", {("orders", 0): 1, ("orders", 1): 0})
    return root


def copied(directory: MemoryDirectory, path: str = "memory:") -> MemoryDirectory:
    made = MemoryDirectory(path)
    for name in directory.names():
        made.replace(name, directory.read(name))
    for name in directory.children():
        made._children[name] = copied(directory.child(name), f"{path}/{name}")
    return made


def store_with(*path: str) -> Callable[[bytes], None]:
    """Return a target for a store with these bytes as one of its files: calls work or raise documented errors."""

    def call(data: bytes) -> None:
        for mode in ("r", "w"):
            root = copied(store_image())
            place = root
            for name in path[:-1]:
                place = place.child(name, create=True)
            place.replace(path[-1], data)
            store = allowed(lambda root=root, mode=mode: DirectoryStore.open(root, mode, maintenance_interval_s=None))  # type: ignore[misc]
            if not isinstance(store, DirectoryStore):
                continue
            for each in _questions(store, mode):
                allowed(each)
            store.close()

    return call


def _questions(store: DirectoryStore, mode: str) -> Iterator[Callable[[], object]]:
    yield store.topics
    yield lambda: [topic.describe() for topic in store]
    yield lambda: list(store["orders"].scan())
    yield store.groups.list
    yield lambda: store.groups.describe("billing")
    if mode == "w":
        yield lambda: store["stock"].append(b"x")
        yield lambda: store["orders"].append(b"x", partition=0)
        yield lambda: store.transaction("job", 3).replayed
        yield lambda: store.groups.commit("billing", {("orders", 0): 2})
        yield lambda: store.consumer("billing", ["orders"]).close()
        yield lambda: store.create_topic("new")


def topic_seeds() -> list[bytes]:
    topics = store_image().child("topics")
    return [topics.child(name).read("topic.json") for name in ("orders", "stock")]


def store_seeds() -> list[bytes]:
    return [store_image().read("sawlog.json")]


def intent_seeds() -> list[bytes]:
    note = store_image().child("staging").read("=job.committed")
    fields = checksummed.decode(note, "")
    fields["name"] = fields["sequence"] = None
    for part in fields["parts"]:
        part["offset"] += 1
    return [note, checksummed.encode(fields)]


def intent_target(data: bytes) -> None:
    """Parse an intent."""
    allowed(lambda: Intent.decode(data, "x"))


def group_target(data: bytes) -> None:
    """Apply a record of the groups' log: its key, a newline and its value."""
    key, found, value = data.partition(b"\n")
    offsets_ = OffsetStore(MemoryDirectory(), writable=False)
    offsets_._apply(key, value if found else None)
    for group, committed in offsets_._groups.items():
        assert isinstance(group, str), "the name of a group is not text"
        for (topic, partition), each in committed.items():
            assert isinstance(topic, str)
            assert type(partition) is int
            assert type(each.offset) is int
            json.dumps([topic, partition, each.metadata])
    offsets_.groups()


def group_seeds() -> list[bytes]:
    key = json.dumps(["offset", "billing", "orders", 3]).encode()
    value = {"offset": 1200, "topic_id": "5f0c", "metadata": "", "time_ms": 10**12, "member": "9b1e"}
    return [key + b"\n" + json.dumps(value).encode(), key]


def member_target(data: bytes) -> None:
    """Read the file of a member and the file of an owned partition."""
    directory = MemoryDirectory()
    held = directory.lock("member-" + "0" * 32, alone=False)
    directory.replace("member-" + "0" * 32, data)
    directory.replace("partition-orders-0", data)
    members = Members(directory)
    allowed(members.glance)
    allowed(members.look)
    allowed(members.owners)
    held.release()


def member_seeds() -> list[bytes]:
    note = {
        "id": "0" * 32,
        "name": "n",
        "topics": ["orders"],
        "session_timeout_ms": 10_000,
        "beat": 3,
        "time_ms": 10**12,
    }
    return [b"process 1 on here\n" + json.dumps(note).encode() + b"\n", b"process 1\n{}\n"]


# --- logs of other systems


def frames_target(data: bytes) -> None:
    """Run the kernel's functions for frames: headers with a length, protobuf, and byte ranges."""
    view = exact(data)
    size = len(view)
    starts, lengths, numbers = (np.empty(8, np.int64) for _ in range(3))
    for head, at, width, big in ((8, 0, 8, True), (8, 0, 4, False), (12, 4, 8, False), (16, 8, 8, True)):
        count, end, _ = kernel.walk_frames(view, 0, size, head, at, width, big, 1 << 20, starts, lengths)
        assert 0 <= count <= 8
        assert 0 <= end <= size
        first, long = memoryview(starts[:count]), memoryview(lengths[:count])
        assert all(
            start >= 0 and length >= 0 and start + length <= size for start, length in zip(first, long, strict=True)
        )
        kernel.numbers_at(view, first, at - head, width, big, numbers)
        kernel.crc32_of(view, first, long, numbers)
        out = memoryview(np.empty(int(lengths[:count].sum()), np.uint8))
        assert kernel.gather(view, first, long, memoryview(np.empty(count + 1, np.int32)), out) == len(out)
        _messages(view, first, long, count)


def _messages(view: memoryview, starts: memoryview, lengths: memoryview, count: int) -> None:
    """Parse messages. The results lie inside the buffer, and survive writing and parsing again."""
    at, long, found = np.empty(count, np.int64), np.empty(count, np.int64), np.empty((count, 3), np.int64)
    good = kernel.parse_messages(view, starts, lengths, at, long, found)
    assert 0 <= good <= count
    assert all(at[n] >= 0 and 0 <= long[n] <= len(view) - at[n] for n in range(good))
    values = [bytes(view[at[n] : at[n] + long[n]]) for n in range(good)]
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    joined = np.frombuffer(b"".join(values), np.uint8)
    room = int(sum(map(len, values))) + good * 60
    out, where = np.empty(room, np.uint8), np.empty(good, np.int64)
    size = kernel.put_messages(out, ends, 0, joined, np.ascontiguousarray(found[:good]), where)
    begin, width, again = np.empty(good, np.int64), np.empty(good, np.int64), np.empty((good, 3), np.int64)
    if good:
        assert kernel.walk_frames(out, 0, size, 8, 0, 8, True, 1 << 30, begin, width)[0] == good
        kernel.parse_messages(out, begin, width, np.empty(good, np.int64), np.empty(good, np.int64), again)
        assert again.tolist() == found[:good].tolist(), "numbers change in a round trip"


@cache
def foreign_image(name: str) -> dict[str, bytes]:
    """Return the files of a log in another system's format, by name."""
    with tempfile.TemporaryDirectory() as work, Log.in_memory() as log:
        log.append_many([(b"value %d" % number * 5, None, (), 10**12 + number) for number in range(12)])
        interop.export_log(log, f"{work}/out", format=name)
        return {path.name: path.read_bytes() for path in sorted(Path(work, "out").rglob("*")) if path.is_file()}


def foreign_target(name: str) -> Callable[[bytes], None]:
    """Return a target for another system's log. The first byte chooses the file that the other bytes replace."""

    def call(data: bytes) -> None:
        if not data:
            return
        image = dict(foreign_image(name))
        image[sorted(image)[data[0] % len(image)]] = data[1:]
        allowed(lambda: interop.detect(files(image)))
        for damage in ("stop", "skip"):
            for strict in (False, True):
                allowed(lambda damage=damage, strict=strict: _read_foreign(files(image), name, damage, strict))  # type: ignore[misc]

    return call


def _read_foreign(directory: MemoryDirectory, name: str, damage: Any, strict: bool) -> None:
    with interop.open(directory, format=name, damage=damage, strict=strict) as log:
        position = -1
        for record in log.scan():
            assert record.offset > position, "a scan goes back"
            position = record.offset
        assert position < log.next_offset
        list(log.report)
        log.read(log.lowest_offset)


def foreign_seeds(name: str) -> Callable[[], list[bytes]]:
    def make() -> list[bytes]:
        image = foreign_image(name)
        return [bytes([number]) + image[file] for number, file in enumerate(sorted(image))]

    return make


def foreign_mutation(name: str) -> Mutate:
    """Return a mutation that keeps the choice of the file and corrects the checksums of Kafka's batches."""

    def change(seed: bytes, others: Sequence[bytes], chance: Random) -> bytes:
        rest = [other[1:] for other in others]
        make = mutate.batches if name == "kafka" and chance.random() < 0.7 else mutate.blind
        return seed[:1] + make(seed[1:], rest, chance)

    return change


# --- user input


class _SomeLog:
    """Log in which offsets are resolved."""

    lowest_offset = 10
    next_offset = 1000

    def offset_at(self, timestamp: int) -> int:
        assert timestamp >= 0
        return 500


def offsets_target(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    span = allowed(lambda: parsing.parse(text, 10**12), ValueError)
    if isinstance(span, parsing.Span):
        start, end = parsing.resolve(span, _SomeLog())
        assert 10 <= start <= end <= 1000, "a span outside the log"
    allowed(lambda: parsing.parse_bound(text, 10**12), ValueError)


def offsets_seeds() -> list[bytes]:
    return [
        *(b"start", b"end", b"500", b"+10", b"-100", b"@2026-11-01T08:30", b"@-1h", b"@1793520000000", b"100:200"),
        *(b"-200:-100", b"@-2h:@-1h", b"@-1h:", b":500", b"@2026-11-01T08:30:2026-11-02", b"@2026-11-01T08:30Z:+1h30m"),
    ]


_READ_OPTIONS = ("startingOffsets", "endingOffsets", "startingTimestamp", "assign", "startingOffsetsByTimestamp")
_OTHER_OPTIONS = (
    "maxTriggerDelay",
    "maxPartitionBytes",
    "minPartitions",
    "columns",
    "subscribePattern",
    "failOnDataLoss",
)
_WRITE_OPTIONS = ("partitions", "batchBytes", "lockTimeout", "txnVersion", "compression", "topic")


def spark_target(data: bytes) -> None:
    """Parse Spark options: a name up to the first "=", then its value."""
    name, _, value = data.decode("utf-8", "replace").partition("=")
    chosen = {} if name.lower() in ("assign", "subscribe", "subscribepattern") else {"subscribe": "orders"}
    for streaming in (False, True):
        allowed(lambda streaming=streaming: read_options({"path": "x", **chosen, name: value}, streaming=streaming))  # type: ignore[misc]
    allowed(lambda: write_options({"path": "x", "txnAppId": "a", name: value}))
    allowed(lambda: write_options({"path": "x", name: value}))


def spark_seeds() -> list[bytes]:
    values = {
        "startingOffsets": '{"orders": {"0": 23, "1": -2}}',
        "endingOffsets": '{"orders": {"0": 23, "1": -1}}',
        "startingTimestamp": "2026-11-01T08:30:00Z",
        "assign": '{"orders": [0, 2]}',
        "startingOffsetsByTimestamp": '{"orders": {"0": 1700000000000}}',
        "maxTriggerDelay": "15m",
        "maxPartitionBytes": "64mb",
        "columns": "key, value",
        "subscribePattern": "ord.*",
        "failOnDataLoss": "false",
    }
    return [f"{name}={values.get(name, '5')}".encode() for name in (*_READ_OPTIONS, *_OTHER_OPTIONS, *_WRITE_OPTIONS)]


def _targets() -> Iterator[Target]:
    yield Target("kernel", kernel_target, batch_seeds, mutate.batches, 1000)
    yield Target("batch", batch_target, batch_seeds, mutate.batches, 100)
    for name, codec in CODECS.items():
        if codec:
            yield Target(f"decompress-{name}", decompress_target(codec), packed_seeds(codec), mutate.blind, 60)
    yield Target("index", index_target, index_seeds, mutate.blind, 60)
    yield Target("checkpoint", small_file(Checkpoint.decode), checkpoint_seeds, mutate.lined, 30)
    yield Target(
        "producers", small_file(lambda data: ProducerState.decode(data, 10**9)), producer_seeds, mutate.lined, 30
    )
    yield Target("maintenance", small_file(MaintenanceState.decode), maintenance_seeds, mutate.lined, 30)
    yield Target("note", small_file(TurnNote.decode), lambda: [TurnNote("x", 0, 5, 7).encode()], mutate.lined, 30)
    yield Target("intent", intent_target, intent_seeds, mutate.document, 30)
    yield Target("group", group_target, group_seeds, mutate.plain_text, 60)
    yield Target("member", member_target, member_seeds, mutate.plain_text, 30)
    yield Target("offsets", offsets_target, offsets_seeds, mutate.plain_text, 15)
    yield Target("spark", spark_target, spark_seeds, mutate.plain_text, 15)
    yield Target("json", json_target, json_seeds, mutate.values, 100)
    yield Target("frames", frames_target, frame_seeds, mutate.blind, 100)
    for each in interop.formats():
        name = each.name
        yield Target(
            f"interop-{name}", foreign_target(name), foreign_seeds(name), foreign_mutation(name), 1, quick=False
        )
    bases = _bases()
    first, second, last = (file_name(base) for base in (bases[0], bases[1], bases[-2]))
    # From the last segment on: later appends follow the records that are left.
    end = range(bases[-2], 2**62)
    swap = run_name(bases[1], bases[3], ".swap")
    slow = [
        Target(
            "log-sealed", log_with(second, range(bases[1], bases[2])), lambda: [log_image()[second]], mutate.batches
        ),
        Target("log-active", log_with(last, end), lambda: [log_image()[last]], mutate.batches),
        Target("log-index", log_with(f"{first[:20]}.index"), index_file_seeds, mutate.blind),
        Target("log-timeindex", log_with(f"{first[:20]}.timeindex"), time_file_seeds, mutate.blind),
        # The start of the log comes from the checkpoint, so any record may be missing.
        Target("log-checkpoint", log_with(CHECKPOINT, range(2**62)), checkpoint_seeds, mutate.lined),
        Target("log-producers", log_with(PRODUCERS), producer_seeds, mutate.lined),
        Target("log-maintenance", log_with("maintenance"), maintenance_seeds, mutate.lined),
        Target("log-swap", log_with(swap, range(bases[1], bases[3])), swap_seeds, mutate.batches),
        Target("store-catalogue", store_with("sawlog.json"), store_seeds, mutate.document),
        Target("store-topic", store_with("topics", "orders", "topic.json"), topic_seeds, mutate.document),
        Target("store-intent", store_with("staging", "0" * 32 + ".intent"), intent_seeds, mutate.document),
        Target("store-note", store_with("staging", "=job.committed"), intent_seeds, mutate.document),
        Target("store-groups", store_with("groups", file_name(0)), _groups_seeds, mutate.batches),
    ]
    for each in slow:
        yield Target(each.name, each.call, each.seeds, each.mutate, 1, quick=False)


def frame_seeds() -> list[bytes]:
    held = [content for each in interop.formats() for content in foreign_image(each.name).values()]
    return [content[:1000] for content in held if content]


def _groups_seeds() -> list[bytes]:
    return [store_image().child("groups").read(file_name(0))]


TARGETS: dict[str, Target] = {each.name: each for each in _targets()}
