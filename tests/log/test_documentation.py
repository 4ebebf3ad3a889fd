"""Every public name exists and is documented; the error tree in the documentation is the real one."""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import io
import re
from pathlib import Path

import pytest

import sawlog
from sawlog import errors
from sawlog.log import recovery

from ..looping import for_each

ROOT = Path(__file__).parents[2]
PUBLIC = [name for name in sawlog.__all__ if not name.startswith("__")]


def test_public_names_exist() -> None:
    assert [name for name in sawlog.__all__ if not hasattr(sawlog, name)] == []


def test_public_names_are_sorted_and_complete() -> None:
    """Every name that the package imports is listed, once."""
    assert len(set(sawlog.__all__)) == len(sawlog.__all__)
    assert all(hasattr(sawlog, name) for name in sawlog.__all__)  # names are imported when they are first used
    imported = {
        name for name, value in vars(sawlog).items() if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert imported == set(PUBLIC) - {"errors"}


def test_public_names_are_documented() -> None:
    for name in PUBLIC:
        documented = inspect.getdoc(getattr(sawlog, name))
        assert documented, name
        assert not documented.startswith(f"{name}("), name  # the generated docstring of a dataclass


def members() -> list[tuple[str, str]]:
    found = []
    for name in PUBLIC:
        value = getattr(sawlog, name)
        if not inspect.isclass(value):
            continue
        for member, content in vars(value).items():
            if not member.startswith("_") and (callable(content) or isinstance(content, property | classmethod)):
                found.append((name, member))
    return found


def test_public_members_are_documented() -> None:
    found = members()
    assert len(found) > 100
    assert [each for each in found if not inspect.getdoc(getattr(getattr(sawlog, each[0]), each[1]))] == []


@pytest.mark.parametrize("name", ["Log", "Topic", "Store", "Consumer", "Groups", "Queue", "Transaction"])
def test_every_public_member_is_in_the_documents(name: str) -> None:
    """A member that no page mentions is an internal one, and its name begins with an underscore."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    words = set(re.findall(r"\w+", "".join(page.read_text() for page in pages if "adr" not in page.parts)))
    assert {member for member in dir(getattr(sawlog, name)) if not member.startswith("_")} <= words


# --- the drawn tree


def drawn() -> dict[str, tuple[str, str | None]]:
    """Name -> (name of the parent in the drawing, the standard library's type in brackets)."""
    assert errors.__doc__ is not None
    drawing = errors.__doc__.split("```")[1].strip("\n").splitlines()
    found: dict[str, tuple[str, str | None]] = {}
    path: list[tuple[int, str]] = []
    for line in drawing:
        match = re.match(r"^([│├└─ ]*)(\w+)(?: \((\w+)\))?", line)
        assert match, line
        indent, name, other = match.groups()
        while path and path[-1][0] >= len(indent):
            path.pop()
        assert path or not found, f"two roots: {line}"
        found[name] = (path[-1][1] if path else "", other)
        path.append((len(indent), name))
    return found


def test_every_error_is_drawn_and_every_drawn_error_is_there() -> None:
    defined = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, errors.SawlogError)
    }
    assert set(drawn()) == defined


@for_each("name", drawn())
def test_error_is_where_it_is_drawn(name: str) -> None:
    parent, other = drawn()[name]
    kind = getattr(errors, name)
    ours = [base.__name__ for base in kind.__bases__ if issubclass(base, errors.SawlogError)]
    assert ours == ([parent] if parent else [])
    others = [base for base in kind.__bases__ if not issubclass(base, errors.SawlogError)]
    others = [base.__base__ if base.__module__ == errors.__name__ else base for base in others]  # a private mixin
    if other is None:
        assert others in ([], [Exception])
    else:
        assert others == [getattr(builtins, other, None) or getattr(io, other)]


@for_each("name", drawn())
def test_error_can_be_pickled_and_shown(name: str) -> None:
    """They cross process borders: multiprocessing, Spark."""
    import pickle

    made = {
        "OffsetOutOfRange": lambda: errors.OffsetOutOfRange(5, 1, 3, "in x"),
        "NotYetVisible": lambda: errors.NotYetVisible(5, 1, 3, "x", in_transaction=True),
        "RecordRemoved": lambda: errors.RecordRemoved(5, 1, 9, 6),
        "OffsetMismatch": lambda: errors.OffsetMismatch(5, 1),
        "DirectoryLocked": lambda: errors.DirectoryLocked("/x", "me"),
        "CorruptBatch": lambda: errors.CorruptBatch("bad", path="/x", position=5, next_offset=7),
        "DecompressionLimit": lambda: errors.DecompressionLimit("bad", path="/x", position=5, next_offset=7),
    }.get(name, lambda: getattr(errors, name)("something"))()
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is type(made)
    assert str(again) == str(made) != ""
    for field in (
        "requested",
        "lowest",
        "next",
        "expected",
        "actual",
        "path",
        "holder",
        "position",
        "next_offset",
        "following",
        "in_transaction",
    ):
        assert getattr(again, field, None) == getattr(made, field, None)


# --- contents of reports and records


def test_records_can_be_pickled_compared_and_hashed() -> None:
    import pickle

    record = sawlog.Record(b"v", b"k", (("h", None),), 5, offset=3)
    again = pickle.loads(pickle.dumps(record))
    assert again == record
    assert hash(again) == hash(record)
    assert record != sawlog.Record(b"v", b"k", (("h", None),), 5, offset=4)
    assert "offset=3" in repr(record)
    with pytest.raises(AttributeError):
        record.value = b"other"


@pytest.mark.parametrize(
    "kind", [sawlog.LogConfig, sawlog.Interval, sawlog.Producer, sawlog.SegmentInfo, sawlog.Fetched]
)
def test_values_are_frozen(kind: type) -> None:
    if issubclass(kind, tuple):
        return
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_every_setting_says_why_one_would_change_it() -> None:
    source = inspect.getsource(sawlog.LogConfig).splitlines()
    for number, line in enumerate(source):
        if re.match(r"    \w+: .* = ", line):
            assert source[number - 1].lstrip().startswith("#:"), line


def test_every_place_and_action_of_recovery_is_described() -> None:
    for each in (*recovery.Where, *recovery.Action):
        assert len(each.value) > 5


DESIGNED = [
    *("open", "in_memory", "close", "remove", "sync", "seal", "verify"),
    *("append", "append_many", "append_arrow", "append_batches", "append_stream", "writer"),
    *("append_async", "append_stream_async"),
    *("read", "scan", "scan_arrow", "fetch", "reader", "follow", "offset_at", "__getitem__", "__len__", "__iter__"),
    *("lowest_offset", "next_offset", "written_offset", "durable_offset", "size_bytes", "segments"),
    *("truncate", "trim", "remove_expired", "apply_retention"),
]


@for_each("name", DESIGNED)
def test_designed_method_is_there(name: str) -> None:
    assert hasattr(sawlog.Log, name)


def test_log_tells_what_opening_it_found() -> None:
    assert isinstance(sawlog.Log.in_memory().recovery, sawlog.RecoveryReport)
