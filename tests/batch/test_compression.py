"""Every Kafka client reads what we compress, and no compressed data, however malicious, exceeds the limits.

The oracles are other implementations: pyarrow (the C and C++ libraries), lz4, zstandard, zlib, and the codecs
of kafka-python and aiokafka. Bombs are set off in processes of their own whose memory is limited.
"""

from __future__ import annotations

import gzip
import io
import mmap
import os
import random
import struct
import subprocess
import sys
import textwrap
import warnings
import zlib
from collections.abc import Callable, Iterator

import aiokafka.codec
import lz4.block
import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sawlog.batch import codecs
from sawlog.batch.codecs import DECODER_BYTES, DEFAULT_MAX, MIB, RATIO_MAX
from sawlog.batch.compression import (
    CODECS,
    GZIP,
    LEVELS,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    check_level,
    codec_id,
    codec_name,
    compress,
    decompress,
)
from sawlog.errors import CorruptBatch, DecompressionLimit, InvalidConfig, UnsupportedCompression

from ..looping import for_each

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses an API that Python 3.11 deprecates
    import kafka.codec

PACKING = [GZIP, SNAPPY, LZ4, ZSTD]
every_codec = pytest.mark.parametrize("codec", PACKING, ids=codec_name)
XERIAL = bytes.fromhex("82534e4150505900 00000001 00000001")


def batch_of(size_bytes: int) -> bytes:
    """Return data like the records of a batch: JSON, neither random nor trivial."""
    rng = random.Random(size_bytes)
    out = io.BytesIO()
    while out.tell() < size_bytes:
        event, amount = rng.choice([b"view", b"click"]), rng.random() * 100
        out.write(b"\x90\x01\x00\x02\x04\x01")
        out.write(b'{"id": %d, "user": "u-%d", ' % (rng.getrandbits(30), rng.randrange(99)))
        out.write(b'"event": "%s", "amount": %.2f}\x00' % (event, amount))
    return out.getvalue()[:size_bytes]


BATCH = batch_of(106_000)
SMALL = batch_of(700)


def packed_by_us(codec: int, data: bytes, level: int | None = None) -> bytes:
    packed = compress(codec, data, level)
    assert packed is not None, "this data compresses"
    return bytes(packed)


def zstd_without_size(data: bytes, level: int = 3) -> bytes:
    """Compress as Java's stream does: no content size, and the window of the level."""
    stream = zstandard.ZstdCompressor(level=level, write_content_size=False).compressobj()
    return stream.compress(data) + stream.flush()


def zstd_window(data: bytes, window_log: int, *, far: bool = False) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log, write_content_size=False, enable_ldm=far)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return stream.compress(data) + stream.flush()


def lz4_frame(data: bytes, **options: bool | int) -> bytes:
    return lz4.frame.compress(data, **options)


def xerial(*blocks: bytes) -> bytes:
    return XERIAL + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def arrow(name: str, data: bytes) -> bytes:
    return pa.Codec(name).compress(data, asbytes=True)


def gzip_with_name(data: bytes) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile("records.bin", "wb", fileobj=out, mtime=1) as file:
        file.write(data)
    return out.getvalue()


# Other writers: their output for the same data must be readable.
FOREIGN: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip, kafka-python": (GZIP, kafka.codec.gzip_encode),
    "gzip, aiokafka": (GZIP, aiokafka.codec.gzip_encode),
    "gzip, pyarrow": (GZIP, lambda data: arrow("gzip", data)),
    "gzip, file name in the header": (GZIP, gzip_with_name),
    "gzip, stored": (GZIP, lambda data: gzip.compress(data, 0)),
    "snappy, kafka-python": (SNAPPY, kafka.codec.snappy_encode),
    "snappy, aiokafka": (SNAPPY, aiokafka.codec.snappy_encode),
    "snappy, bare as librdkafka's, pyarrow": (SNAPPY, lambda data: arrow("snappy", data)),
    "snappy, xerial around pyarrow's": (SNAPPY, lambda data: xerial(arrow("snappy", data))),
    "snappy, little-endian versions": (
        SNAPPY,
        lambda data: XERIAL[:8] + struct.pack("<ii", 1, 1) + xerial(arrow("snappy", data))[16:],
    ),
    "lz4, kafka-python": (LZ4, kafka.codec.lz4_encode),
    "lz4, aiokafka": (LZ4, aiokafka.codec.lz4_encode),
    "lz4, pyarrow": (LZ4, lambda data: arrow("lz4", data)),
    "lz4, linked": (LZ4, lambda data: lz4_frame(data, block_linked=True, block_size=4)),
    "lz4, linked, no size": (LZ4, lambda data: lz4_frame(data, block_linked=True, store_size=False)),
    "lz4, independent, no size": (LZ4, lambda data: lz4_frame(data, block_linked=False, store_size=False)),
    "lz4, blocks of 4 MiB": (LZ4, lambda data: lz4_frame(data, block_size=7, store_size=False)),
    "lz4, content checksum": (LZ4, lambda data: lz4_frame(data, content_checksum=True)),
    "lz4, block checksums": (LZ4, lambda data: lz4_frame(data, block_checksum=True)),
    "lz4, all checksums, no size": (
        LZ4,
        lambda data: lz4_frame(data, block_checksum=True, content_checksum=True, store_size=False),
    ),
    "zstd, kafka-python": (ZSTD, kafka.codec.zstd_encode),
    "zstd, aiokafka": (ZSTD, aiokafka.codec.zstd_encode),
    "zstd, pyarrow": (ZSTD, lambda data: arrow("zstd", data)),
    "zstd, no size": (ZSTD, zstd_without_size),
    "zstd, no size, window of 128 MiB": (ZSTD, lambda data: zstd_window(data, 27)),
    "zstd, no size, window of 1 KiB": (ZSTD, lambda data: zstd_window(data, 10)),
    "zstd, checksum": (ZSTD, zstandard.ZstdCompressor(write_checksum=True).compress),
    "zstd, level 22": (ZSTD, zstandard.ZstdCompressor(level=22).compress),
}
every_writer = pytest.mark.parametrize("writer", FOREIGN)

