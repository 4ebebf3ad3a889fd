"""The README is true to the letter: its code runs, the files and the tests that it names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sawlog

from .looping import for_each

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")])


def test_every_python_block_runs_after_the_ones_before_it_and_again(tmp_path: Path) -> None:
    assert len(BLOCKS) >= 4
    again = [block for block in BLOCKS if "create_topic" in block]
    for block in [*BLOCKS, *again]:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        assert done.stdout or "print" not in block


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
    ("name", "flags"),
    [
        ("docs/async.md", ["-W", "error"]),
        ("docs/several-processes.md", ["-W", "error"]),
        ("docs/testing-kafka-programs.md", []),  # Kafka's clients warn
        ("docs/visibility.md", ["-W", "error"]),
    ],
)
def test_python_blocks_of_a_page_run(name: str, flags: list[str], tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        command = [sys.executable, *flags, "-c", block]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block}\n{done.stderr}"


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
