"""The commands in docs/acls.md do what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from sawlog.broker.security.acls import OPERATIONS, word

from .documents import ROOT, steady, steps, take

PAGE = (ROOT / "docs" / "acls.md").read_text(encoding="utf-8")


def test_the_page_shows_what_its_commands_and_programs_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = steps(PAGE)
    assert len(found) == 5
    for step in found:
        if step.kind == "program":
            pytest.importorskip("confluent_kafka")
        assert steady(take(step, tmp_path)) == steady(step.shown), step.text


def test_the_page_names_operations_that_there_are() -> None:
    table = PAGE.partition("## Operations that clients need")[2]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| ")][1:]
    named = {operation.strip() for row in rows for operation in row[2].split(",")} - {"operation"}
    assert named <= {word(operation) for some in OPERATIONS.values() for operation in some}
    assert len(named) > 5