# Other readers: each must read our output.
READERS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip, kafka-python": (GZIP, kafka.codec.gzip_decode),
    "gzip, aiokafka": (GZIP, aiokafka.codec.gzip_decode),
    "gzip, standard library": (GZIP, gzip.decompress),
    "snappy, kafka-python": (SNAPPY, kafka.codec.snappy_decode),
    "snappy, aiokafka": (SNAPPY, aiokafka.codec.snappy_decode),
    "lz4, kafka-python": (LZ4, kafka.codec.lz4_decode),
    "lz4, aiokafka": (LZ4, aiokafka.codec.lz4_decode),
    "lz4, lz4.frame": (LZ4, lz4.frame.decompress),
    "zstd, kafka-python": (ZSTD, kafka.codec.zstd_decode),
    "zstd, aiokafka": (ZSTD, aiokafka.codec.zstd_decode),
    "zstd, zstandard": (ZSTD, zstandard.ZstdDecompressor().decompress),
}


# --- names, numbers, levels ---------------------------------------------------------------------------------


def test_codecs_have_kafkas_numbers() -> None:
    assert CODECS == {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@pytest.mark.parametrize(("name", "number"), CODECS.items())
def test_a_codec_is_known_by_name_and_by_number(name: str, number: int) -> None:
    assert codec_id(name) == codec_id(number) == number
    assert codec_name(number) == name


@pytest.mark.parametrize("wrong", ["LZ4", "brotli", "", "3", 5, -1, True])
def test_an_unknown_codec_is_refused_with_the_choices(wrong: str | int) -> None:
    with pytest.raises(InvalidConfig, match="none, gzip, snappy, lz4, zstd"):
        codec_id(wrong)


@pytest.mark.parametrize("number", [5, 6, 7, 8, -1])
def test_numbers_that_kafka_does_not_define_are_unsupported(number: int) -> None:
    for call in (codec_name, lambda n: decompress(n, b"data"), lambda n: compress(n, b"data")):
        with pytest.raises(UnsupportedCompression, match=str(number)):
            call(number)


@pytest.mark.parametrize(
    ("codec", "level"),
    [(GZIP, 0), (GZIP, 10), (LZ4, 0), (LZ4, 18), (ZSTD, 23), (ZSTD, 2**40), (SNAPPY, 1), (NONE, 1)],
)
def test_a_level_that_the_codec_does_not_take_is_refused(codec: int, level: int) -> None:
    with pytest.raises(InvalidConfig, match=f"{level}.*{codec_name(codec)}"):
        check_level(codec, level)
    with pytest.raises(InvalidConfig):
        compress(codec, BATCH, level)


@for_each(("codec", "level"), [(codec, level) for codec in PACKING for level in LEVELS[codec][-22:]])
def test_every_level_round_trips(codec: int, level: int) -> None:
    assert decompress(codec, packed_by_us(codec, BATCH[:20_000], level)) == BATCH[:20_000]


@pytest.mark.parametrize(("codec", "low", "high"), [(GZIP, 1, 9), (LZ4, 1, 12), (ZSTD, -50, 19)])
def test_a_higher_level_packs_tighter(codec: int, low: int, high: int) -> None:
    assert len(packed_by_us(codec, BATCH, high)) < len(packed_by_us(codec, BATCH, low))


# --- round trips --------------------------------------------------------------------------------------------


@every_codec
@given(data=st.binary(max_size=3000), times=st.integers(1, 60))
@example(data=b"x", times=1)
@example(data=b"ab", times=60)
def test_what_is_packed_unpacks_to_the_same(codec: int, data: bytes, times: int) -> None:
    packed = compress(codec, data * times)
    if packed is not None:
        assert decompress(codec, packed) == data * times
        assert len(packed) < len(data * times)


# Sizes around the block sizes of all codecs.
@pytest.mark.alternating
@for_each("size_bytes", [n + d for n in (32 << 10, 64 << 10, 128 << 10, 256 << 10, MIB) for d in (-1, 0, 1)])
@every_codec
def test_sizes_around_block_ends_round_trip(codec: int, size_bytes: int) -> None:
    data = batch_of(size_bytes)
    packed = packed_by_us(codec, data)
    assert decompress(codec, packed) == data
    for reader_codec, read in READERS.values():
        if reader_codec == codec and read is not kafka.codec.zstd_decode:  # its blocks end at 1 MiB
            assert read(packed) == data


@every_codec
def test_batches_with_incompressible_parts_round_trip(codec: int) -> None:
    data = random.Random(1).randbytes(300_000) + bytes(600_000) + random.Random(2).randbytes(300_000)
    packed = packed_by_us(codec, data)
    assert decompress(codec, packed) == data
    if codec == LZ4:
        assert lz4.frame.decompress(packed) == data


def buffers_of(data: bytes) -> Iterator[object]:
    mapped = mmap.mmap(-1, len(data))
    mapped[:] = data
    yield from (data, bytearray(data), memoryview(data), mapped, memoryview(mapped), pa.py_buffer(data))
    yield np.frombuffer(data, np.uint8)
    yield memoryview(b"?" + data + b"?")[1:-1]
    yield memoryview(data).cast("b")


@every_codec
def test_every_kind_of_buffer_is_accepted(codec: int) -> None:
    packed = packed_by_us(codec, BATCH)
    for buffer in buffers_of(BATCH):
        assert bytes(compress(codec, buffer)) == packed  # type: ignore[arg-type]
    for buffer in buffers_of(packed):
        assert decompress(codec, buffer) == BATCH  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", [NONE, *PACKING], ids=codec_name)
def test_the_result_is_one_run_of_bytes(codec: int) -> None:
    view = decompress(codec, packed_by_us(codec, BATCH))
    assert isinstance(view, memoryview)
    assert (view.format, view.ndim, view.itemsize, view.c_contiguous) == ("B", 1, 1, True)
    assert len(view) == len(BATCH)


def test_no_compression_is_the_data_itself_however_long() -> None:
    data = bytearray(BATCH)
    packed, plain = compress(NONE, data), decompress(NONE, data, max_bytes=10)
    data[0] ^= 0xFF
    assert packed == plain == data  # both see the change: nothing was copied


# --- the bytes that we write --------------------------------------------------------------------------------


def test_gzip_is_one_member() -> None:
    stream = zlib.decompressobj(wbits=31)
    assert stream.decompress(packed_by_us(GZIP, BATCH)) == BATCH
    assert stream.eof
    assert stream.unused_data == b""


def test_snappy_uses_xerial_framing_with_blocks_of_32_kib() -> None:
    packed = packed_by_us(SNAPPY, BATCH)
    assert packed[:16] == XERIAL
    position, sizes, plain = 16, [], b""
    while position < len(packed):
        (length,) = struct.unpack_from(">i", packed, position)
        block = packed[position + 4 : position + 4 + length]
        sizes.append(min(32768, len(BATCH) - len(plain)))
        plain += pa.Codec("snappy").decompress(block, decompressed_size=sizes[-1], asbytes=True)
        position += 4 + length
    assert plain == BATCH
    assert sizes == [32768, 32768, 32768, len(BATCH) - 3 * 32768]


def xxh32(data: bytes) -> int:
    """Compute xxHash-32 with seed 0 of less than 16 bytes, from its specification."""
    prime1, prime2, prime3, prime4, prime5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393

    def rotate(x: int, bits: int) -> int:
        x &= 0xFFFFFFFF
        return x << bits & 0xFFFFFFFF | x >> (32 - bits)

    state = prime5 + len(data)
    while len(data) >= 4:
        state = rotate(state + int.from_bytes(data[:4], "little") * prime3, 17) * prime4
        data = data[4:]
    for byte in data:
        state = rotate(state + byte * prime5, 11) * prime1
    state &= 0xFFFFFFFF
    state = (state ^ state >> 15) * prime2 & 0xFFFFFFFF
    state = (state ^ state >> 13) * prime3 & 0xFFFFFFFF
    return state ^ state >> 16


def test_the_lz4_headers_carry_their_own_checksum() -> None:
    headers = codecs._LZ4_PLAIN
    assert len(headers) == 4
    for header, block_bytes in headers.items():
        assert header[:5] == bytes.fromhex("04224d1860")
        assert header[6] == xxh32(header[4:6]) >> 8 & 0xFF
        assert block_bytes == 1 << (8 + 2 * (header[5] >> 4))


@pytest.mark.parametrize("size_bytes", [500, 64 << 10, (64 << 10) + 1, 900_000])
def test_lz4_frames_are_plain_and_no_wider_than_they_must_be(size_bytes: int) -> None:
    header = packed_by_us(LZ4, batch_of(size_bytes))[:7]
    assert codecs._LZ4_PLAIN[header] == (64 << 10 if size_bytes <= 64 << 10 else 256 << 10)


@pytest.mark.parametrize("size_bytes", [500, 64 << 10, (64 << 10) + 1, 900_000])
@pytest.mark.parametrize("level", [None, 1, 9, 12])
def test_lz4_blocks_stand_alone_as_kafkas_java_client_demands(size_bytes: int, level: int | None) -> None:
    data = batch_of(size_bytes)
    packed = packed_by_us(LZ4, data, level)
    flags = packed[4]
    assert flags & 0xEF == 0x60  # version 1, independent; no size, no dictionary; block checksums are allowed
    assert packed[6] == xxh32(packed[4:6]) >> 8 & 0xFF
    position, plain = 7, b""
    while word := int.from_bytes(packed[position : position + 4], "little"):
        size = word & 0x7FFFFFFF
        block = packed[position + 4 : position + 4 + size]
        # On its own, without history:
        plain += block if word >> 31 else lz4.block.decompress(block, uncompressed_size=256 << 10)
        position += 4 + size + (4 if flags & 0x10 else 0)
    assert position + 4 == len(packed)
    assert plain == data


def test_lz4_stores_what_does_not_shrink() -> None:
    noise = random.Random(3).randbytes(256 << 10)
    packed = packed_by_us(LZ4, noise + bytes(256 << 10))
    assert int.from_bytes(packed[7:11], "little") == len(noise) | 1 << 31
    assert packed[11 : 11 + len(noise)] == noise


@pytest.mark.parametrize("size_bytes", [300, 106_000, 3_000_000])
def test_zstd_frames_declare_their_size(size_bytes: int) -> None:
    assert zstandard.frame_content_size(packed_by_us(ZSTD, batch_of(size_bytes))) == size_bytes


# --- other people's bytes -----------------------------------------------------------------------------------


@pytest.mark.sampled(30)
@every_writer
@pytest.mark.parametrize("data", [SMALL, BATCH, batch_of(900_000)], ids=len)
def test_what_other_writers_make_is_read(writer: str, data: bytes) -> None:
    codec, write = FOREIGN[writer]
    assert decompress(codec, write(data)) == data


@pytest.mark.sampled(8)
@every_writer
@settings(max_examples=30)  # of each of so many
@given(data=st.binary(max_size=2000))
def test_whatever_other_writers_pack_is_read(writer: str, data: bytes) -> None:
    codec, write = FOREIGN[writer]
    packed = write(data)
    if packed and packed != XERIAL:
        assert decompress(codec, packed) == data


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("data", [SMALL, BATCH, batch_of(900_000)], ids=len)
def test_what_we_write_is_read_by_others(reader: str, data: bytes) -> None:
    codec, read = READERS[reader]
    assert read(packed_by_us(codec, data)) == data


@pytest.mark.sampled(8)
@pytest.mark.parametrize("first", [w for w in FOREIGN if not w.startswith("snappy")])
def test_frames_and_members_in_a_row_are_read_as_one(first: str) -> None:
    codec, write = FOREIGN[first]
    for second_codec, write_second in FOREIGN.values():
        if second_codec == codec:
            packed = write(BATCH) + write_second(SMALL) + write(SMALL)
            assert decompress(codec, packed) == BATCH + SMALL + SMALL


def test_our_own_frames_in_a_row_are_read_as_one() -> None:
    for codec in PACKING:
        assert decompress(codec, packed_by_us(codec, BATCH) + packed_by_us(codec, SMALL)) == BATCH + SMALL


@pytest.mark.parametrize("codec", [LZ4, ZSTD], ids=codec_name)
def test_skippable_frames_are_skipped(codec: int) -> None:
    skipped = struct.pack("<II", 0x184D2A53, 11) + b"hello world"
    packed = packed_by_us(codec, BATCH)
    assert decompress(codec, skipped + packed + skipped + packed + skipped) == BATCH + BATCH


def test_a_xerial_header_between_blocks_is_passed_over() -> None:
    packed = kafka.codec.snappy_encode(BATCH) + kafka.codec.snappy_encode(SMALL)
    assert decompress(SNAPPY, packed) == BATCH + SMALL


def test_xerial_headers_count_as_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "BLOCKS_MAX", 500)
    assert decompress(SNAPPY, XERIAL * 490) == b""
    with pytest.raises(DecompressionLimit, match="blocks"):
        decompress(SNAPPY, XERIAL * 510)


