"""The sessions and programs of docs/tables.md print what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from . import warm
from .documents import PATIENCE_S, ROOT, blocks, sessions, typed

PAGE = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
#: Sizes and durations.
_VARIES = re.compile(r", [\d.]+ \w+, [\d.]+ s$")


def steady(lines: list[str]) -> list[str]:
    return sorted(_VARIES.sub("", line) for line in lines if line)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory where commands are run; they know where the store is, as the page says."""
    monkeypatch.chdir(tmp_path)
    assert "$ export SAWLOG_DATA=data\n" in PAGE
    monkeypatch.setenv("SAWLOG_DATA", "data")
    return tmp_path


def test_the_sessions_print_what_the_page_shows(place: Path) -> None:
    shown = [session for block in blocks(PAGE, "console") for session in sessions(block)]
    assert len(shown) >= 8
    for command, expected in shown:
        if command.startswith("cat "):  # a reader only has the page
            Path(command.removeprefix("cat ")).write_text("\n".join(expected) + "\n")
        if not command.startswith("sawlog "):
            continue
        assert steady(typed(command)) == steady(expected), command


@pytest.mark.costly  # writes Delta and Iceberg tables
def test_the_python_of_the_page_runs(tmp_path: Path) -> None:
    for block in blocks(PAGE, "python"):
        done = warm.run(["-c", block], cwd=tmp_path, warnings=["error"], timeout=PATIENCE_S)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        assert "leaked" not in done.stderr  # what DuckDB says of a connection that is still open at the end
