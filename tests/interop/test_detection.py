"""Detection: one log, a topic, a server's data, an unknown directory, or an ambiguous one."""

from __future__ import annotations

from pathlib import Path

import pytest

import sawlog
from sawlog import Log, interop
from sawlog.errors import InvalidConfig, StorageError, UnknownFormat

from .files import lay
from .fixtures import FIXTURES, GUMLOG, LAMINARMQ, NAMES, PLAIN, RUSTLOG

every_layout = pytest.mark.parametrize(("format", "files", "first"), FIXTURES, ids=NAMES)


def seen(path: Path) -> tuple[str, str, list[tuple[str, str | None, int]]]:
    """Format, kind and places, these below `path`."""
    found = interop.detect(path)
    assert found is not None
    assert found.why
    assert found.path == str(path)
    places = [(str(Path(place.path).relative_to(path)), place.topic, place.partition) for place in found.logs]
    return found.format, found.kind, places


@every_layout
def test_a_log_is_recognised(tmp_path: Path, format: str, files: dict[str, bytes], first: int) -> None:
    assert seen(lay(tmp_path, dict(files))) == (format, "partition", [(".", None, 0)])


@every_layout
def test_a_log_is_recognised_by_its_second_segment_if_the_first_is_empty(
    tmp_path: Path, format: str, files: dict[str, bytes], first: int
) -> None:
    width = 20 if format == "rustlog" else 1
    empty = {name.replace(name.split(".")[0], f"{0:0{width}d}"): b"" for name in files}
    found = interop.detect(lay(tmp_path, {**files, **empty}))
    assert found is not None
    assert (found.format, found.certain) == (format, True)


@pytest.mark.parametrize("format", ["laminarmq", "gumlog", "plain"])
def test_a_directory_of_logs_is_recognised(tmp_path: Path, format: str) -> None:
    files = {"laminarmq": LAMINARMQ, "gumlog": GUMLOG, "plain": PLAIN}[format]
    for name in ("b", "a"):
        lay(tmp_path / name, dict(files))
    lay(tmp_path / "c", {"notes.txt": b"nothing"})
    assert seen(tmp_path) == (format, "data", [("a", "a", 0), ("b", "b", 0)])


def test_rustlog_is_recognised_at_every_level(tmp_path: Path) -> None:
    for place in ("orders/partition-0", "orders/partition-10", "orders/partition-2", "stock/partition-0"):
        lay(tmp_path / "data/topics" / place, dict(RUSTLOG))
    orders = [("partition-0", "orders", 0), ("partition-2", "orders", 2), ("partition-10", "orders", 10)]
    assert seen(tmp_path / "data/topics/orders/partition-2") == ("rustlog", "partition", [(".", "orders", 2)])
    assert seen(tmp_path / "data/topics/orders") == ("rustlog", "topic", orders)
    everything = [*((f"orders/{path}", *rest) for path, *rest in orders), ("stock/partition-0", "stock", 0)]
    assert seen(tmp_path / "data/topics") == ("rustlog", "data", everything)
    assert seen(tmp_path / "data") == ("rustlog", "data", [(f"topics/{path}", *rest) for path, *rest in everything])


def test_rustlog_is_recognised_in_its_newer_layout(tmp_path: Path) -> None:
    lay(tmp_path / "topics/orders/partitions/3", dict(RUSTLOG))
    assert seen(tmp_path) == ("rustlog", "data", [("topics/orders/partitions/3", "orders", 3)])
    assert seen(tmp_path / "topics/orders/partitions/3") == ("rustlog", "partition", [(".", "orders", 3)])


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"a.txt": b"hello"},
        {"0.store": b"neither one nor the other, whatever it may be", "0.index": b"x" * 64},
        {"00000000000000000000.log": b"no record begins like this"},
        {"topics": b"a file"},
        {"7.index": b""},
    ],
)
def test_unknown_directories_are_not_recognised(tmp_path: Path, files: dict[str, bytes | str]) -> None:
    lay(tmp_path, files)
    assert interop.detect(tmp_path) is None
    with pytest.raises(UnknownFormat, match="laminarmq"):
        interop.open(tmp_path)
    with Log.in_memory() as log, pytest.raises(UnknownFormat):
        interop.import_log(tmp_path, log)


def test_sawlog_stores_are_refused_as_a_source(tmp_path: Path) -> None:
    with sawlog.open(tmp_path) as store:
        store.create_topic("orders").append(b"a")
    with pytest.raises(UnknownFormat, match=r"sawlog\.open"):
        interop.detect(tmp_path)


def test_a_sawlog_partition_is_not_mistaken_for_rustlog(tmp_path: Path) -> None:
    """Both name their files with 20 digits and .log."""
    with Log.open(tmp_path) as log:
        log.append_many([b"a"] * 100)
    assert interop.detect(tmp_path, format="rustlog") is None