def test_a_xerial_header_alone_is_no_data() -> None:
    assert decompress(SNAPPY, XERIAL) == b""


def test_java_frames_with_the_widest_window_are_read_into_little_memory() -> None:
    """The window is that of the level; the compressor's tables, which are as large, are not in the frame."""
    for level in (20, 21, 22):
        parameters = zstandard.ZstdCompressionParameters.from_level(
            level, write_content_size=False, hash_log=14, chain_log=14, strategy=zstandard.STRATEGY_FAST
        )
        stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        packed = stream.compress(BATCH) + stream.flush()
        assert zstandard.get_frame_parameters(packed).window_size >= 32 * MIB
        assert decompress(ZSTD, packed, max_bytes=len(BATCH)) == BATCH


@pytest.mark.alternating
@pytest.mark.sampled(1)  # 0.3 s each
@pytest.mark.parametrize("gap_bytes", [7 * MIB, 9 * MIB, 20 * MIB])
def test_frames_that_reach_far_back_are_given_the_window_they_need(gap_bytes: int) -> None:
    noise = random.Random(9).randbytes(2 * MIB)
    data = noise + bytes(gap_bytes) + noise
    packed = zstd_window(data, 27, far=True)
    assert len(packed) < 2.5 * MIB, "the second half points back to the first"
    assert decompress(ZSTD, packed) == data
    assert decompress(ZSTD, packed, max_bytes=2 * len(data)) == data


