"""The log in `examples/segmented_log.py` keeps its promises, and the chapter about it shows its code and its output."""

from __future__ import annotations

import importlib.util
import re
import sys
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent, indent
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sawlog

from .test_examples import PRINTED

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "examples" / "segmented_log.py"
CHAPTER = (ROOT / "docs" / "how-a-segmented-log-works.md").read_text(encoding="utf-8")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("segmented_log_example", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


EXAMPLE = load()
SMALL = EXAMPLE.Config(segment_bytes=100, overflow_bytes=50, retention_s=60.0, cached_indexes=1)

VALUES = st.binary(max_size=40)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), VALUES),
        st.tuples(st.just("stream"), st.lists(VALUES, max_size=8)),
        st.tuples(st.just("fail"), st.lists(VALUES, max_size=3)),
        st.tuples(st.just("truncate"), st.integers(0, 30)),
        st.tuples(st.just("crash"), VALUES),
    ),
    max_size=30,
)


def failing(chunks: list[bytes]) -> Any:
    yield from chunks
    raise ConnectionError("the source is gone")


@given(steps=STEPS)
def test_the_log_holds_what_was_acknowledged_whatever_happens(steps: list[tuple[str, Any]]) -> None:
    with TemporaryDirectory() as directory:
        log = EXAMPLE.SegmentedLog(Path(directory), SMALL)
        expected: list[bytes] = []
        for action, argument in steps:
            if action == "append":
                assert log.append(argument) == len(expected)
                expected.append(argument)
            elif action == "stream":
                try:
                    log.append_stream(argument)
                except EXAMPLE.StreamTooLong:
                    assert sum(map(len, argument)) > SMALL.overflow_bytes
                else:
                    expected.append(b"".join(argument))
            elif action == "fail":
                with pytest.raises((ConnectionError, EXAMPLE.StreamTooLong)):
                    log.append_stream(failing(argument))
            elif action == "truncate":
                log.truncate(argument)
                del expected[argument:]
            else:
                log.close()
                with log.write_segment.store.path.open("ab") as store, log.write_segment.index.path.open("ab") as index:
                    store.write(bytes(EXAMPLE.HEADER.size) + argument)
                    index.write(argument)
                log = EXAMPLE.SegmentedLog(Path(directory), SMALL)
            assert log.next_offset == len(expected)
        assert list(log.scan()) == list(enumerate(expected))
        assert all(after.base == before.next_offset for before, after in pairwise(log.segments))
        log.close()


def test_a_record_that_is_cut_at_any_byte_is_dropped_and_the_ones_before_it_stay(tmp_path: Path) -> None:
    log = EXAMPLE.SegmentedLog(tmp_path / "whole")
    ends = []
    for size in (3, 0, 5):
        log.append(b"x" * size)
        ends.append(log.write_segment.size)
    log.close()
    whole = log.write_segment.store.path.read_bytes()
    for cut in range(len(whole) + 1):
        place = tmp_path / str(cut)
        place.mkdir()
        (place / log.write_segment.store.path.name).write_bytes(whole[:cut])
        reopened = EXAMPLE.SegmentedLog(place)
        assert reopened.next_offset == sum(end <= cut for end in ends)
        reopened.close()


def test_retention_removes_whole_segments_and_never_the_last(tmp_path: Path) -> None:
    log = EXAMPLE.SegmentedLog(tmp_path, SMALL)
    for number in range(50):
        log.append(b"record %d" % number)
    before = len(log.segments)
    assert log.remove_expired(now=0.0) == 0
    assert log.remove_expired(now=1e12) == before - 1
    assert [offset for offset, _ in log.scan()] == list(range(log.start_offset, 50))
    with pytest.raises(EXAMPLE.OutOfRange):
        log.read(0)
    log.close()


def test_the_indexes_of_the_segments_that_were_read_last_are_cached(tmp_path: Path) -> None:
    log = EXAMPLE.SegmentedLog(tmp_path, SMALL)
    for number in range(50):
        log.append(b"record %d" % number)
    for offset in (0, 49, 1):
        log.read(offset)
        assert [each for each in log.segments if each.index.cached is not None] == [log.segment_of(offset)]
    log.close()


def test_the_chapter_shows_the_code_and_the_output() -> None:
    code = SOURCE.read_text(encoding="utf-8")
    excerpts = re.findall(r"```python\n(.*?)```", CHAPTER, re.DOTALL)
    assert len(excerpts) >= 8
    for excerpt in excerpts:
        for function in re.split(r"\n\n\n?(?=def |@)", excerpt.strip()):
            assert any(indent(function, space) in code for space in ("", "    ")), function
    assert PRINTED["segmented_log.py"] in dedent(CHAPTER)


def test_the_members_that_the_chapter_names_exist() -> None:
    named = set(re.findall(r"`log\.(\w+)", CHAPTER))
    assert len(named) > 10
    assert [name for name in sorted(named) if not hasattr(sawlog.Log, name)] == []
    settings = set(re.findall(r"`(\w+_(?:bytes|ms|segments|cache))`", CHAPTER))
    known = {*sawlog.LogConfig.__dataclass_fields__, *vars(sawlog.Log), "max_bytes", "num_index_cached_read_segments"}
    assert len(settings & known) > 8
    assert settings <= known
