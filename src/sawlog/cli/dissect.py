"""Split a segment's bytes into batches and damaged ranges, and locate the damaged byte.

Unlike `Log`, which stops at the first error, `dissect` reads any file: a segment, a `.torn` tail, a copy. It uses
neither indexes nor neighbouring segments. For each damaged range it reports the first bad byte as exactly as possible:
an invalid header field, the end of a truncated file, or, if only the checksum is wrong, the byte that explains it.

`find_change` locates that byte from the CRC alone. A CRC is linear: if one bit, or several bits of one byte, were
changed, the difference between the stored and the computed CRC is the CRC of an error pattern followed by zeros. The
search undoes one zero byte at a time, from the last byte to the first. Where the remainder is the CRC of a single
byte, that byte with that pattern explains the difference.

A single flipped bit is always found (the code's distance is 4 at every possible batch length). Several changed bits of
one byte are found unless two positions explain them, which can happen by chance in large batches; then no position is
reported rather than a wrong one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ..batch import kernel
from ..batch.checksum import crc32c
from ..batch.compression import codec_name
from ..batch.header import COMPRESSION_MASK, HEADER_BYTES, BatchHeader, crc_matches, new_rows
from ..batch.kernel import Record
from ..batch.read import decode, malformed
from ..errors import CorruptBatch
from ..log.batches import find_good_batch

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
#: Larger batches take too long: one step takes a few hundred nanoseconds.
SEARCH_BYTES = 4 << 20


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _table()
#: The highest byte of each entry is unique, so a step can be undone.
_BACK = {entry >> 24: (byte, entry) for byte, entry in enumerate(_TABLE)}
_BYTE_OF = {entry: byte for byte, entry in enumerate(_TABLE) if byte}


@dataclass(frozen=True, slots=True)
class Change:
    """A byte that explains a wrong CRC: `index` counts from the first byte that the CRC covers (negative: the CRC's own
    bytes, -4 to -1), `mask` has the bits that were changed."""

    index: int
    mask: int


def find_change(stored: int, computed: int, size_bytes: int) -> Change | None:
    """Return the changed byte that explains why the CRC of `size_bytes` bytes is wrong, if there is exactly one."""
    difference = stored ^ computed
    own = [Change(i - 4, difference >> 8 * (3 - i) & 0xFF) for i in range(4) if not difference & ~(0xFF << 8 * (3 - i))]
    if own and own[0].mask.bit_count() == 1:
        return own[0]
    found = list(own)
    for index in range(size_bytes - 1, max(size_bytes - SEARCH_BYTES, 0) - 1, -1):
        mask = _BYTE_OF.get(difference)
        if mask is not None:
            change = Change(index, mask)
            if mask.bit_count() == 1:
                return change
            found.append(change)
        byte, entry = _BACK[difference >> 24]
        difference = (difference ^ entry) << 8 & 0xFFFFFFFF | byte
    return found[0] if len(found) == 1 and size_bytes <= SEARCH_BYTES else None


_ROWS = 256
_CRC_AT, _COVERED_AT = 17, 21
#: A batch that decompresses to more than this is reported as damaged.
_UNPACKED_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Batch:
    """One complete batch. `remark` describes an anomaly despite a correct checksum, or is empty; `wrong` is set if the
    anomaly must be damage."""

    header: BatchHeader
    codec: str
    remark: str = ""
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of bytes that is not a batch: its position and size, the first bad byte, and the reason."""

    position: int
    size_bytes: int
    bad_position: int
    reason: str


def dissect(view: memoryview) -> Iterator[Batch | Damage]:
    """Yield the batches and damaged ranges of a file, in order."""
    position = 0
    following: int | None = None
    while position < len(view):
        rows = new_rows(_ROWS)
        count, _, _, _ = kernel.scan_batches(view, position, len(view), len(view), -1, memoryview(rows))
        headers = [BatchHeader.from_row(row) for row in rows[:count]]
        for number, header in enumerate(headers):
            if not crc_matches(view, header.position, header.size_bytes, header.crc):
                break
            neighbour = headers[number + 1].base_offset if number + 1 < count else None
            remark, wrong, following = _place(header, following, neighbour)
            trouble = next(malformed(view, rows[number : number + 1], _UNPACKED_MOST_BYTES), None)
            if trouble is not None:
                remark, wrong = trouble[1].reason, True
            yield Batch(header, codec_name(header.compression), remark, wrong)
            position = header.position + header.size_bytes
        else:
            if count == _ROWS or position == len(view):
                continue
        if position < len(view):
            damage = _damage(view, position)
            yield damage
            position, following = position + damage.size_bytes, None


def records_of(view: memoryview, header: BatchHeader) -> list[Record]:
    """Return the records of a batch with a correct checksum, or an empty list if they do not parse."""
    try:
        return decode(view[header.position : header.position + header.size_bytes])
    except CorruptBatch:
        return []