# --- the writer keeps the reader's rules --------------------------------------------------------------------


@every_codec
def test_what_does_not_shrink_is_left_alone(codec: int) -> None:
    for data in (b"", b"a", b"abc", random.Random(4).randbytes(50_000)):
        assert compress(codec, data) is None


@pytest.fixture
def free_bytes(monkeypatch: pytest.MonkeyPatch) -> int:
    """Apply the maximum ratio from fewer bytes on: compressing 64 MiB is slow."""
    monkeypatch.setattr(codecs, "RATIO_FREE_BYTES", 16 * MIB)
    return 16 * MIB


def test_zeros_that_pack_too_well_are_left_alone(free_bytes: int) -> None:
    zeros = bytes(free_bytes + 4 * MIB)
    assert compress(ZSTD, zeros) is None
    assert compress(GZIP, zeros) is None  # 1,029 to one
    packed = zstandard.ZstdCompressor().compress(zeros)
    with pytest.raises(DecompressionLimit):  # rightly: the reader would have raised this
        decompress(ZSTD, packed)


@pytest.mark.alternating
@pytest.mark.parametrize("codec", [SNAPPY, LZ4], ids=codec_name)
def test_codecs_that_cannot_pack_too_well_pack_any_zeros(codec: int, free_bytes: int) -> None:
    zeros = bytes(free_bytes + 4 * MIB)
    assert decompress(codec, packed_by_us(codec, zeros)) == zeros


@pytest.mark.parametrize("codec", [GZIP, ZSTD], ids=codec_name)
def test_as_many_zeros_as_are_free_of_the_ratio_are_packed(codec: int, free_bytes: int) -> None:
    zeros = bytes(free_bytes)
    assert decompress(codec, packed_by_us(codec, zeros)) == zeros


