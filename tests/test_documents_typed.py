"""What docs/typed.md and docs/queues.md show is what happens: their Python is run, and what it prints is compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sawlog

from .cli.conftest import Cli
from .test_documents import sessions

DOCS = Path(__file__).resolve().parent.parent / "docs"
#: Python, and what it prints.
PAIR = re.compile(r"^```python\n(.*?)^```\n\n```\n(.*?)^```", re.DOTALL | re.MULTILINE)


def run_all(page: str, place: Path) -> None:
    """Every program of a page, one after the other in one process, each in a directory of its own."""
    pairs = PAIR.findall((DOCS / page).read_text(encoding="utf-8"))
    assert len(pairs) == (DOCS / page).read_text(encoding="utf-8").count("```python")
    script = "import os, sys\n"
    for number, (code, _) in enumerate(pairs):
        (place / str(number)).mkdir()
        (place / f"{number}.py").write_text(code)
        script += (
            f"os.chdir({str(place / str(number))!r}); print('--', flush=True)\n"
            f"exec(compile(open({str(place / f'{number}.py')!r}).read(), '{page} {number}', 'exec'), "
            "{'__name__': '__main__'})\n"
        )
    environment = {**os.environ, "PYTHONPATH": str(Path(sawlog.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("--\n")[1:] == [printed for _, printed in pairs]


def test_the_python_of_the_page_on_typed_records_prints_what_is_shown(tmp_path: Path) -> None:
    run_all("typed.md", tmp_path)


def test_the_python_and_the_session_of_the_page_on_queues_print_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_all("queues.md", tmp_path)
    monkeypatch.chdir(tmp_path / "0")  # where the first program has left a dead letter
    page = (DOCS / "queues.md").read_text(encoding="utf-8")
    reading, redriving = re.findall(r"^```console\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (command, _) = sessions(reading)[0]
    told = Cli(Path("data"))(*command.partition(" | ")[0].split()[1:]).ok().json
    assert "not an order" in str(told)
    for command, expected in sessions(redriving):
        done = Cli(Path("data"))(*command.split()[1:]).ok()
        assert (done.out + done.err).split() == " ".join(expected).split(), command
