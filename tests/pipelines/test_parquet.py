"""Small files are put together so that a death at any step leaves every record once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sawlog.pipelines.export import ParquetTarget
from sawlog.storage import FileDirectory, checksummed

NAME = "0123456789abcdef"


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[FileDirectory]:
    made = FileDirectory(tmp_path / "out" / "_sawlog")
    yield made
    made.close()


@pytest.fixture
def small(notes: FileDirectory) -> list[Path]:
    """Four files of one row each, in two directories."""
    root = Path(notes.path).parent
    made = []
    for number in range(4):
        path = root / f"date=2026-01-0{1 + number // 2}" / f"01234567-{number:010d}-00000.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"n": [number]}), path)
        made.append(path)
    return made


def found(notes: FileDirectory) -> list[int]:
    root = Path(notes.path).parent
    return sorted(
        n for path in root.glob("date=*/*.parquet") for n in pq.read_table(path, partitioning=None)["n"].to_pylist()
    )


def test_files_of_one_directory_become_one(notes: FileDirectory, small: list[Path]) -> None:
    target = ParquetTarget(notes, NAME, ("date",), 1 << 20)
    target.compact()
    assert (target.merged_files, target.new_files) == (4, 2)
    assert not any(path.exists() for path in small)
    assert found(notes) == [0, 1, 2, 3]
    target.compact()
    assert target.new_files == 2


def test_files_of_different_columns_stay_apart(notes: FileDirectory, small: list[Path]) -> None:
    pq.write_table(pa.table({"n": [1], "more": ["x"]}), small[1])
    ParquetTarget(notes, NAME, ("date",), 1 << 20).compact()
    assert small[0].exists()
    assert small[1].exists()
    assert found(notes) == [0, 1, 2, 3]


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_death_after_the_new_file_is_there_removes_the_old_ones(
    notes: FileDirectory, small: list[Path], gone: int
) -> None:
    made = small[0].with_name("01234567-0000000001-merged-aaaaaaaa.parquet")
    pq.write_table(pa.table({"n": [0, 1]}), made)
    note(notes, made, small)
    for path in small[:gone]:
        path.unlink()
    ParquetTarget(notes, NAME, ("date",), 1 << 20)
    assert found(notes) == [0, 1, 2, 3]
    assert not notes.exists("merge")


def test_a_death_before_the_new_file_is_there_leaves_the_old_ones(notes: FileDirectory, small: list[Path]) -> None:
    note(notes, small[0].with_name("01234567-0000000001-merged-aaaaaaaa.parquet"), small)
    ParquetTarget(notes, NAME, ("date",), 1 << 20)
    assert found(notes) == [0, 1, 2, 3]
    assert not notes.exists("merge")


def note(notes: FileDirectory, made: Path, small: list[Path]) -> None:
    fields = {"directory": made.parent.name, "made": made.name, "replaced": [path.name for path in small[:2]]}
    checksummed.store(notes, "merge", fields)