@every_codec
def test_what_is_longer_than_the_reader_takes_is_left_alone(codec: int) -> None:
    assert compress(codec, BATCH, max_bytes=len(BATCH) - 1) is None
    packed = compress(codec, BATCH, max_bytes=len(BATCH))
    assert packed is not None
    assert decompress(codec, packed, max_bytes=len(BATCH)) == BATCH


@pytest.mark.alternating
@pytest.mark.costly  # packs 20 MiB twice at the highest level: only that one has such a window
def test_a_window_that_the_reader_would_not_pay_for_is_not_used() -> None:
    data = random.Random(5).randbytes(MIB) * 20  # level 22 keeps all of it as its window
    assert compress(ZSTD, data, 22, max_bytes=24 * MIB) is None
    packed = compress(ZSTD, data, 22, max_bytes=40 * MIB)
    assert packed is not None
    assert decompress(ZSTD, packed, max_bytes=40 * MIB) == data
    with pytest.raises(DecompressionLimit):
        decompress(ZSTD, packed, max_bytes=24 * MIB)


@every_codec
@given(unit=st.binary(min_size=1, max_size=20), times=st.integers(1, 5000), max_bytes=st.integers(0, 100_000))
def test_whatever_compress_returns_is_accepted_back(codec: int, unit: bytes, times: int, max_bytes: int) -> None:
    packed = compress(codec, unit * times, max_bytes=max_bytes)
    if packed is not None:
        assert decompress(codec, packed, max_bytes=max_bytes) == unit * times


# --- limits -------------------------------------------------------------------------------------------------


@every_writer
def test_the_limit_is_exact(writer: str) -> None:
    codec, write = FOREIGN[writer]
    packed = write(BATCH)
    assert decompress(codec, packed, max_bytes=len(BATCH)) == BATCH
    for max_bytes in (len(BATCH) - 1, 1000, 1, 0):
        with pytest.raises(DecompressionLimit, match=str(max_bytes)):
            decompress(codec, packed, max_bytes=max_bytes)


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD], ids=codec_name)
def test_frames_in_a_row_share_the_limit(codec: int) -> None:
    packed = packed_by_us(codec, BATCH) * 3
    assert decompress(codec, packed, max_bytes=3 * len(BATCH)) == BATCH * 3
    with pytest.raises(DecompressionLimit):
        decompress(codec, packed, max_bytes=3 * len(BATCH) - 1)


def test_the_default_limit_is_a_default_segment() -> None:
    assert DEFAULT_MAX == 1 << 30


@pytest.mark.alternating
@pytest.mark.parametrize("write", [zstandard.ZstdCompressor().compress, zstd_without_size], ids=["size", "no size"])
def test_beyond_the_free_bytes_the_ratio_decides(write: Callable[[bytes], bytes], free_bytes: int) -> None:
    zeros = bytes(free_bytes + MIB)
    just_enough = zeros + random.Random(6).randbytes(len(zeros) // RATIO_MAX)
    too_little = zeros + random.Random(6).randbytes(len(zeros) // RATIO_MAX - 10_000)
    assert decompress(ZSTD, write(just_enough)) == just_enough
    with pytest.raises(DecompressionLimit):
        decompress(ZSTD, write(too_little))


def lz4_header_with_size(size_bytes: int) -> bytes:
    descriptor = bytes([0x68, 0x40]) + size_bytes.to_bytes(8, "little")
    return bytes.fromhex("04224d18") + descriptor + bytes([xxh32(descriptor) >> 8 & 0xFF])


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        (LZ4, lz4_header_with_size(1 << 40) + bytes(4)),
        (ZSTD, bytes.fromhex("28b52ffd c0 58") + (1 << 40).to_bytes(8, "little") + b"\x01\x00\x00"),
        (ZSTD, bytes.fromhex("28b52ffd e0") + (1 << 40).to_bytes(8, "little") + b"\x01\x00\x00"),
    ],
    ids=["lz4", "zstd", "zstd, single segment"],
)
def test_a_declared_size_is_refused_before_anything_is_unpacked(codec: int, packed: bytes) -> None:
    with pytest.raises(DecompressionLimit, match=str(1 << 40)):  # there is nothing to decompress
        decompress(codec, packed)


def test_a_window_beyond_what_the_library_decodes_is_a_limit_not_corruption() -> None:
    zeros = zstd_rle(BOMB_BYTES, "28b52ffd 00 f8")
    with pytest.raises(DecompressionLimit):
        decompress(ZSTD, zeros)


def test_a_result_keeps_little_more_memory_than_it_needs() -> None:
    packed = packed_by_us(GZIP, BATCH) * 20  # could unpack to a thousand times as much
    plain = decompress(GZIP, packed)
    assert plain == BATCH * 20
    assert isinstance(plain.obj, np.ndarray)
    assert plain.obj.nbytes <= len(plain) + MIB


def zstd_of_empty_blocks(count: int) -> bytes:
    return bytes.fromhex("28b52ffd 00 58") + bytes(3) * (count - 1) + b"\x01\x00\x00"


def lz4_of_tiny_blocks(count: int) -> bytes:
    return lz4_frame(b"", block_linked=False, store_size=False)[:7] + b"\x01\x00\x00\x80a" * count + bytes(4)


@pytest.mark.parametrize(
    ("codec", "blocks", "each"),
    [
        (ZSTD, zstd_of_empty_blocks, b""),
        (LZ4, lz4_of_tiny_blocks, b"a"),
        (SNAPPY, lambda count: xerial(*[b"\0"] * count), b""),
    ],
    ids=["zstd", "lz4", "snappy"],
)
def test_blocks_are_counted(
    codec: int, blocks: Callable[[int], bytes], each: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codecs, "BLOCKS_MAX", 500)
    assert decompress(codec, blocks(490)) == each * 490
    with pytest.raises(DecompressionLimit, match="blocks"):
        decompress(codec, blocks(510))


