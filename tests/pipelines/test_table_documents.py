"""Run the examples of docs/tables-spark.md and docs/streaming-job.md, unchanged."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sawlog.store.directory.store import DirectoryStore

from ..cli.conftest import Cli
from .conftest import moment
from .test_printed_commands import ended

ROOT = Path(__file__).resolve().parents[2]
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("tables-spark", "streaming-job")}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the store that the pages name."""
    monkeypatch.chdir(tmp_path)
    with DirectoryStore.open("data", maintenance_interval_s=None) as store:
        orders = store.create_topic("orders", 2, durability="os")
        for number in range(20):
            value = {"id": number, "customer": f"c{number % 3}", "amount": 10.0 * number, "placed_at": "2026-01-01"}
            orders.append(json.dumps(value).encode(), b"c%d" % (number % 3), (), moment(number))
        orders.append(b'{"id": "x7"}', b"c1", (), moment(20))
    return tmp_path


def test_both_pages_show_the_command() -> None:
    assert all("sawlog pipeline table orders" in page for page in PAGES.values())


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs_from_top_to_bottom(page: str, place: Path, spark: Any, cli: Cli) -> None:
    names: dict[str, Any] = {}
    for kind, block in re.findall(r"^```(console|python)\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE):
        if kind == "python":
            absolute = block.replace('"checkpoint"', f'"{place}/checkpoint"')
            exec(absolute.replace('("path", "data")', f'("path", "{place}/data")'), names)
            continue
        for line in block.splitlines():
            command = line.removeprefix("$ ")
            if command.startswith("sawlog "):
                cli(*shlex.split(command)[1:]).ok()
            else:
                subprocess.run(command, shell=True, check=True, cwd=place)
    ended(spark)
    if page == "streaming-job":
        with DirectoryStore.open("data", "r") as store:
            assert "totals" in [topic.name for topic in store]
        assert [row.reason for row in names["bad"].collect()] == ["id is not bigint: x7"]
        assert names["behind"] == 0
    else:
        assert names["report"].records == 0
        assert names["orders"].count() == 20
        assert names["recent"].columns == ["offset", "customer", "amount"]
        assert names["stream"].isStreaming
        assert sum(names["found"].ends.values()) == 21
