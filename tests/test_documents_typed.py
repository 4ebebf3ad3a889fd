"""The programs of docs/typed.md and docs/queues.md print what the pages show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sawlog

from .cli.conftest import Cli
from .documents import ROOT, blocks, pairs, sessions

DOCS = ROOT / "docs"


def pairs_of(page: str) -> list[tuple[str, str]]:
    text = (DOCS / page).read_text(encoding="utf-8")
    found = pairs(text)
    assert len(found) == text.count("```python")
    return found


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run the programs of each page one after the other in one process; return each page's directory."""
    root = tmp_path_factory.mktemp("documents")
    script, made = ["import os"], dict[str, Path]()
    for page in ("typed.md", "queues.md"):
        made[page] = root / page
        for number, (code, _) in enumerate(pairs_of(page)):
            place = made[page] / str(number)
            place.mkdir(parents=True)
            (place / "program.py").write_text(code)
            script += [
                f"os.chdir({str(place)!r})",
                f"print('-- {page}', flush=True)",
                f"exec(compile(open('program.py').read(), '{page} {number}', 'exec'), {{'__name__': '__main__'}})",
            ]
    environment = {**os.environ, "PYTHONPATH": str(Path(sawlog.__file__).parents[1])}
    command = [sys.executable, "-W", "error", "-c", "\n".join(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    (root / "printed").write_text(done.stdout)
    return made


@pytest.mark.parametrize("page", ["typed.md", "queues.md"])
def test_the_python_of_a_page_prints_what_is_shown_below_it(page: str, places: dict[str, Path]) -> None:
    sections = re.split(r"^-- ", (places[page].parent / "printed").read_text(), flags=re.MULTILINE)[1:]
    printed = [block.partition("\n")[2] for block in sections if block.startswith(page)]
    assert printed == [shown for _, shown in pairs_of(page)]


def test_the_sessions_of_the_page_on_queues_print_what_is_shown(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(places["queues.md"] / "0")  # where the first program has left a dead letter
    page = (DOCS / "queues.md").read_text(encoding="utf-8")
    reading, redriving = blocks(page, "console")
    command, _ = sessions(reading)[0]
    told = Cli(Path("data"))(*command.partition(" | ")[0].split()[1:]).ok().json
    assert "not an order" in str(told)
    for command, expected in sessions(redriving):
        done = Cli(Path("data"))(*command.split()[1:]).ok()
        assert (done.out + done.err).split() == " ".join(expected).split(), command