@pytest.mark.parametrize("codec", [LZ4, ZSTD], ids=codec_name)
def test_frames_count_as_blocks(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    skipped = struct.pack("<II", 0x184D2A50, 0)
    monkeypatch.setattr(codecs, "BLOCKS_MAX", 500)
    assert decompress(codec, skipped * 490 + packed_by_us(codec, SMALL)) == SMALL
    with pytest.raises(DecompressionLimit, match="blocks"):
        decompress(codec, skipped * 510)
    with pytest.raises(DecompressionLimit, match="blocks"):
        decompress(codec, packed_by_us(codec, SMALL) * 300)


# --- damage -------------------------------------------------------------------------------------------------


def read_or_corrupt(codec: int, data: bytes, max_bytes: int = 1 << 20) -> memoryview | None:
    """Decompress any bytes: the result is within the limit, or `CorruptBatch` is raised."""
    try:
        plain = decompress(codec, data, max_bytes=max_bytes)
    except CorruptBatch:
        return None
    assert len(plain) <= max_bytes
    return plain


@every_codec
def test_empty_input_is_corrupt(codec: int) -> None:
    with pytest.raises(CorruptBatch, match="empty"):
        decompress(codec, b"")


@every_writer
def test_input_cut_at_any_byte_is_corrupt(writer: str) -> None:
    codec, write = FOREIGN[writer]
    packed = write(SMALL)
    for cut in range(len(packed)):
        if packed[:8] == XERIAL[:8] and cut == len(XERIAL):
            continue  # xerial has no end mark: only the batch's CRC detects a cut between blocks
        with pytest.raises(CorruptBatch):
            decompress(codec, packed[:cut])


@every_codec
def test_our_own_output_cut_at_any_byte_is_corrupt_or_a_beginning(codec: int) -> None:
    data = batch_of(70_000)
    packed = packed_by_us(codec, data)
    for cut in [*range(200), *range(200, len(packed), 97), *range(len(packed) - 20, len(packed))]:
        plain = read_or_corrupt(codec, packed[:cut])
        if codec == SNAPPY and plain is not None:
            assert len(plain) in (0, 32768, 65536)
            assert plain == data[: len(plain)]
        else:
            assert plain is None


@every_writer
def test_bytes_behind_the_end_are_corrupt(writer: str) -> None:
    codec, write = FOREIGN[writer]
    packed = write(SMALL)
    for garbage in (b"\0", b"x", bytes(4), b"garbage", bytes(20), b"\xff" * 20, packed[:10]):
        with pytest.raises(CorruptBatch):
            decompress(codec, packed + garbage)


@pytest.mark.sampled(8)
@every_writer
def test_a_flipped_bit_is_corrupt_or_other_data_but_nothing_else(writer: str) -> None:
    codec, write = FOREIGN[writer]
    packed = bytearray(write(SMALL))
    for bit in range(8 * len(packed)):
        packed[bit >> 3] ^= 1 << (bit & 7)
        read_or_corrupt(codec, bytes(packed))
        packed[bit >> 3] ^= 1 << (bit & 7)


CHECKED = ["gzip, kafka-python", "lz4, all checksums, no size", "zstd, checksum"]


@pytest.mark.parametrize("writer", CHECKED)
def test_where_the_format_has_a_checksum_it_is_checked(writer: str) -> None:
    codec, write = FOREIGN[writer]
    packed = bytearray(write(random.Random(7).randbytes(200)))  # stored uncompressed: only the checksum tells
    packed[100] ^= 1
    with pytest.raises(CorruptBatch):
        decompress(codec, packed)


MAGICS = {
    GZIP: bytes.fromhex("1f8b0800000000000003"),
    SNAPPY: XERIAL,
    LZ4: bytes.fromhex("04224d18604082"),
    ZSTD: bytes.fromhex("28b52ffd"),
}


@every_codec
@given(garbage=st.binary(max_size=300))
def test_garbage_is_corrupt_or_data_but_nothing_else(codec: int, garbage: bytes) -> None:
    read_or_corrupt(codec, garbage)
    read_or_corrupt(codec, MAGICS[codec] + garbage)


@pytest.mark.sampled(8)
@every_writer
@settings(max_examples=30)  # of each of so many
@given(data=st.data())
def test_spliced_input_is_corrupt_or_data_but_nothing_else(writer: str, data: st.DataObject) -> None:
    codec, write = FOREIGN[writer]
    packed = write(SMALL)
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(packed))] * 2)))
    read_or_corrupt(codec, packed[:start] + data.draw(st.binary(max_size=30)) + packed[end:])


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        (SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(100)),  # 4 GiB - 1
        (SNAPPY, xerial(b"\xff\xff\xff\xff\x0f" + bytes(100))),
        (SNAPPY, b"\xe8\x07" + bytes(20)),  # 1,000 bytes from 22
        (GZIP, packed_by_us(GZIP, SMALL)[:-4] + b"\xff" * 4),
    ],
)
def test_a_declared_size_that_cannot_be_is_corrupt(codec: int, packed: bytes) -> None:
    with pytest.raises(CorruptBatch, match="cannot hold the declared"):
        decompress(codec, packed)


def test_a_declared_size_that_is_no_number_is_corrupt() -> None:
    for packed in (b"\x80" * 9 + b"\x01", xerial(b"\x80" * 9 + b"\x01"), b"\x80", xerial(b"\x80")):
        with pytest.raises(CorruptBatch):
            decompress(SNAPPY, packed)


