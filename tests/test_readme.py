"""The README is true to the letter: its code runs, the files and the tests that it names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import sawlog

from .forking import Job, run_all
from .looping import for_each

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")])


def check_blocks(done: Iterable[tuple[str, subprocess.CompletedProcess[str]]]) -> None:
    for block, each in done:
        assert each.returncode == 0, f"{block}\n{each.stderr}"
        assert each.stdout or "print" not in block


def test_every_python_block_runs_after_the_ones_before_it_and_again(tmp_path: Path) -> None:
    assert len(BLOCKS) >= 4
    blocks = [*BLOCKS, *(block for block in BLOCKS if "create_topic" in block)]
    check_blocks(zip(blocks, run_all([Job(tmp_path, code=block) for block in blocks], "-W", "error"), strict=True))


@pytest.mark.slow  # seven seconds; the quick tier forks them
def test_every_python_block_runs_in_a_python_of_its_own(tmp_path: Path) -> None:
    for block in BLOCKS:
        command = [sys.executable, "-W", "error", "-c", block]
        check_blocks([(block, subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False))])


def test_the_shell_block_runs_after_the_first_python_block(tmp_path: Path) -> None:
    """As printed; only that `.venv/bin` has a program that calls this Python."""
    [block] = re.findall(r"^```\n(export PATH.*?)^```", README, re.DOTALL | re.MULTILINE)
    program = tmp_path / ".venv" / "bin" / "sawlog"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sawlog.cli "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(Path(sawlog.__file__).parents[1])}
    for command in ([sys.executable, "-c", BLOCKS[0]], ["sh", "-ec", block]):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "99999" in done.stdout
    assert "billing: 0 members" in done.stderr


@pytest.mark.parametrize(
    ("names", "flags"),
    [
        (["docs/async.md", "docs/several-processes.md", "docs/visibility.md"], ["-W", "error"]),
        (["docs/testing-kafka-programs.md"], []),  # Kafka's clients warn
    ],
    ids=["warnings are errors", "with Kafka's clients"],
)
def test_python_blocks_of_pages_run(names: list[str], flags: list[str], tmp_path: Path) -> None:
    """Those of a page in one directory, in their order."""
    blocks = [(name, block) for name in names for block in python_of(name)]
    assert {name for name, _ in blocks} == set(names)
    places = {name: tmp_path / Path(name).stem for name in names}
    for place in places.values():
        place.mkdir()
    done = run_all([Job(places[name], code=block) for name, block in blocks], *flags)
    for (name, block), each in zip(blocks, done, strict=True):
        assert each.returncode == 0, f"{name}\n{block}\n{each.stderr}"


def python_of(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


@pytest.mark.parametrize("command", sorted(set(re.findall(r"\bmake ([a-z-]+)", README))))
def test_every_make_target_that_is_named_exists(command: str) -> None:
    assert re.search(rf"^{command}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@for_each("document", DOCUMENTS)
def test_every_file_that_is_named_exists(document: Path) -> None:
    text = document.read_text()
    named = re.findall(r"\]\(([^)#:]+)\)", text)
    named += re.findall(r"`((?:tests|src|docs|benchmarks|examples|tools)/[\w./-]+\.(?:py|md))`", text)
    for name in named:
        assert (document.parent / name).exists() or (ROOT / name).exists(), f"{document.name} names {name}"
