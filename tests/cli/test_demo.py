"""`sawlog demo` really kills its writer, reports what it finds, suggests commands that work, and cleans up."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from sawlog.cli import demo
from sawlog.store.directory.store import DirectoryStore

from .conftest import PATIENCE_S, Cli, Program

COUNT = 5000


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def number_after(text: str, out: str) -> int:
    found = re.search(rf"^{text} +([\d,]+)$", out, re.MULTILINE)
    assert found, out
    return int(found[1].replace(",", ""))


# It starts two writers, and each command after it opens the store.
@pytest.mark.costly
@pytest.mark.parametrize("width", [80, pytest.param(120, marks=pytest.mark.slow)])
def test_demo_shows_that_nothing_is_lost_and_suggests_commands_that_work(
    sawlog: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "_program", lambda: "/opt/my tools/sawlog")
    done = sawlog("demo", "-d", "kept", "--records", COUNT).ok()
    assert done.err == ""
    acknowledged = number_after("acknowledged before kill -9", done.out)
    assert COUNT // 2 <= acknowledged <= number_after("in the log after recovery", done.out)
    assert number_after("acknowledged, but missing or different", done.out) == 0
    assert "Acknowledged records, records/s" in done.out
    assert "Revenue by country, euros" in done.out
    assert "\x1b" not in done.out
    assert max(map(len, done.lines)) <= width
    with DirectoryStore.open("kept", "r") as store:
        values = [record.value for record in store["orders"].scan()]
    assert len(values) >= COUNT
    assert values == [demo.order(number) for number in range(len(values))]
    run_suggestions(sawlog, done.out, monkeypatch)


def run_suggestions(sawlog: Cli, out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alias, export, *commands = out.partition("Go on")[2].split("\n\n")[1].splitlines()
    assert alias == "alias sawlog='/opt/my tools/sawlog'"
    assert export == "export SAWLOG_DATA=kept"
    monkeypatch.setenv("SAWLOG_DATA", "kept")
    assert len(commands) >= 5
    for line in commands:
        program, *words = shlex.split(line, comments=True)
        assert program == "sawlog"
        assert sawlog(*words).ok().out, line


@pytest.mark.costly  # two writers
def test_demo_without_duckdb_uses_arrow_and_removes_its_directory(
    sawlog: Cli, temporary: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    found = sawlog("demo", "--records", COUNT, "--output", "json").ok().json
    assert COUNT <= found["records"] == sum(each["orders"] for each in found["countries"])
    assert found["query_with"] == "arrow"
    assert found["lost"] == 0
    assert COUNT // 2 <= found["acknowledged"] <= found["recovered"] <= found["records"]
    assert list(temporary.iterdir()) == []
    assert not data.exists()  # SAWLOG_DATA is the user's store, not the demo's


def test_sql_and_arrow_have_the_same_result(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path / "data") as store:
        topic = store.create_topic("orders", sawlog_schema=demo._SCHEMA)
        topic.append_many([demo.order(number) for number in range(1000)])
        assert store.sql(demo._QUERY).to_pylist() == demo._sums(topic).to_pylist()


@pytest.mark.costly  # two writers
def test_demo_reports_records_that_differ_from_the_acknowledged_ones(
    sawlog: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer is another process, so it appends the real orders; this process expects one other."""
    real = demo.order
    monkeypatch.setattr(demo, "order", lambda number: b"forged" if number == 7 else real(number))
    done = sawlog("demo", "-d", tmp_path / "kept", "--records", COUNT, "--output", "json")
    assert (done.code, done.json["lost"]) == (1, 1)
    assert (tmp_path / "kept").is_dir()


def test_demo_refuses_a_directory_that_is_not_empty(sawlog: Cli, orders: Path) -> None:
    before = sorted(orders.rglob("*"))
    assert "is not empty" in sawlog("demo", "-d", orders).failed(2)
    assert sorted(orders.rglob("*")) == before
    assert "is a file" in sawlog("demo", "-d", orders / "sawlog.json").failed(2)


@pytest.mark.parametrize("existed", [False, True])
def test_a_writer_that_fails_is_an_error_and_leaves_nothing(
    sawlog: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    path = tmp_path / "demo-data"
    if existed:
        path.mkdir()
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho OSError: no space >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    message = sawlog("demo", "-d", path, "--records", COUNT, "--output", "json").failed(1)
    assert message == "sawlog: the writer process ended early: OSError: no space"
    assert (list(path.iterdir()) if path.exists() else None) == ([] if existed else None)


@pytest.mark.costly  # the program and a writer
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupted_demo_leaves_no_process_and_no_file(program: Program, tmp_path: Path, number: int) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = program.start("demo", "--records", 10**9, env={"TMPDIR": str(temporary)})
    writers: list[psutil.Process] = []
    deadline = time.monotonic() + PATIENCE_S
    while not (writers and list(temporary.glob("*/topics/orders/partition-0/*.log"))):
        assert time.monotonic() < deadline, process.poll()
        writers = psutil.Process(process.pid).children()
        time.sleep(0.01)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (130 if number == signal.SIGINT else 128 + number, b"")
    assert list(temporary.iterdir()) == []
    # A writer that was just being started has no pipe and no store any more, and ends by itself.
    while any(map(_is_alive, writers)):
        assert time.monotonic() < deadline, writers
        time.sleep(0.01)


def _is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs: one that has ended waits for init, which may take its time."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_the_suggested_commands_are_in_the_documentation() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "see-it-work.md"
    assert "\n".join(demo._COMMANDS) in page.read_text(encoding="utf-8")
