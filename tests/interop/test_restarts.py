"""Systems that are killed within a record, restart, and append after the fragment: RustLog from the segment's first
offset on, GUMLOG from the second on. Acknowledged records are read, and no record is invented."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sawlog import interop
from sawlog.interop import Finding, Kind
from sawlog.storage import MemoryDirectory

from ..log.sampling import some_of, some_or_all
from ..looping import for_each
from .test_defects import framed

OLD = [b"old %d" % i for i in range(3)]
#: Of many lengths, so that some record ends wherever a torn record seems to end.
NEW = [b"new %d" % i + b"." * (i * 7 % 23) for i in range(12)]
both = pytest.mark.parametrize("format", ["rustlog", "gumlog"])


def varint(number: int) -> bytes:
    made = b""
    while number > 127:
        made += bytes([number & 127 | 128])
        number >>= 7
    return made + bytes([number])


def message(offset: int, value: bytes) -> bytes:
    """A record of GUMLOG."""
    body = b"\x0a" + varint(len(value)) + value if value else b""
    body += b"\x10" + varint(offset) if offset else b""
    return len(body).to_bytes(8, "big") + body


def record(format: str, offset: int, value: bytes) -> bytes:
    return framed(offset, value) if format == "rustlog" else message(offset, value)


def written(format: str, base: int, values: list[bytes]) -> bytes:
    """Return records as written to a new file."""
    return b"".join(record(format, base + i, value) for i, value in enumerate(values))


def again(format: str, base: int, values: list[bytes], *, stuck: bool = False) -> bytes:
    """Return records as written after a restart. A GUMLOG whose index is full gives all of them the same offset."""
    first = base if format == "rustlog" else base + 1
    return b"".join(record(format, first if stuck else first + i, value) for i, value in enumerate(values))


def read(format: str, base: int, content: bytes) -> tuple[list[bytes | None], list[Finding]]:
    """Return the values in one segment and the findings. Raises if records are lost."""
    directory = MemoryDirectory()
    name = f"{base:020d}.log" if format == "rustlog" else f"{base}.store"
    directory.create(name).append(content)
    with interop.open(directory, format=format) as log:
        values = [record.value for record in log]
        return values, [finding for finding in log.report if finding.kind is not Kind.MISSING_FILE]


def pieces(format: str, offset: int, value: bytes) -> Iterator[bytes]:
    """Yield every possible fragment of a record."""
    whole = record(format, offset, value)
    return (whole[:size] for size in range(1, len(whole)))


@some_or_all(10)
@pytest.mark.parametrize("base", [pytest.param(0, marks=pytest.mark.slow), 300])
@pytest.mark.parametrize("stuck", [False, True])
@pytest.mark.parametrize("value", [b"short", b"t" * 120, bytes(70)], ids=["short", "long", "zeros"])
@both
def test_records_written_after_a_torn_one_are_read(
    format: str, value: bytes, stuck: bool, base: int, most: int | None
) -> None:
    """The length of the torn record may extend to the end, into a record, or to the beginning of one, even of one with
    the next offset."""
    if stuck and format == "rustlog":
        return
    cases = [
        (old, new, piece)
        for old in (OLD, OLD[:1], [])
        for new in (NEW[:1], NEW[:4], NEW)
        for piece in pieces(format, base + len(old), value)
    ]
    for old, new, piece in some_of(cases, most):
        content = written(format, base, old) + piece + again(format, base, new, stuck=stuck)
        values, found = read(format, base, content)
        assert values == [*old, *new], (len(old), len(new), piece)
        assert (Kind.TORN_TAIL, "cut", len(piece)) in [(f.kind, f.outcome, f.size_bytes) for f in found]
        assert not any(finding.outcome == "lost" for finding in found)


@both
def test_a_torn_record_may_be_larger_than_the_read_buffer(format: str) -> None:
    """Its length extends over hundreds of new records, with offsets beyond the old ones."""
    old, new = [b"old %d" % i for i in range(50)], [b"new %d" % i for i in range(300)]
    for size in (100, 5_000, 100_000, 9 << 20):
        piece = record(format, 57, b"t" * size)[: 12 + size // 2]
        values, _ = read(format, 7, written(format, 7, old) + piece + again(format, 7, new))
        assert values == [*old, *new], size


@for_each("kept", [1, 5, 11, 12, 20, 60, 99])
@both
def test_a_system_may_be_killed_repeatedly(format: str, kept: int) -> None:
    """Each kill tears a record, including the first one after a restart."""
    old, torn = written(format, 7, OLD), record(format, 10, b"t" * 100)[:kept]
    first = again(format, 7, [b"t" * 5000])[: 2000 + kept]
    second = again(format, 7, [*NEW[:2], b"t" * 300])[:-200]
    values, found = read(format, 7, old + torn + first + second + again(format, 7, NEW) + torn)
    assert values == [*OLD, *NEW[:2], *NEW]
    assert all(finding.outcome in ("cut", "repaired") for finding in found)


@some_or_all(20)
@both
def test_a_torn_record_at_the_end_is_cut(format: str, most: int | None) -> None:
    for piece in some_of(pieces(format, 10, bytes(40) + b"t" * 40), most):
        values, found = read(format, 7, written(format, 7, OLD) + piece)
        assert values == OLD
        assert [finding.outcome for finding in found] == ["cut"]


@some_or_all(12)
@both
def test_zeros_after_a_torn_record_are_not_records(format: str, most: int | None) -> None:
    """The first offset is 0, which makes zeros look like a restart."""
    for size in some_of([*range(1, 60), 366, 1000, 4096], most):
        for piece in (b"", record(format, 3, b"t" * 5000)[:50]):
            values, found = read(format, 0, written(format, 0, OLD) + piece + bytes(size))
            assert values == OLD, size
            assert {finding.outcome for finding in found} == {"cut"}, size


@both
def test_values_that_contain_records_of_the_same_system_stay_whole(format: str) -> None:
    """The exception is a value that ends like a torn record followed by a run."""
    inner = written(format, 500, NEW) + b"tail"
    values = [inner, written(format, 7, NEW)[:-1], b"x", again(format, 7, NEW) + b"tail"]
    assert read(format, 7, written(format, 7, values)) == (values, [])