def test_an_ambiguous_log_requires_a_format(tmp_path: Path) -> None:
    """Empty files look the same in every format."""
    lay(tmp_path, {"0.store": b"", "0.index": b""})
    with pytest.raises(UnknownFormat, match="laminarmq or gumlog"):
        interop.detect(tmp_path)
    for format in ("laminarmq", "gumlog"):
        found = interop.detect(tmp_path, format=format)
        assert found is not None
        assert not found.certain
        with interop.open(tmp_path, format=format) as log:
            assert (len(log), list(log)) == (0, [])


def test_open_trusts_the_given_format(tmp_path: Path) -> None:
    """Detection fails if the first records are damaged; the caller may know better."""
    damaged = bytes([0xFF]) + GUMLOG["300.store"][1:]
    lay(tmp_path, {**GUMLOG, "300.store": damaged})
    assert interop.detect(tmp_path) is None
    with interop.open(tmp_path, format="gumlog", damage="skip") as log:
        assert [record.value for record in log] == [b"", b"log"]


def test_a_directory_without_segments_is_not_a_log_of_the_given_format(tmp_path: Path) -> None:
    for format in ("laminarmq", "rustlog", "gumlog", "plain"):
        with pytest.raises(sawlog.errors.LogNotFound, match=format):
            interop.open(tmp_path, format=format)
        with Log.in_memory() as log, pytest.raises(sawlog.errors.LogNotFound):
            interop.import_log(tmp_path, log, format=format)


def test_an_import_trusts_the_given_format(tmp_path: Path) -> None:
    lay(tmp_path, {**GUMLOG, "300.store": bytes([0xFF]) + GUMLOG["300.store"][1:]})
    with Log.in_memory() as log:
        report = interop.import_log(tmp_path, log, format="gumlog", damage="skip")
        assert [record.value for record in log] == [b"", b"log"]
    assert len(report.logs[0].report.lost) == 1


def test_unknown_formats_are_refused(tmp_path: Path) -> None:
    names = [each.name for each in interop.formats()]
    assert {"laminarmq", "rustlog", "gumlog", "plain"} <= set(names)
    assert len(set(names)) == len(names)
    assert all(each.title for each in interop.formats())
    with pytest.raises(InvalidConfig, match="laminarmq"):
        interop.open(tmp_path, format="gumlogg")


def test_a_path_that_is_not_a_directory_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "missing"):
        with pytest.raises(StorageError):
            interop.detect(path)
        with pytest.raises(StorageError):
            interop.open(path)


def test_a_closed_log_raises(tmp_path: Path) -> None:
    log = interop.open(lay(tmp_path, dict(RUSTLOG)))
    scan = iter(log)
    assert next(scan).value == b"hello"
    log.close()
    log.close()
    with pytest.raises(sawlog.errors.LogClosed):
        log.read(7)
    with pytest.raises(sawlog.errors.LogClosed):
        list(log)


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    lay(tmp_path / "real", dict(RUSTLOG))
    (tmp_path / "links").mkdir()
    for path in (tmp_path / "real").iterdir():
        (tmp_path / "links" / path.name).symlink_to(path)
    assert interop.detect(tmp_path / "links", format="rustlog") is None
    found = interop.detect(tmp_path / "links")
    assert found is None or not found.certain


# --- targets of an export


def test_an_export_requires_a_new_or_empty_directory(tmp_path: Path) -> None:
    with Log.in_memory() as log:
        log.append(b"a")
        (tmp_path / "empty").mkdir()
        interop.export_log(log, tmp_path / "empty", format="plain")
        interop.export_log(log, tmp_path / "new/below/that", format="plain")
        (tmp_path / "file").write_bytes(b"")
        for taken in ("empty", "new", "file"):
            with pytest.raises(sawlog.errors.ExportRefused):
                interop.export_log(log, tmp_path / taken, format="plain")
        for strange in ("/", ".", ".."):
            with pytest.raises(sawlog.errors.ExportRefused):
                interop.export_log(log, strange, format="plain")
    assert not list(tmp_path.rglob("*.partial"))


def test_leftovers_of_an_interrupted_export_are_replaced(tmp_path: Path) -> None:
    lay(tmp_path / "out.partial", {"0.store": b"half"})
    with Log.in_memory() as log:
        log.append(b"a")
        interop.export_log(log, tmp_path / "out", format="plain")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_range_of_offsets_can_be_exported(tmp_path: Path) -> None:
    with Log.in_memory() as log:
        log.append_many([b"%d" % i for i in range(10)])
        report = interop.export_log(log, tmp_path / "out", format="gumlog", start=3, end=7)
        assert (report.start_offset, report.next_offset, report.records) == (3, 7, 4)
        with pytest.raises(sawlog.errors.OffsetOutOfRange):
            interop.export_log(log, tmp_path / "more", format="gumlog", start=11)
    with interop.open(tmp_path / "out") as found:
        assert [(record.offset, record.value) for record in found] == [(i, b"%d" % i) for i in range(3, 7)]