def _place(header: BatchHeader, expected: int | None, neighbour: int | None) -> tuple[str, bool, int]:
    """Return a remark about a batch's offset, whether the offset is wrong, and the next offset. The CRC does not cover
    the base offset, but the neighbouring batches confirm it. `neighbour` is the base offset of the next batch."""
    base, following = header.base_offset, header.last_offset + 1
    if expected is None or base == expected:
        return "", False, following
    shifted = expected + following - base
    if neighbour == shifted:
        return f"the base offset should be {expected}, according to the batches around it", True, shifted
    if base < expected:
        return f"offset {base} comes after {expected - 1}", True, following
    return f"offsets {expected} to {base - 1} are missing: removed by compaction, or lost", False, following


# --- damage


def _damage(view: memoryview, position: int) -> Damage:
    resumed = _next_good(view, position)
    end = len(view) if resumed is None else resumed
    bad, reason = _fault(view, position, resumed)
    return Damage(position, end - position, bad, reason)


def _next_good(view: memoryview, position: int) -> int | None:
    """Return the position of the next batch with a correct checksum. Try the end that the damaged batch claims first,
    because a record may contain bytes that look like a batch; then every position."""
    if len(view) - position >= HEADER_BYTES:
        claimed: int = position + 12 + struct.unpack_from(">i", view, position + 8)[0]
        if claimed > position and _is_good(view, claimed):
            return claimed
    return find_good_batch(view, position + 1, 0)


def _is_good(view: memoryview, at: int) -> bool:
    if at > len(view) - HEADER_BYTES or kernel.find_header(view, at, len(view), 0) != at:
        return False
    size: int = 12 + struct.unpack_from(">i", view, at + 8)[0]
    return crc_matches(view, at, size, _stored_crc(view, at))


def _fault(view: memoryview, position: int, resumed: int | None) -> tuple[int, str]:
    """Return (first bad byte, reason): a truncated file, an invalid field, or a wrong checksum."""
    left = len(view) - position
    if not any(view[position : position + min(left, 4096)]) and not any(view[position:]):
        return position, f"{left:,} zero bytes: preallocated and never written, or lost in a power cut"
    if left < HEADER_BYTES:
        return len(view), f"the file ends here, inside a batch header: {left} of {HEADER_BYTES} bytes"
    size: int = 12 + struct.unpack_from(">i", view, position + 8)[0]
    framing = _impossible(view, position, covered=False)
    if framing is not None:
        return framing
    end = len(view) if resumed is None else resumed
    if end != position + size and _crc_with_end(view, position, end):
        return position + 8, f"the batch claims {size:,} bytes, but its checksum is right for {end - position:,}"
    if size > left and resumed is None:
        return len(view), f"the file ends here; {size - left:,} bytes of a batch of {size:,} are missing"
    if size > left:
        return position + 8, f"the batch claims {size:,} bytes and overlaps the batch at byte {resumed}"
    explained = _changed_byte(view, position, size)
    if explained is not None:
        return explained
    many = position + _COVERED_AT, "the checksum is wrong; more than one byte from here on was changed"
    return _impossible(view, position, covered=True) or many


def _impossible(view: memoryview, position: int, *, covered: bool) -> tuple[int, str] | None:
    """Return the first invalid header field among the fields that the CRC covers (`covered`), or the ones before."""
    base, length, _, magic, _, attributes, delta = struct.unpack_from(">qiibIhi", view, position)
    count: int = struct.unpack_from(">i", view, position + 57)[0]
    too_many = not 0 <= count <= delta + 1 or (not attributes & COMPRESSION_MASK and count > (length - 49) // 7)
    checks = (
        (0, base < 0 or bool(base >> 62), f"base offset {base} is invalid"),
        (8, length < HEADER_BYTES - 12, f"a batch length of {length} is shorter than a header"),
        (16, magic != 2, f"the magic byte is {magic}, not 2"),
        (21, attributes & COMPRESSION_MASK > 4, f"compression {attributes & COMPRESSION_MASK} does not exist"),
        (23, delta < 0, f"last offset delta {delta} is invalid"),
        (57, too_many, f"{count} records do not fit into the batch"),
    )
    for at, wrong, reason in checks:
        if wrong and (at >= _COVERED_AT) == covered:
            return position + at, reason
    return None


def _stored_crc(view: memoryview, position: int) -> int:
    crc: int = struct.unpack_from(">I", view, position + _CRC_AT)[0]
    return crc


def _crc_with_end(view: memoryview, position: int, end: int) -> bool:
    """Return whether the stored checksum is correct for a batch that ends at `end`, whatever its length field says."""
    return end - position >= HEADER_BYTES and crc32c(view[position + _COVERED_AT : end]) == _stored_crc(view, position)


def _changed_byte(view: memoryview, position: int, size: int) -> tuple[int, str] | None:
    """Return the single byte that explains a wrong checksum, if there is one."""
    stored, computed = _stored_crc(view, position), crc32c(view[position + _COVERED_AT : position + size])
    change = find_change(stored, computed, size - _COVERED_AT)
    if change is None:
        return None
    bad = position + _COVERED_AT + change.index
    bits = "one flipped bit" if change.mask.bit_count() == 1 else "one changed byte"
    right = f"{view[bad]:02x} should be {view[bad] ^ change.mask:02x}"
    return bad, f"the checksum is {computed:08x}, but {stored:08x} is stored; {bits} explains it: {right}"
