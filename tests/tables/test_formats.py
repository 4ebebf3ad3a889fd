"""Guarantees of every format: files and marks in one commit, by reference; columns that grow; files that are merged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from sawlog import tables
from sawlog.errors import InvalidConfig
from sawlog.store.table_info import TableInfo
from sawlog.tables import columns
from sawlog.tables import files as merging
from sawlog.tables.columns import RECORD
from sawlog.tables.files import described
from sawlog.tables.formats import Mark, Span, TableIdentity

from .conftest import IDENTITY, START, Lake, places

WITH_WHO = RECORD.append(pa.field("who", pa.string()))


def offsets(partition: int, first: int, last: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(first, last)]


def test_a_commit_has_files_and_marks_together(lake: Lake) -> None:
    assert lake.table.snapshot() is None
    lake.commit(lake.write(offsets(0, 0, 5)), lake.write(offsets(1, 0, 3)), ends={0: 5, 1: 3})
    lake.commit(lake.write(offsets(0, 5, 9)), ends={0: 9, 1: 3})
    found = tables.snapshot(lake.info)
    assert (found.ends, found.rows, found.topic_id, found.topic) == ({0: 9, 1: 3}, 12, "id-1", "orders")
    assert found.marks[0] == Mark(0, 9, 3)
    assert found.schema == RECORD
    assert places(lake.read()) == dict.fromkeys([*offsets(0, 0, 9), *offsets(1, 0, 3)], 1)


def test_files_are_committed_where_they_are_and_not_copied(lake: Lake) -> None:
    file = lake.write(offsets(0, 0, 5))
    lake.commit(file, ends={0: 5})
    assert tables.snapshot(lake.info).files == [file.path]
    assert len(list(Path(lake.info.location).rglob("*.parquet"))) == 1


def test_a_snapshot_knows_the_ranges_of_its_files(lake: Lake) -> None:
    lake.commit(lake.write(offsets(1, 10, 20)), ends={0: 0, 1: 20})
    [file] = tables.snapshot(lake.info).data
    assert (file.partition, file.offsets, file.rows) == (1, Span(10, 19), 10)
    assert file.times_us is not None
    first, last = (round((START.timestamp() + 3600 * offset) * 1_000_000) for offset in (10, 19))
    assert file.times_us.first <= first
    assert last <= file.times_us.last < last + 1000
    assert file.is_within({1: 20})
    assert not file.is_within({1: 19})


def test_marks_may_move_without_a_file(lake: Lake) -> None:
    lake.commit(lake.write(offsets(0, 0, 5)), ends={0: 5})
    lake.commit(ends={0: 8})
    assert tables.snapshot(lake.info).ends == {0: 8}
    assert len(lake.read()) == 5


def test_new_columns_are_null_in_older_rows(lake: Lake) -> None:
    deep = WITH_WHO.append(columns.parsed("place struct<a:int>").field(0))
    deeper = WITH_WHO.append(columns.parsed("place struct<a:int,b:string>").field(0))
    lake.commit(lake.write(offsets(0, 0, 2)), ends={0: 2})
    lake.commit(lake.write(offsets(0, 2, 4), deep, who="x", place={"a": 1}), ends={0: 4}, schema=deep)
    lake.commit(lake.write(offsets(0, 4, 5), deeper, place={"a": 1, "b": "z"}), ends={0: 5}, schema=deeper)
    assert tables.snapshot(lake.info).schema == deeper
    read = sorted(lake.read(), key=lambda row: row["offset"])
    assert [row.get("who") for row in read] == [None, None, "x", "x", None]
    assert read[4]["place"] == {"a": 1, "b": "z"}


def test_a_column_that_becomes_wider_keeps_all_values(lake: Lake) -> None:
    narrow = RECORD.append(pa.field("n", pa.int32()))
    wide = RECORD.append(pa.field("n", pa.int64()))
    old = lake.write(offsets(0, 0, 2), narrow, n=7)
    lake.commit(old, ends={0: 2}, schema=narrow)
    if lake.info.format == "delta":  # its files are rewritten
        lake.commit(lake.write(offsets(0, 0, 2), wide, n=7), ends={0: 2}, schema=wide, removed=[old], moved=True)
    lake.commit(lake.write(offsets(0, 2, 3), wide, n=1 << 40), ends={0: 3}, schema=wide)
    assert tables.snapshot(lake.info).schema == wide
    assert sorted(row["n"] for row in lake.read()) == [7, 7, 1 << 40]
    assert tables.snapshot(lake.info).fields == {"n": "n"}


def test_a_merge_replaces_files_and_leaves_marks_and_rows_alone(lake: Lake) -> None:
    for number in range(4):
        lake.commit(lake.write(offsets(0, number, number + 1)), ends={0: number + 1})
    before = tables.snapshot(lake.info)
    [group] = merging.groups(before.data, 1 << 30)
    root = Path(lake.info.location) / "data" / "merged"
    merging.write_together([each.path for each in group], root / "m.parquet", before.schema)
    made = described(root / "m.parquet", root)
    lake.commit(made, ends=before.ends, removed=group, moved=True)
    after = tables.snapshot(lake.info)
    assert (after.files, after.ends) == ([made.path], {0: 4})
    assert places(lake.read()) == dict.fromkeys(offsets(0, 0, 4), 1)
    assert all(Path(path).exists() for path in before.files)  # for readers of the older version


def test_old_files_are_removed_when_no_reader_should_need_them(lake: Lake) -> None:
    if lake.info.format == "iceberg":
        pytest.skip("when the snapshots of an Iceberg table expire is its owner's decision")
    old = lake.write(offsets(0, 0, 2))
    lake.commit(old, ends={0: 2})
    lake.commit(lake.write(offsets(0, 0, 2)), ends={0: 2}, removed=[old], moved=True)
    assert lake.table.clean(3600.0) == 0
    assert Path(old.path).exists()
    assert lake.table.clean(0.0) == 1
    assert not Path(old.path).exists()
    assert len(lake.read()) == 2


def test_a_table_may_be_divided_by_date(lake: Lake) -> None:
    identity = replace(IDENTITY, by=("date",))
    files = [lake.write(offsets(0, day * 24, day * 24 + 3), by=("date",)) for day in range(2)]
    lake.commit(*files, ends={0: 27}, identity=identity)
    found = tables.snapshot(lake.info)
    assert (found.by, found.schema, found.rows) == (("date",), RECORD, 6)
    assert len({tuple(each.divided.values()) for each in found.data}) == 2
    assert len(lake.read()) == 6


def test_the_quarantine_is_a_table_beside_it(lake: Lake) -> None:
    other = tables.quarantine_of(lake.info)
    lake.commit(lake.write(offsets(0, 0, 2)), ends={0: 2})
    assert other.location == f"{lake.info.location}_quarantine"
    assert tables.open_table(other).snapshot() is None


# --- refusals


def test_a_table_that_is_gone_says_what_to_do(lake: Lake) -> None:
    with pytest.raises(InvalidConfig, match="run `sawlog pipeline table` again"):
        tables.snapshot(lake.info)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="delta, iceberg, parquet"):
        tables.open_table(TableInfo("hudi", str(tmp_path)))


def test_the_delta_table_of_another_program_is_refused(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "orders"), pa.table({"a": [1]}))
    with pytest.raises(InvalidConfig, match="has not made"):
        tables.snapshot(TableInfo("delta", str(tmp_path / "orders")))


def test_a_delta_table_with_mapped_columns_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    lake.commit(lake.write(offsets(0, 0, 2)), ends={0: 2})
    edit_metadata(Path(lake.info.location), {"delta.columnMapping.mode": "name"})
    with pytest.raises(InvalidConfig, match=r"mapped to other names.*Another program has changed it"):
        tables.snapshot(lake.info)


def edit_metadata(table: Path, configuration: dict[str, str]) -> None:
    """Commit a change of the table's metadata, as another program would."""
    import json

    log = table / "_delta_log"
    first = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    [metadata] = [action for action in first if "metaData" in action]
    metadata["metaData"]["configuration"] = configuration
    (log / f"{1:020}.json").write_text(json.dumps(metadata) + "\n")


