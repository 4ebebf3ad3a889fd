"""Rounds that die at any step lose and duplicate nothing, in each format. Without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sawlog import tables
from sawlog.pipelines import rounds
from sawlog.pipelines.rounds import RoundFiles, Rounds
from sawlog.pipelines.running import STATE_DIRECTORY
from sawlog.storage import FileDirectory
from sawlog.tables.columns import QUARANTINE, RECORD
from sawlog.tables.formats import Mark

from ..tables.conftest import IDENTITY, Lake, places

STEPS = ["begun", "written", "ready", "quarantined", "committed", "forgotten"]


class Died(BaseException):
    """Simulated death of the process."""


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.slow), "parquet"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake", request.param)


@pytest.fixture
def opened(lake: Lake) -> Iterator[Callable[[], Rounds]]:
    """Return a function that opens the rounds as a new process would."""
    notes = FileDirectory(Path(lake.info.location) / STATE_DIRECTORY)
    beside = tables.quarantine_of(lake.info)
    yield lambda: Rounds(notes, lake.table, tables.open_table(beside), IDENTITY)
    notes.close()


def write(work: RoundFiles, first: int, last: int) -> None:
    """Write files like Spark's tasks: even offsets into the table, odd ones into the quarantine."""
    for path, schema, rest in ((work.files, RECORD, 0), (work.bad_files, QUARANTINE, 1)):
        rows = [{"partition": 0, "offset": offset} for offset in range(first, last) if offset % 2 == rest]
        path.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schema), path / "part.parquet")
        pq.write_table(schema.empty_table(), path / "empty.parquet")


def a_round(opened: Rounds, last: int) -> None:
    """Run a round from the ends of the table."""
    found = opened._table.snapshot()
    first = 0 if found is None else found.ends[0]
    if first == last:
        return
    work = opened.begin()
    write(work, first, last)
    opened.finish(work, RECORD, {0: Mark(0, last, 1)})


def a_merge(opened: Rounds, before: tables.TableSnapshot) -> None:
    """Merge all files of the table into one."""
    work = opened.begin()
    work.files.mkdir(parents=True)
    pq.write_table(pa.concat_tables([pq.read_table(path) for path in before.files]), work.files / "m.parquet")
    opened.swap(work, before.data, before.schema, before.marks)


def all_places(lake: Lake) -> Any:
    beside = tables.snapshot(tables.quarantine_of(lake.info))
    return places(lake.read()) + places(row for path in beside.files for row in pq.read_table(path).to_pylist())


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("earlier", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_next_run_continues_where_a_round_has_died(
    lake: Lake, opened: Callable[[], Rounds], step: str, earlier: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if earlier:
        a_round(opened(), 10)

    def die(at: str) -> None:
        if at == step:
            raise Died

    with monkeypatch.context() as patched:
        patched.setattr(rounds, "reached", die)
        with pytest.raises(Died):
            a_round(opened(), 20)
    again = opened()
    again.recover()
    a_round(again, 30)  # the log has grown meanwhile
    assert all_places(lake) == dict.fromkeys([(0, offset) for offset in range(30)], 1)
    assert tables.snapshot(lake.info).ends == {0: 30}
    assert not (Path(lake.info.location) / STATE_DIRECTORY / "round").exists()
    there = {str(path) for path in Path(lake.info.location).rglob("*.parquet")}
    assert there == set(tables.snapshot(lake.info).files)


@pytest.mark.parametrize("step", ["begun", "merged", "swapped", "forgotten"])
def test_a_merge_that_dies_is_done_or_not_done(
    lake: Lake, opened: Callable[[], Rounds], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_round(opened(), 4)
    a_round(opened(), 8)
    before = tables.snapshot(lake.info)

    def die(at: str) -> None:
        if at == step:
            raise Died

    with monkeypatch.context() as patched:
        patched.setattr(rounds, "reached", die)
        with pytest.raises(Died):
            a_merge(opened(), before)
    again = opened()
    again.recover()
    found = tables.snapshot(lake.info)
    assert len(found.files) == (1 if step in ("swapped", "forgotten") else 2)
    assert all(Path(path).exists() for path in found.files)
    a_round(again, 12)
    assert all_places(lake) == dict.fromkeys([(0, offset) for offset in range(12)], 1)


def test_a_round_without_records_leaves_the_table_alone(lake: Lake, opened: Callable[[], Rounds]) -> None:
    a_round(opened(), 4)
    again = opened()
    result = again.finish(again.begin(), RECORD, {0: Mark(0, 9, 1)})
    assert (result.rows, result.quarantined) == (0, 0)
    assert tables.snapshot(lake.info).ends == {0: 4}


def test_records_that_are_all_bad_still_move_the_table_on(lake: Lake, opened: Callable[[], Rounds]) -> None:
    """Otherwise the next round would put them into the quarantine again."""
    a_round(opened(), 4)
    again = opened()
    work = again.begin()
    work.bad_files.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([{"partition": 0, "offset": 4}], QUARANTINE), work.bad_files / "b.parquet")
    again.finish(work, RECORD, {0: Mark(0, 5, 1)})
    assert tables.snapshot(lake.info).ends == {0: 5}
    assert all_places(lake) == dict.fromkeys([(0, offset) for offset in range(5)], 1)
