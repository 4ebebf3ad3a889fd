"""`make suites` turns the output of a suite into outcomes, and outcomes into correct scores."""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from .documents import ROOT

REPORT = {
    "tests": {
        "<MAIN>": {"state": "PASSED", "duration": 9.0},
        "0001_multiobj": {"state": "PASSED", "duration": 1.5},
        "0001_hangs": {"state": "RUNNING", "duration": 60.0},
        "0001_broken": {"state": "FAILED", "duration": 2.0},
        "0002_other": {"state": "PASSED", "duration": 1.0},
    }
}
SAID = '### Test "0001_broken (sub)" failed at test.c:12:check() at Tue Nov 17 2026: ###\nexpected 1, got 2\n'


@pytest.fixture(scope="module")
def suites() -> Iterator[SimpleNamespace]:
    """The modules below tools/, which is not a package that anybody installs."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        names = ("librdkafka", "franz_go", "failover", "outcomes", "report", "command", "explained")
        found: dict[str, ModuleType] = {name: importlib.import_module(f"suites.{name}") for name in names}
        yield SimpleNamespace(**found)
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_librdkafkas_report_becomes_outcomes_with_reasons(suites: SimpleNamespace, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text(json.dumps(REPORT))
    names = ["0001_multiobj", "0001_hangs", "0001_broken", "0001_left_out"]
    found = suites.librdkafka._outcomes(names, report, SAID)
    assert {name: each.outcome for name, each in found.items()} == {
        "0001_multiobj": "passed",
        "0001_hangs": "failed",
        "0001_broken": "failed",
        "0001_left_out": "skipped",
    }
    assert found["0001_broken"].reason == "test.c:12:check(): expected 1, got 2"


def test_a_runner_that_crashed_has_passed_nothing(suites: SimpleNamespace, tmp_path: Path) -> None:
    found = suites.librdkafka._outcomes(["0001_multiobj"], tmp_path / "none.json", "begun\nSegmentation fault\n")
    assert (found["0001_multiobj"].outcome, found["0001_multiobj"].reason) == ("failed", "Segmentation fault")


def test_go_events_become_outcomes_without_subtests(suites: SimpleNamespace) -> None:
    events = [
        {"Action": "start"},
        {"Action": "run", "Test": "TestGood"},
        {"Action": "output", "Test": "TestGood/part", "Output": "    group_test.go:7: deleting topic x\n"},
        {"Action": "skip", "Test": "TestGood/part", "Elapsed": 0},
        {"Action": "pass", "Test": "TestGood", "Elapsed": 1.5},
        {"Action": "output", "Test": "TestBad/part", "Output": "    group_test.go:9: expected 1, got 2\n"},
        {"Action": "fail", "Test": "TestBad/part", "Elapsed": 0.1},
        {"Action": "fail", "Test": "TestBad", "Elapsed": 0.1},
        {"Action": "output", "Test": "TestLeftOut", "Output": "    a_test.go:1: no listener\n"},
        {"Action": "skip", "Test": "TestLeftOut", "Elapsed": 0},
        {"Action": "run", "Test": "TestHangs"},
        {"Action": "fail", "Elapsed": 9},
    ]
    log, names = io.StringIO(), ["TestGood", "TestBad", "TestLeftOut", "TestHangs", "TestNeverBegun"]
    found = dict(suites.franz_go._outcomes(names, map(json.dumps, events), log))
    assert {name: (each.outcome, each.reason) for name, each in found.items()} == {
        "TestGood": ("passed", ""),
        "TestBad": ("failed", "expected 1, got 2"),
        "TestLeftOut": ("skipped", "no listener"),
        "TestHangs": ("failed", suites.franz_go._NOT_ENDED),
        "TestNeverBegun": ("failed", suites.franz_go._NOT_ENDED),
    }
    assert "expected 1, got 2" in log.getvalue()


def test_complaints_are_counted_once_per_group_and_kind(suites: SimpleNamespace) -> None:
    topic, group = "ab" * 32, "    testConsumer sendErr group=cd0"
    output = "\n".join([
        f"{group}1: saw double offset t {topic} p0o25",
        f"{group}1: saw double offset t {topic} p3o50 (txn #2, txid x)",
        f"{group}2: saw double offset t {topic} p1o0",
        f"{group}2: poll got unexpected errs: [{{ 0 unable to join group session: UNKNOWN_MEMBER_ID: No.}} {{ 0 b}}]",
        f"{group}2: flush unexpected err: unable to dial: dial tcp 127.0.0.1:9: connect: connection refused",
        "--- PASS: TestGroupETL/range/848 (5.00s)",
        "    --- FAIL: TestGroupETL/range (5.00s)",
    ])  # fmt: skip
    found = suites.failover.Findings()
    found.add("TestGroupETL", output)
    assert dict(found.complaints) == {
        ("TestGroupETL", "saw double offset"): 2,
        ("TestGroupETL", "unable to join group session: UNKNOWN_MEMBER_ID"): 1,
        ("TestGroupETL", "flush unexpected err: connection refused"): 1,
    }
    table = suites.failover.tables({"sawlog": found, "kafka": suites.failover.Findings()})
    assert "| `TestGroupETL/range/848` | 1 of 1 | 0 of 0 |" in table
    assert "| `TestGroupETL`: saw double offset | 2 | 0 |" in table


def test_what_pytest_ran_is_recorded_whatever_phase_failed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.fixture\ndef broken(): raise OSError('no broker')\n"
        "@pytest.fixture\ndef untidy():\n    yield\n    raise OSError('not closed')\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 1 == 2\n"
        "def test_left_out(): pytest.skip('not today')\n"
        "def test_without_broker(broken): pass\n"
        "def test_untidy(untidy): pass\n"
    )
    record = tmp_path / "record"
    inside = str(ROOT / "tools" / "suites" / "inside")
    environment = {
        **os.environ,
        "PYTHONPATH": inside,
        "SUITE_RECORD": str(record),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, "-m", "pytest", "-p", "recorder", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 1, done.stdout
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert {line["test"].partition("::")[2]: line["outcome"] for line in lines} == {
        "test_good": "passed",
        "test_bad": "failed",
        "test_left_out": "skipped",
        "test_without_broker": "failed",
        "test_untidy": "failed",
    }
    assert {line["reason"] for line in lines if "broker" in line["test"]} == {"OSError: no broker"}


def runs(suites: SimpleNamespace, **outcomes: dict[str, str]) -> dict[tuple[str, str], object]:
    made = {}
    for against, tests in outcomes.items():
        kept = {name: suites.outcomes.Outcome(outcome, 1.0, f"why {name}") for name, outcome in tests.items()}
        made["s", against] = suites.outcomes.Run("s", "1", against, "2", "2026-11-17", 3.0, kept)
    return made


def test_the_share_is_of_what_kafka_passes(suites: SimpleNamespace) -> None:
    ours = {"a": "passed", "b": "failed", "c": "passed", "d": "failed", "e": "passed"}
    kafka = {"a": "passed", "b": "passed", "c": "passed", "d": "failed", "e": "failed"}
    both = runs(suites, sawlog=ours, kafka=kafka)
    assert "| s 1 | sawlog 2 | 2026-11-17 | 3 | 2 | 0 | 2 of 3, 66.7 % |" in suites.report.scores(both)
    differences = suites.report.differences(both)
    assert "| s | `b` | failed | passed | not explained: why b |" in differences
    assert "| s | `e` | passed | failed |" in differences
    assert "`d`" not in differences
    assert "`d`" in suites.report.failures(both)


def test_results_are_kept_and_published_between_the_marks(suites: SimpleNamespace, tmp_path: Path) -> None:
    for run in runs(suites, sawlog={"a": "passed"}, kafka={"a": "passed"}).values():
        run.save(tmp_path)  # type: ignore[attr-defined]
    loaded = suites.outcomes.load(tmp_path)
    assert loaded["s", "sawlog"].tests["a"] == suites.outcomes.Outcome("passed", 1.0, "why a")
    document = tmp_path / "document.md"
    document.write_text(f"before\n{suites.report.BEGIN}\nold\n{suites.report.END}\nafter\n")
    suites.report.publish(loaded, document)
    text = document.read_text()
    assert text.startswith(f"before\n{suites.report.BEGIN}\n| suite")
    assert text.endswith(f"{suites.report.END}\nafter\n")
    assert "old" not in text


def test_the_document_has_the_marks_and_no_difference_without_an_explanation(suites: SimpleNamespace) -> None:
    text = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    published = text.partition(suites.report.BEGIN)[2].partition(suites.report.END)[0]
    assert "| kafka-python" in published
    assert "not explained" not in published


def test_help_names_every_suite(suites: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert suites.command.main(["--list"]) == 0
    listed = capsys.readouterr().out
    with pytest.raises(SystemExit):
        suites.command.main(["--help"])
    told = capsys.readouterr().out
    for name in ("librdkafka", "aiokafka", "kafka-python", "franz-go"):
        assert name in listed
        assert name in told
