"""Mutations of valid bytes: random changes, and changes that know the format.

`havoc` ignores the format: it changes bits, bytes and numbers, and removes, repeats, moves or inserts pieces. `batches`
changes the fields of batch headers and builds batches with contradictory records. `text` changes JSON. Most results are
`repaired`: they get a correct checksum, so that readers have to check more than that.

All randomness comes from one `random.Random`, so a run can be repeated from its seed.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable, Sequence

from crc32c import crc32c

from sawlog.batch.compression import compress
from sawlog.storage.checksummed import FIELD, LINE

from ...batch.wire import HEADER, varint

Change = Callable[[bytearray, random.Random], None]

#: Boundary values of integer arithmetic.
NUMBERS = (0, 1, 2, 6, 7, 48, 49, 60, 61, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32)
WIDE = (*NUMBERS, 2**62 - 1, 2**62, 2**63 - 1, *(-number for number in NUMBERS[1:]), -(2**62), -(2**63))

#: The same as varints, and some invalid varints.
VARINTS = (
    *(varint(number) for number in WIDE),
    varint(0, 5),
    varint(1, 10),
    b"\xff" * 9 + b"\x01",
    b"\xff" * 9 + b"\x02",
    b"\xff" * 11,
    b"\x80" * 10 + b"\x00",
    b"\x80",
)
#: JSON values, valid and nearly valid.
VALUES = (
    *(b"null", b"true", b"false", b"0", b"-1", b"1e5", b"1.5", b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-0"),
    *(
        b'""',
        b'"x"',
        b'"\\ud800"',
        b'"\\u0000"',
        b"[]",
        b"{}",
        b"[[]]",
        b'{"":0}',
        b"[0,0]",
        b'[["",0,0]]',
        b"'x'",
        b"",
    ),
    *(str(number).encode() for number in WIDE),
    b"9" * 400,
    b"9" * 5000,
    b"[" * 3000,
    b'{"a":' * 3000,
)
_VALUE = re.compile(rb'"[^"]*"|-?[\d.]+|true|false|null|[\[{][^\[{\]}]*[\]}]')


def number(chance: random.Random) -> bytes:
    """Return a number in a random width and byte order."""
    value = chance.choice(WIDE)
    size = chance.choice((1, 2, 4, 8))
    return (value & (256**size - 1)).to_bytes(size, chance.choice(("big", "little")))


def _span(data: bytearray, chance: random.Random) -> tuple[int, int]:
    start = chance.randrange(len(data) + 1)
    return start, min(start + chance.choice((1, 1, 2, 4, 8, 61, 200)), len(data))


def _flip(data: bytearray, chance: random.Random) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _byte(data: bytearray, chance: random.Random) -> None:
    if data:
        data[chance.randrange(len(data))] = chance.randrange(256)


def _number(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data) + 1)
    made = number(chance)
    data[at : at + len(made)] = made


def _varint(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data) + 1)
    data[at : at + chance.randrange(3)] = chance.choice(VARINTS)


def _delete(data: bytearray, chance: random.Random) -> None:
    start, end = _span(data, chance)
    del data[start:end]


def _double(data: bytearray, chance: random.Random) -> None:
    start, end = _span(data, chance)
    data[start:start] = data[start:end] * chance.choice((1, 1, 2, 8))


def _insert(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data) + 1)
    data[at:at] = chance.randbytes(chance.choice((1, 2, 8, 30)))


def _cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data) + 1) :]


def _move(data: bytearray, chance: random.Random) -> None:
    start, end = _span(data, chance)
    piece = data[start:end]
    del data[start:end]
    at = chance.randrange(len(data) + 1)
    data[at:at] = piece


_CHANGES: tuple[Change, ...] = (_flip, _flip, _byte, _number, _number, _varint, _delete, _double, _insert, _cut, _move)
MOST_BYTES = 4096


def havoc(seed: bytes, others: Sequence[bytes], chance: random.Random) -> bytearray:
    """Make some random changes that ignore the format."""
    data = bytearray(seed)
    if chance.random() < 0.1 and others:
        other = chance.choice(others)
        data[chance.randrange(len(data) + 1) :] = other[chance.randrange(len(other) + 1) :]
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        chance.choice(_CHANGES)(data, chance)
    return data[:MOST_BYTES]


# --- batches

#: Position and size in bytes of each number in a batch header.
_FIELDS = ((0, 8), (8, 4), (12, 4), (16, 1), (21, 2), (23, 4), (27, 8), (35, 8), (43, 8), (51, 2), (53, 4), (57, 4))


def _lie(chance: random.Random, honest: int) -> bytes:
    return varint(honest) if chance.random() < 0.93 else chance.choice(VARINTS)


def _record(chance: random.Random, delta: int) -> bytes:
    body = bytearray(b"\0")
    body += _lie(chance, chance.choice((0, 1, -1, 1000)))
    body += _lie(chance, delta)
    for _ in range(2):
        content = chance.choice((None, b"", b"k", b"value", b"v" * 13, b"w" * 200))
        body += _lie(chance, -1 if content is None else len(content)) + (content or b"")
    headers = chance.choice((0, 0, 0, 1, 2))
    body += _lie(chance, headers)
    for _ in range(headers):
        body += _lie(chance, 1) + b"h" + _lie(chance, chance.choice((-1, 0)))
    return _lie(chance, len(body)) + bytes(body)


def made_up(chance: random.Random) -> bytearray:
    """Build a batch whose records and header may contradict their contents."""
    count = chance.choice((0, 1, 2, 3, 8))
    step = chance.choice((1, 1, 1, 2))
    body = b"".join(_record(chance, at * step) for at in range(count))
    attributes = chance.choice((0, 0, 0, 0, 8, 16, 32))
    if chance.random() < 0.1 and body:
        codec = chance.randrange(1, 5)
        packed = compress(codec, body)
        if packed is not None:
            body, attributes = bytes(packed), attributes | codec
    last = max((count - 1) * step, 0) + chance.choice((0, 0, 0, 3))
    made = bytearray(
        HEADER.pack(
            chance.choice((0, 0, 7)), len(body) + 49, 0, 2, 0, attributes, last, 10**12, 10**12, -1, -1, -1, count
        )
    )
    made += body
    if chance.random() < 0.3:
        field(made, chance)
    return made


def field(data: bytearray, chance: random.Random) -> None:
    """Replace one number of a header."""
    at, size = chance.choice(_FIELDS)
    if len(data) >= at + size:
        data[at : at + size] = (chance.choice(WIDE) & (256**size - 1)).to_bytes(size, "big")


def repair_batches(data: bytearray, chance: random.Random) -> bytes:
    """Correct the checksums of consecutive batches, and sometimes the length of the last one."""
    at = 0
    while len(data) - at >= 61:
        size = 12 + struct.unpack_from(">i", data, at + 8)[0]
        if size < 61 or size > len(data) - at:
            if chance.random() < 0.5:
                break
            size = len(data) - at
            struct.pack_into(">i", data, at + 8, size - 12)
        struct.pack_into(">I", data, at + 17, crc32c(memoryview(data)[at + 21 : at + size]))
        at += size
    return bytes(data)


def batches(seed: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """Return invalid batches whose checksums are mostly correct."""
    kind = chance.random()
    if kind < 0.35:
        data = made_up(chance)
    elif kind < 0.5:
        data = bytearray(seed)
        field(data, chance)
    else:
        data = havoc(seed, others, chance)
    return repair_batches(data, chance) if chance.random() < 0.9 else bytes(data)


# --- small text files


def text(seed: bytes, others: Sequence[bytes], chance: random.Random) -> bytearray:
    """Replace values in JSON, or make random changes."""
    found = list(_VALUE.finditer(seed))
    if not found or chance.random() < 0.4:
        return havoc(seed, others, chance)
    data = bytearray(seed)
    where = chance.choice(found)
    data[where.start() : where.end()] = chance.choice(VALUES)
    return data


def lined(seed: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """A text file with its checksum in the last line (`sawlog.storage.checksummed.LINE`)."""
    made = bytes(text(seed, others, chance))
    if chance.random() < 0.15:
        return made
    return LINE.append_to(made.rpartition(LINE.before)[0] or made)


def document(seed: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """A JSON file with its checksum in the last field (`sawlog.storage.checksummed`)."""
    made = bytes(text(seed, others, chance))
    if chance.random() < 0.15:
        return made
    return FIELD.append_to(made.rpartition(FIELD.before)[0] or made)


def plain_text(seed: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """Return changed text without a checksum."""
    return bytes(text(seed, others, chance))


#: Field names in JSON: names of the schema, and similar ones.
NAMES = (
    '"id"',
    '"n"',
    '"amount"',
    '"paid"',
    '"name"',
    '"place"',
    '"city"',
    '"x"',
    '""',
    '"i\\u0064"',
    '"\u00e4"',
    "id",
)
SPACES = ("", "", "", " ", "\n", "\t ", "\r", "\x0b")


def value(chance: random.Random, depth: int = 0) -> str:
    """Return JSON, mostly an object with fields from NAMES, sometimes invalid."""
    kind = chance.random()
    if depth < 4 and kind < (0.9 if depth == 0 else 0.2):
        colon = chance.choice((":", ":", ": ", " : "))
        fields = [f"{chance.choice(NAMES)}{colon}{value(chance, depth + 1)}" for _ in range(chance.randrange(7))]
        space = chance.choice(SPACES)
        return f"{{{space}{f',{space}'.join(fields)}{space}}}"
    if depth < 4 and kind > 0.95:
        return f"[{','.join(value(chance, depth + 1) for _ in range(chance.randrange(3)))}]"
    if kind < 0.5:
        digits = chance.randrange(1, 20)
        whole = str(chance.randrange(-(10**digits), 10**digits))
        after = chance.choice(("", "", f".{chance.randrange(10**digits)}", "e5", "E-7", "e+22", ".0", ".", "e400"))
        return whole + after
    if kind < 0.7:
        letters = 'abc \u00e4\u20ac\U0001f600\\"\x01/'
        text = "".join(chance.choice(letters) for _ in range(chance.randrange(6)))
        return json.dumps(text, ensure_ascii=chance.random() < 0.3) if chance.random() < 0.9 else f'"{text}"'
    return chance.choice(VALUES[:24]).decode()


def values(seed: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """Return generated or changed lines of JSON."""
    if chance.random() < 0.6:
        seed = "\x1e".join(value(chance) for _ in range(chance.randrange(1, 4))).encode("utf-8", "surrogatepass")
        if chance.random() < 0.6:
            return seed
    return bytes(text(seed, others, chance))


def blind(seed: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """Return bytes with random changes, for formats without a checksum that could be corrected."""
    return bytes(havoc(seed, others, chance))
