"""A system that is killed within a record, started again, and appends behind the piece: RustLog from the segment's first
offset on, GUMLOG from the one after it on. What it acknowledged is read, and nothing that nobody wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sawlog import interop
from sawlog.interop import Kind
from sawlog.storage import MemoryDirectory

from .test_defects import framed, message

Write = Callable[[int, bytes], bytes]

OLD = [b"old %d" % i for i in range(3)]
#: Of many lengths, empty ones among them, so that wherever a torn record seems to end, some file has one end there.
NEW = [b"new %d" % i + b"." * (i * 7 % 23) for i in range(12)]


def rustlog(base: int, said: list[tuple[int, bytes]]) -> list[bytes]:
    return [framed(base + i, value) for i, value in said]


def gumlog(base: int, said: list[tuple[int, bytes]]) -> list[bytes]:
    return [message(base + i, value) for i, value in said]


def numbers(format: str, count: int, *, stuck: bool = False) -> list[int]:
    """Which offsets, from the base on, records get that are written after a restart."""
    if format == "rustlog":
        return list(range(count))
    return [1] * count if stuck else list(range(1, count + 1))


def again(format: str, base: int, values: list[bytes], *, stuck: bool = False) -> list[bytes]:
    """Records as they are written after a restart."""
    said = list(zip(numbers(format, len(values), stuck=stuck), values, strict=True))
    return (rustlog if format == "rustlog" else gumlog)(base, said)


def written(format: str, base: int, values: list[bytes]) -> list[bytes]:
    return (rustlog if format == "rustlog" else gumlog)(base, list(enumerate(values)))


def read(format: str, base: int, content: bytes, damage: interop.foreign.Damage = "stop") -> list[bytes | None]:
    directory = MemoryDirectory()
    name = f"{base:020d}.log" if format == "rustlog" else f"{base}.store"
    directory.create(name).append(content)
    with interop.open(directory, format=format, damage=damage) as log:
        found = [(record.offset, record.value) for record in log]
        assert [offset for offset, _ in found] == list(range(base, base + len(found)))
        assert not log.report.lost
        assert {finding.kind for finding in log.report} <= {Kind.MISSING_FILE, Kind.TORN_TAIL, Kind.RESTART}
    return [value for _, value in found]


def torn_files(torn: bytes) -> Iterator[tuple[list[bytes], list[bytes], bytes]]:
    """Old records, new ones, and what is left of the one between: every length of it."""
    for old in (OLD, OLD[:1], []):
        for count in (1, 2, 5, len(NEW)):
            for size in range(1, len(torn)):
                yield old, NEW[:count], torn[:size]


@pytest.mark.parametrize("base", [0, 7, 300])
@pytest.mark.parametrize("stuck", [False, True])
@pytest.mark.parametrize("format", ["rustlog", "gumlog"])
@pytest.mark.parametrize("fill", [b"t", b"\0"])
def test_what_was_written_behind_a_torn_record_is_read(format: str, stuck: bool, base: int, fill: bytes) -> None:
    """Wherever it was torn, and whatever its length seems to reach to."""
    for size in (5, 120):
        for old, new, piece in torn_files(written(format, base, [*[b""] * 3, fill * size])[3]):
            head = written(format, base, [*old, fill * size])[-1][: len(piece)]
            content = b"".join(written(format, base, old)) + head + b"".join(again(format, base, new, stuck=stuck))
            assert read(format, base, content) == [*old, *new], (size, len(old), len(new), len(head))
