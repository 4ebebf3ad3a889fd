"""The commands in docs/replicas.md do what the page shows."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sawlog.cli.program import command

from .documents import ROOT, make_program, steps, take

PAGE = (ROOT / "docs" / "replicas.md").read_text(encoding="utf-8")


def steady(printed: str) -> list[str]:
    """Replace the parts that vary from run to run."""
    text = re.sub(r", [\d.]+ s$", ", T", printed, flags=re.MULTILINE)
    text = re.sub(r"(?<=3 records, )\d+ B", "N B", text)
    return re.sub(r"oldest moment is \S+", "oldest moment is T", text).strip().splitlines()


@pytest.mark.costly  # runs all commands of the page
def test_the_page_is_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_program(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for shown in steps(PAGE):
        step = replace(shown, text=shown.text.replace("$PWD", str(tmp_path)))  # which only a shell would know
        printed = take(step, tmp_path)
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