def test_a_negative_block_length_is_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="-5"):
        decompress(SNAPPY, XERIAL + struct.pack(">i", -5) + bytes(20))


def test_an_lz4_block_longer_than_the_frame_allows_is_corrupt() -> None:
    block = bytes(70_000)
    frame = bytes.fromhex("04224d18604082") + struct.pack("<I", len(block) | 1 << 31) + block + bytes(4)
    with pytest.raises(CorruptBatch, match="70000"):
        decompress(LZ4, frame)


def test_an_lz4_block_that_unpacks_to_more_than_the_frame_allows_is_corrupt() -> None:
    block = lz4.block.compress(bytes(100_000), store_size=False)
    frame = bytes.fromhex("04224d18604082") + struct.pack("<I", len(block)) + block + bytes(4)
    with pytest.raises(CorruptBatch):
        decompress(LZ4, frame)


@pytest.mark.parametrize("delta", [-1, 1, -600])
def test_a_size_that_is_not_the_datas_is_corrupt(delta: int) -> None:
    zstd = bytearray(zstandard.ZstdCompressor().compress(SMALL))
    assert zstd[4] >> 5 == 0b011  # two bytes of size at 5, no window byte
    struct.pack_into("<H", zstd, 5, len(SMALL) - 256 + delta if delta > -500 else 0)
    with pytest.raises(CorruptBatch):
        decompress(ZSTD, zstd)
    frame = bytearray(lz4_frame(SMALL, store_size=True))
    assert frame[4] & 0x08
    struct.pack_into("<Q", frame, 6, len(SMALL) + delta)
    frame[14] = xxh32(bytes(frame[4:14])) >> 8 & 0xFF
    with pytest.raises(CorruptBatch):
        decompress(LZ4, frame)


def test_an_unknown_dictionary_is_corrupt() -> None:
    dictionary = zstandard.train_dictionary(2000, [batch_of(size) for size in range(500, 1500)])
    packed = zstandard.ZstdCompressor(dict_data=dictionary).compress(SMALL)
    assert zstandard.get_frame_parameters(packed).dict_id
    with pytest.raises(CorruptBatch, match=r"[Dd]ictionary"):
        decompress(ZSTD, packed)


def test_an_lz4_dictionary_that_is_not_needed_does_no_harm() -> None:
    descriptor = bytes([0x61, 0x40]) + (77).to_bytes(4, "little")
    header = bytes.fromhex("04224d18") + descriptor + bytes([xxh32(descriptor) >> 8 & 0xFF])
    assert decompress(LZ4, header + struct.pack("<I", 1 << 31 | len(SMALL)) + SMALL + bytes(4)) == SMALL


# --- bombs --------------------------------------------------------------------------------------------------
# Each runs in a process whose address space may only grow by max_bytes, DECODER_BYTES and what Python itself
# needs for a call. Using more raises MemoryError instead of the expected result.

BOMB = """
import resource, sys
from sawlog.batch.compression import compress, decompress
from sawlog.errors import CorruptBatch, DecompressionLimit

codec, max_bytes, room_bytes = map(int, sys.argv[1:])
data = sys.stdin.buffer.read()
try:
    decompress(codec, data[:9], max_bytes=1)  # load everything that is imported lazily
except CorruptBatch:
    pass
with open("/proc/self/statm") as statm:
    used_bytes = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used_bytes + room_bytes,) * 2)
try:
    plain = decompress(codec, data, max_bytes=max_bytes)
except (CorruptBatch, MemoryError) as error:
    print(type(error).__name__)
else:
    print(len(plain))
"""

#: Decompressed size of a bomb: more than the memory of its process.
BOMB_BYTES = 72 * MIB

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces RLIMIT_AS")


def explode(codec: int, data: bytes, max_bytes: int, room_bytes: int | None = None) -> str:
    """Return the result of `decompress` in a process with memory for `max_bytes` and a little more."""
    if room_bytes is None:
        room_bytes = max_bytes + DECODER_BYTES + 2 * MIB
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BOMB), str(codec), str(max_bytes), str(room_bytes)],
        input=data,
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "MALLOC_ARENA_MAX": "1"},
    )
    assert run.returncode == 0, run.stderr.decode()
    return run.stdout.decode().strip()


def gzip_zeros(size_bytes: int) -> bytes:
    return gzip.compress(bytes(size_bytes), 9)


def zstd_rle(size_bytes: int, header: str) -> bytes:
    """Return a frame of one repeated byte: 4 bytes become 128 KiB."""
    count = size_bytes >> 17
    block = struct.pack("<I", (1 << 17) << 3 | 1 << 1)[:3] + b"\0"
    last = struct.pack("<I", (1 << 17) << 3 | 1 << 1 | 1)[:3] + b"\0"
    return bytes.fromhex(header) + block * (count - 1) + last


def snappy_zeros(size_bytes: int) -> bytes:
    return arrow("snappy", bytes(size_bytes))


