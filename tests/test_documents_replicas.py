"""What docs/replicas.md shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sawlog.cli.app import command

from .documents import ROOT, make_program, run_program, shell_output, steps

PAGE = (ROOT / "docs" / "replicas.md").read_text(encoding="utf-8")


def steady(printed: str) -> list[str]:
    """What does not differ from run to run."""
    text = re.sub(r", [\d.]+ s$", ", T", printed, flags=re.MULTILINE)
    text = re.sub(r"(?<=3 records, )\d+ B", "N B", text)
    return re.sub(r"oldest moment is \S+", "oldest moment is T", text).strip().splitlines()


def test_the_page_is_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_program(tmp_path)
    monkeypatch.chdir(tmp_path)
    for step in steps(PAGE):
        printed = run_program(step.text) if step.kind == "program" else shell_output(tmp_path, step.text)
        assert steady(printed) == steady(step.shown), step.text


def test_every_option_that_the_page_names_exists() -> None:
    known = {
        option
        for name in ("replicate", "restore", "promote")
        for parameter in command().commands[name].params
        for option in parameter.opts
    }
    named = set(re.findall(r"`(--[a-z-]+)", PAGE))
    assert named <= known, named - known
