"""The README is true to the letter: its code runs, the files and the tests that it names exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import sawlog

from . import warm
from .cli.conftest import Cli
from .documents import run_program
from .looping import for_each

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 300.0
README = (ROOT / "README.md").read_text()
#: Python without Spark; tests/pipelines/test_printed_commands.py runs the rest.
BLOCKS = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "spark" not in block]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")])


#: Pages whose Python blocks run one after the other in one directory.
PAGES = ["docs/features.md", "docs/async.md", "docs/several-processes.md", "docs/visibility.md"]


# One process that forks for each block of five pages.
@pytest.mark.costly
def test_every_python_block_runs_after_the_ones_before_it(tmp_path: Path) -> None:
    """Blocks of the README and of the features run twice, because a reader runs them again."""
    assert len(BLOCKS) >= 2
    printed = {"README.md": BLOCKS, **{name: python_of(name) for name in PAGES}}
    blocks = [(name, block) for name, texts in printed.items() for block in texts]
    blocks += [(name, block) for name in ("README.md", "docs/features.md") for block in printed[name]]
    assert {name for name, _ in blocks} == {"README.md", *PAGES}
    places = {name: tmp_path / Path(name).stem for name, _ in blocks}
    for place in places.values():
        place.mkdir()
    for name, block in blocks:
        each = warm.run(["-c", block], cwd=places[name], warnings=["error"], timeout=PATIENCE_S)
        assert each.returncode == 0, f"{name}\n{block}\n{each.stderr}"
        assert each.stdout or name != "README.md" or "print" not in block


@pytest.mark.slow  # two seconds; tests/testing and tests/broker/clients do the same with other programs
def test_python_blocks_of_the_page_for_programs_of_kafka_run(tmp_path: Path) -> None:
    """Kafka's clients warn, so warnings are no errors here."""
    blocks = python_of("docs/testing-kafka-programs.md")
    assert blocks
    for block in blocks:
        done = warm.run(["-c", block], cwd=tmp_path, timeout=PATIENCE_S)
        assert done.returncode == 0, f"{block}\n{done.stderr}"


@pytest.mark.slow  # seven seconds; the quick tier forks them
def test_every_python_block_runs_in_a_python_of_its_own(tmp_path: Path) -> None:
    for block in BLOCKS:
        command = [sys.executable, "-W", "error", "-c", block]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        assert done.stdout or "print" not in block


@pytest.fixture
def shell_block() -> str:
    """The block of shell commands."""
    [block] = re.findall(r"^```\n(export PATH.*?)^```", README, re.DOTALL | re.MULTILINE)
    return block


@pytest.mark.slow  # seven processes, five seconds; the quick tier runs the commands in its own process
def test_the_shell_block_runs_in_a_shell_after_the_first_python_block(tmp_path: Path, shell_block: str) -> None:
    """Run the block as printed, with a `sawlog` in `.venv/bin` that calls this Python."""
    program = tmp_path / ".venv" / "bin" / "sawlog"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sawlog.cli "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(Path(sawlog.__file__).parents[1])}
    for command in ([sys.executable, "-c", BLOCKS[0]], *[["sh", "-ec", shell_block]] * 2):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "99999" in done.stdout
    assert "billing: 0 members" in done.stderr


def test_the_commands_of_the_shell_block_run_after_the_first_python_block(
    tmp_path: Path, shell_block: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process: `export` sets a variable, and what `seq` would print is given to the command behind it."""
    monkeypatch.chdir(tmp_path)
    run_program(BLOCKS[0])
    cli, said = Cli(Path("data")), ""
    for line in shell_block.splitlines() * 2:
        left, _, command = line.rpartition(" | ")
        if line.startswith("export "):
            for assignment in shlex.split(line)[1:]:
                name, _, value = assignment.partition("=")
                monkeypatch.setenv(name, value.replace("$PATH", os.environ["PATH"]))
            continue
        counted = re.fullmatch(r"seq (\d+)", left)
        assert counted or not left, f"a command before a pipe that this test does not know: {line}"
        given = "".join(f"{number}\n" for number in range(1, int(counted[1]) + 1)) if counted else ""
        program, *arguments = shlex.split(command)
        assert program == "sawlog"
        done = cli(*arguments, stdin=given.encode()).ok()
        said += done.out + done.err
    assert "99999" in said
    assert "billing: 0 members" in said


def python_of(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


@for_each("command", sorted(set(re.findall(r"\bmake ([a-z-]+)", README))))
def test_every_make_target_that_is_named_exists(command: str) -> None:
    assert re.search(rf"^{command}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@for_each("document", DOCUMENTS)
def test_every_file_that_is_named_exists(document: Path) -> None:
    text = document.read_text()
    named = re.findall(r"\]\(([^)#:]+)\)", text)
    named += re.findall(r"`((?:tests|src|docs|benchmarks|examples|tools)/[\w./-]+\.(?:py|md))`", text)
    for name in named:
        assert (document.parent / name).exists() or (ROOT / name).exists(), f"{document.name} names {name}"
