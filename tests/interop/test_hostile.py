"""Every truncation and every flipped bit of a small log of each system, and random damage to larger ones.

For any bytes: only `ForeignDamage` is raised; offsets increase; the records before an error are those that `skip`
returns; every difference from the original is in the report. In formats with a checksum, no record is returned that was
never written.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog import Log, LogConfig, interop
from sawlog.errors import ForeignDamage
from sawlog.interop import ForeignLog
from sawlog.storage import MemoryDirectory

from ..batch.strategies import share
from ..log.sampling import some_of, some_or_all
from .files import pairs
from .fixtures import FIXTURES, LAMINARMQ_64, NAMES, VALUES

Pairs = list[tuple[int, bytes | None]]
Files = dict[str, bytes]

every_layout = pytest.mark.parametrize(("format", "files", "first"), FIXTURES, ids=NAMES)
every_format = pytest.mark.parametrize("format", ["laminarmq", "rustlog", "gumlog", "plain"])


def in_memory(files: Files) -> MemoryDirectory:
    """A directory with these files."""
    directory = MemoryDirectory()
    for name, content in files.items():
        directory.create(name).append(content)
    return directory


def until_error(log: ForeignLog) -> tuple[Pairs, ForeignDamage | None]:
    """Return the records before the error, and the error, if any."""
    found: Pairs = []
    try:
        for record in log:
            found.append((record.offset, record.value))
    except ForeignDamage as error:
        return found, error
    return found, None


def look(files: Files, format: str) -> tuple[Pairs, bool]:
    """Read a log in every mode; return its records, and True if there are findings."""
    with interop.open(in_memory(files), format=format, damage="skip") as log:
        found = pairs(log)
        report = log.report
        following = log.next_offset
    offsets = [offset for offset, _ in found]
    assert offsets == sorted(set(offsets))
    assert following >= (offsets[-1] + 1 if offsets else 0)
    with interop.open(in_memory(files), format=format) as log:
        given_, error = until_error(log)
        assert given_ == found[: len(given_)]
        assert (error is None) == (not report.lost)
        if error is None:
            assert given_ == found
    try:
        log = interop.open(in_memory(files), format=format, strict=True)
    except ForeignDamage:
        assert not report.ok
    else:
        given_, error = until_error(log)
        assert given_ == found[: len(given_)]
        assert (error is None) == all(finding.kind is interop.Kind.UNKNOWN_FILE for finding in report)
    return found, not report.ok


def truncations(files: Files) -> Iterator[tuple[str, Files]]:
    """Each file cut at each byte."""
    for name, content in files.items():
        for size in range(len(content)):
            yield name, {**files, name: content[:size]}


def flips(files: Files) -> Iterator[tuple[str, Files]]:
    """Each bit of each file."""
    for name, content in files.items():
        for bit in range(8 * len(content)):
            changed = bytearray(content)
            changed[bit // 8] ^= 1 << bit % 8
            yield name, {**files, name: bytes(changed)}


#: Truncations exactly after a record, which leave no trace.
BETWEEN_RECORDS = {"00000000000000000007.log": (17, 29), "4096.store": (21, 37)}


@some_or_all(25)
@every_layout
def test_every_truncation_is_recovered_or_refused(format: str, files: Files, first: int, most: int | None) -> None:
    whole = list(enumerate(VALUES, first))
    for name, cut in some_of(truncations(files), most):
        found, wrong = look(cut, format)
        if name.endswith(".index") and format != "laminarmq":
            assert found == whole, "an index is not needed"
        else:
            assert found == whole[: len(found)]
            size = len(cut[name])
            assert wrong or (size == 0 and len(files) == 1) or size in BETWEEN_RECORDS.get(name, ())


@some_or_all(30)
@every_layout
def test_every_flipped_bit_is_recovered_or_refused(format: str, files: Files, first: int, most: int | None) -> None:
    whole = list(enumerate(VALUES, first))
    for name, changed in some_of(flips(files), most):
        if files is LAMINARMQ_64 and name.endswith(".index"):
            continue  # covered with 32-bit indices
        found, wrong = look(changed, format)
        if format == "laminarmq":
            assert set(found) <= set(whole)
        elif format == "plain":
            assert [value for _, value in found] in _subsequences(VALUES)
        if found != whole and not wrong:
            assert format in ("rustlog", "gumlog"), "there is a checksum"
            assert _one_bit_apart(found, whole), "only the content of a value can change unnoticed"


def _subsequences(values: list[bytes]) -> list[list[bytes]]:
    return [[value for i, value in enumerate(values) if mask >> i & 1] for mask in range(1 << len(values))]


def _one_bit_apart(found: Pairs, whole: Pairs) -> bool:
    assert [offset for offset, _ in found] == [offset for offset, _ in whole]
    left, right = (b"".join(value or b"" for _, value in each) for each in (found, whole))
    return len(left) == len(right) and sum((a ^ b).bit_count() for a, b in zip(left, right, strict=True)) == 1


@some_or_all(10)
@every_layout
def test_every_truncated_log_can_be_imported(format: str, files: Files, first: int, most: int | None) -> None:
    for _, cut in some_of(truncations(files), most):
        with interop.open(in_memory(cut), format=format, damage="skip") as log, Log.in_memory() as mine:
            interop.import_log(log, mine)
            assert [(record.offset, record.value) for record in mine] == pairs(log)
            assert mine.next_offset == log.next_offset


# --- larger ones


@cache
def written(format: str) -> Files:
    """Some hundred records in a few segments."""
    with TemporaryDirectory() as place, Log.in_memory(LogConfig(initial_offset=100)) as log:
        log.append_many(list(VALUES_WRITTEN.values()))
        interop.export_log(log, f"{place}/out", format=format, segment_bytes=3000)
        return {path.name: path.read_bytes() for path in Path(f"{place}/out").iterdir()}


VALUES_WRITTEN = {100 + i: b"%d " % i * (i % 9) for i in range(250)}

damages = st.lists(
    st.tuples(
        st.integers(0, 2**20),  # which file
        st.integers(0, 2**20),  # which byte
        st.sampled_from(["flip", "cut", "insert", "delete", "zero", "noise", "swap"]),
        st.integers(1, 40),
    ),
    min_size=1,
    max_size=4,
)


def damaged(files: Files, what: list[tuple[int, int, str, int]]) -> Files:
    """Return the files with some damage."""
    made = {name: bytearray(content) for name, content in sorted(files.items())}
    for which, where, how, size in what:
        name = sorted(made)[which % len(made)]
        content = made[name]
        at = where % (len(content) + 1)
        if how == "flip" and content:
            content[at % len(content)] ^= 1 << size % 8
        elif how == "cut":
            del content[at:]
        elif how == "insert":
            content[at:at] = bytes((where * 7 + i * 31) % 256 for i in range(size))
        elif how == "delete":
            del content[at : at + size]
        elif how == "zero":
            content[at : at + size] = bytes(len(content[at : at + size]))
        elif how == "noise":
            content[at : at + size] = bytes((where * 13 + i * 97) % 256 for i in range(len(content[at : at + size])))
        elif how == "swap":
            content[at:] = content[at + size :] + content[at : at + size]
    return {name: bytes(content) for name, content in made.items()}


@every_format
@share(0.08)
@given(what=damages)
def test_random_damage_is_recovered_or_refused(format: str, what: list[tuple[int, int, str, int]]) -> None:
    files = damaged(written(format), what)
    found, _ = look(files, format)
    with interop.open(in_memory(files), format=format, damage="skip") as log:
        unchecked = any(finding.kind is interop.Kind.INDEX_BEHIND for finding in log.report)
    if format in ("laminarmq", "plain") and not unchecked:  # without an entry there is no checksum
        assert {value for _, value in found} <= set(VALUES_WRITTEN.values())


@every_format
@given(content=st.binary(max_size=200), index=st.binary(max_size=100))
@share(0.08)
def test_noise_is_recovered_or_refused(format: str, content: bytes, index: bytes) -> None:
    digits = 20 if format == "rustlog" else 1
    suffix = ".log" if format == "rustlog" else ".store"
    look({f"{0:0{digits}d}{suffix}": content, f"{0:0{digits}d}.index": index}, format)