BOMBS: dict[str, tuple[int, Callable[[], bytes]]] = {
    "gzip": (GZIP, lambda: gzip_zeros(BOMB_BYTES)),
    "gzip, many members": (GZIP, lambda: gzip_zeros(MIB) * (BOMB_BYTES // MIB)),
    "gzip, a small member last": (GZIP, lambda: gzip_zeros(BOMB_BYTES) + gzip_zeros(1)),
    "snappy": (SNAPPY, lambda: snappy_zeros(BOMB_BYTES)),
    "snappy, many blocks": (SNAPPY, lambda: xerial(*[snappy_zeros(MIB)] * (BOMB_BYTES // MIB))),
    "lz4": (LZ4, lambda: lz4_frame(bytes(BOMB_BYTES), store_size=False)),
    "lz4, size": (LZ4, lambda: lz4_frame(bytes(BOMB_BYTES), store_size=True)),
    "lz4, linked blocks of 4 MiB": (
        LZ4,
        lambda: lz4_frame(bytes(BOMB_BYTES), store_size=False, block_linked=True, block_size=7),
    ),
    "lz4, independent blocks of 4 MiB": (
        LZ4,
        lambda: lz4_frame(bytes(BOMB_BYTES), store_size=False, block_linked=False, block_size=7),
    ),
    "lz4, many frames": (LZ4, lambda: lz4_frame(bytes(MIB)) * (BOMB_BYTES // MIB)),
    "zstd, size": (ZSTD, lambda: zstandard.ZstdCompressor().compress(bytes(BOMB_BYTES))),
    "zstd, no size": (ZSTD, lambda: zstd_without_size(bytes(BOMB_BYTES))),
    "zstd, many frames": (ZSTD, lambda: zstandard.ZstdCompressor().compress(bytes(MIB)) * (BOMB_BYTES // MIB)),
    "zstd, many frames without size": (ZSTD, lambda: zstd_without_size(bytes(MIB)) * (BOMB_BYTES // MIB)),
    "zstd, widest window": (ZSTD, lambda: zstd_window(bytes(BOMB_BYTES), 27)),
    "zstd, a window of 2 TiB": (ZSTD, lambda: zstd_rle(BOMB_BYTES, "28b52ffd 00 f8")),
    "zstd, window and size": (
        ZSTD,
        lambda: zstd_rle(20 * MIB, "28b52ffd a0" + struct.pack("<I", 20 * MIB).hex()) * 4,
    ),
    "zstd, a petabyte declared": (ZSTD, lambda: bytes.fromhex("28b52ffd e0 0000000000000400 010000")),
    "zstd, the wide window in the second frame": (
        ZSTD,
        lambda: zstandard.ZstdCompressor().compress(SMALL) + zstd_window(bytes(BOMB_BYTES), 27),
    ),
    "zstd, a wide window before much that is stored": (
        ZSTD,
        lambda: zstd_window(SMALL, 27) + zstd_without_size(random.Random(8).randbytes(20 * MIB)),
    ),
}


@pytest.mark.alternating
@linux_only
@pytest.mark.sampled(5)  # each starts a process
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_within_the_memory_that_was_allowed(bomb: str) -> None:
    codec, make = BOMBS[bomb]
    assert explode(codec, make(), max_bytes=32 * MIB) == "DecompressionLimit"


@pytest.mark.alternating
@linux_only
@pytest.mark.sampled(2)  # each starts a process
@pytest.mark.parametrize(
    "writer",
    [
        "gzip, kafka-python",
        "snappy, kafka-python",
        "lz4, linked, no size",
        "lz4, blocks of 4 MiB",
        "zstd, no size",
        "zstd, no size, window of 128 MiB",
        "zstd, level 22",
    ],
)
def test_what_is_allowed_unpacks_within_the_memory_that_was_allowed(writer: str) -> None:
    codec, write = FOREIGN[writer]
    packed = write(bytes(16 * MIB))
    assert explode(codec, packed, max_bytes=32 * MIB) == str(16 * MIB)


@pytest.mark.alternating
@pytest.mark.sampled(1)  # each starts a process
@linux_only
@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        (SNAPPY, lambda: xerial(*[b"\0"] * 200_000)),
        (LZ4, lambda: lz4_frame(b"") * 100_000),
        (ZSTD, lambda: bytes.fromhex("28b52ffd 00 f8 010000") * 100_000),  # each with a window of 2 TiB
    ],
    ids=["snappy", "lz4", "zstd"],
)
def test_blocks_and_frames_of_nothing_take_no_memory(codec: int, packed: Callable[[], bytes]) -> None:
    assert explode(codec, packed(), max_bytes=MIB) == "0"


@pytest.mark.alternating
@linux_only
def test_a_window_without_content_takes_no_memory() -> None:
    for window_log in (24, 27):
        assert explode(ZSTD, zstd_window(SMALL, window_log), max_bytes=MIB) == str(len(SMALL))


@pytest.mark.alternating
@linux_only
@pytest.mark.parametrize("codec", [SNAPPY, ZSTD], ids=codec_name)
def test_a_declared_size_within_the_limit_takes_no_more_than_the_limit(codec: int) -> None:
    if codec == ZSTD:
        lie = zstd_rle(1 << 17, "28b52ffd a0" + struct.pack("<I", 32 * MIB).hex())
    else:
        lie = b"\x80\x80\x80\x10" + bytes(32 * MIB // 20)
    assert explode(codec, lie, max_bytes=32 * MIB) == "CorruptBatch"


@pytest.mark.alternating
@linux_only
def test_too_little_memory_is_not_called_corruption() -> None:
    packed = zstd_window(bytes(4 * MIB), 23)
    for room_bytes in (MIB, 7 * MIB):  # too small for the output; large enough for the output, but not for the window
        assert explode(ZSTD, packed, max_bytes=4 * MIB, room_bytes=room_bytes) == "MemoryError"
    assert explode(ZSTD, packed, max_bytes=4 * MIB) == str(4 * MIB)


def test_members_without_content_cost_linear_time() -> None:
    member = gzip.compress(b"")
    assert decompress(GZIP, member * 50_000 + gzip.compress(SMALL)) == SMALL  # a megabyte of zeros