def test_an_iceberg_table_with_a_renamed_column_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "iceberg")
    lake.commit(lake.write(offsets(0, 0, 2), WITH_WHO), ends={0: 2}, schema=WITH_WHO)
    with lake.table._opened() as (_, table), table.update_schema() as update:  # type: ignore[attr-defined]
        update.rename_column("who", "name")
    with pytest.raises(InvalidConfig, match="renamed"):
        tables.snapshot(lake.info)


def test_an_iceberg_table_with_delete_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg does not write delete files; this is how it reports those of other programs."""
    from pyiceberg.table import FileScanTask

    lake = Lake(tmp_path, "iceberg")
    lake.commit(lake.write(offsets(0, 0, 2)), ends={0: 2})
    init = FileScanTask.__init__

    def with_deletes(self: FileScanTask, *given: object, **more: object) -> None:
        init(self, *given, **{**more, "delete_files": {object()}})  # type: ignore[arg-type]

    monkeypatch.setattr(FileScanTask, "__init__", with_deletes)
    with pytest.raises(InvalidConfig, match="delete files"):
        tables.snapshot(lake.info)


def test_marks_of_an_iceberg_table_survive_snapshots_of_others_and_their_expiry(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "iceberg")
    lake.commit(lake.write(offsets(0, 0, 2)), ends={0: 2})
    lake.commit(lake.write(offsets(0, 2, 4)), ends={0: 4})
    with lake.table._opened() as (_, table):  # type: ignore[attr-defined]
        table.add_files([lake.write(offsets(9, 0, 1)).path])
        assert tables.snapshot(lake.info).ends == {0: 4}
        for each in table.snapshots()[:-1]:
            table.maintenance.expire_snapshots().by_id(each.snapshot_id).commit()
    assert tables.snapshot(lake.info).ends == {0: 4}


def test_another_catalogue_of_iceberg_can_be_given(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake", "iceberg")
    given = {"type": "sql", "uri": f"sqlite:///{tmp_path / 'other.db'}", "warehouse": tmp_path.as_uri()}
    lake.info = replace(lake.info, catalog=given, name="shop.orders")
    lake.commit(lake.write(offsets(0, 0, 2)), ends={0: 2})
    assert tables.snapshot(lake.info).rows == 2
    assert not (tmp_path / "lake" / "catalog.db").exists()


def test_delta_keeps_its_marks_through_checkpoints_and_optimize(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    lake = Lake(tmp_path, "delta")
    for number in range(3):
        lake.commit(lake.write(offsets(0, number, number + 1)), ends={0: number + 1})
    table = DeltaTable(lake.info.location)
    table.optimize.compact()
    table.create_checkpoint()
    found = tables.snapshot(lake.info)
    assert (found.ends, len(found.files)) == ({0: 3}, 1)


def test_identity_is_that_of_the_first_commit(lake: Lake) -> None:
    lake.commit(lake.write(offsets(0, 0, 1)), ends={0: 1}, identity=TableIdentity("orders", "id-7"))
    assert tables.snapshot(lake.info).topic_id == "id-7"
