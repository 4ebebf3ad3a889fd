"""Commands in the documents print what the documents show.

The README has its own tests (test_readme.py), as do the command line's reference and help (cli/test_reference.py).
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from sawlog import interop
from sawlog.store.directory.store import DirectoryStore

from .documents import ROOT, blocks, make_program, run_program, sessions, steps, take, typed, without_timing
from .interop.files import lay
from .interop.kafkas import batch
from .interop.test_unindexed import behind, with_metadata

PROCESSES = (ROOT / "docs" / "several-processes.md").read_text(encoding="utf-8")
INTEROP = (ROOT / "docs" / "interop.md").read_text(encoding="utf-8")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directories that docs/interop.md names, and a program called `sawlog`."""
    shutil.copytree(ROOT / "tests" / "golden" / "interop", tmp_path, dirs_exist_ok=True)
    shutil.copytree(tmp_path / "laminarmq-u32", tmp_path / "damaged")
    store = bytearray((tmp_path / "damaged" / "42.store").read_bytes())
    store[170] ^= 1
    (tmp_path / "damaged" / "42.store").write_bytes(store)
    make_program(tmp_path)
    return tmp_path


@pytest.mark.parametrize("number", [0, 1])
def test_a_console_session_prints_what_the_document_shows(
    place: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    for command, expected in sessions(blocks(INTEROP, "console")[number]):
        assert without_timing(typed(command)) == without_timing(expected), command


# Three processes write and read one store at the same time, which is the subject of the page.
@pytest.mark.costly
def test_the_page_about_several_processes_can_be_followed_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs and commands in one directory, in the order of the page."""
    make_program(tmp_path)
    monkeypatch.chdir(tmp_path)
    for step in steps(PROCESSES):
        if step.kind == "command":
            printed = take(step, tmp_path).splitlines()
            assert without_timing(printed) == without_timing(step.shown.splitlines()), step.text
        else:
            assert run_program(step.text) == step.shown, step.text


def test_the_session_with_kafka_shows_what_is_printed_for_such_a_directory(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory was a real broker's and is not kept; this one has the same things in it, with fewer records."""
    torn = b"x" * 15
    lay(
        place / "kafka-logs",
        {
            "meta.properties": b"version=1\n",
            **{
                f"{name}/{0:020}.log": batch(0, b"a", b"b")
                for name in ("__cluster_metadata-0", "__transaction_state-0", "empty.tmp-0", "plain-1", "txn-0")
            },
            f"plain-0/{0:020}.log": batch(0, b"a", b"b") + torn,
            f"compacted-0/{0:020}.log": batch(0, b"a") + batch(5, b"b"),
        },
    )
    monkeypatch.chdir(place)
    (importing, shown), (exporting, exported) = sessions(blocks(INTEROP, "console")[2])
    printed = typed(importing)
    told = without_numbers(shown)
    assert [line for line in shown if line.startswith("not imported")] == [
        line for line in printed if line.startswith("not imported")
    ]
    assert {line for line in told if line.startswith("!!")} == {
        line for line in without_numbers(printed) if line.startswith("!!")
    }
    assert "TOPIC PARTITION FROM TO RECORDS SIZE FINDINGS SOURCE" in told & without_numbers(printed)
    assert without_numbers(typed(exporting)) == without_numbers(exported)


def without_numbers(lines: list[str]) -> set[str]:
    units = re.compile(r"[\d,.]+( [KMG]iB| B)?( in N (ms|s))?")
    return {re.sub(r" in N m?s.*", "", re.sub(r"\s+", " ", units.sub("N", line))) for line in lines if line}


def test_python_shown_for_reading_prints_what_is_shown_below_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    code, printed = re.findall(r"^```python\n(.*?)^```\n\n```\n(.*?)^```", INTEROP, re.DOTALL | re.MULTILINE)[0]
    assert run_program(code) == printed


def test_python_shown_for_metadata_reads_such_a_log(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = [with_metadata(7 + i, b"own%d" % i, b"value %d" % i) for i in range(5)]
    lay(place / "laminarmq-own", behind(contents, 7, 5))
    monkeypatch.chdir(place)
    code = blocks(INTEROP, "python")[1]
    with DirectoryStore.open("data") as store:
        exec(compile(code, "snippet", "exec", dont_inherit=True), {"interop": interop, "store": store})
        assert [record.value for record in store["laminarmq-own"].partition(0)] == [b"value %d" % i for i in range(5)]
