"""The scores as a Markdown table, and every test that ended differently, by name.

The percentage is of the tests that Apache Kafka passes: tests that fail or are skipped there say nothing about a
broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .brokers import KAFKA, SAWLOG
from .explained import EXPLAINED
from .outcomes import FAILED, PASSED, SKIPPED, Outcome, Run

BEGIN, END = "<!-- make suites: begin -->", "<!-- make suites: end -->"
Runs = Mapping[tuple[str, str], Run]
_NOT_RUN = Outcome("not run")


def scores(runs: Runs) -> str:
    """Return one row per suite."""
    rows = [
        "| suite | broker | date | passed | failed | skipped | of what Kafka passes |",
        "|---|---|---|---|---|---|---|",
    ]
    for suite in sorted({suite for suite, _ in runs}):
        for against in (SAWLOG, KAFKA):
            run = runs.get((suite, against))
            if run is not None:
                rows.append(_row(run, runs.get((suite, KAFKA))))
    return "\n".join(rows)


def _row(run: Run, kafka: Run | None) -> str:
    counts = run.counts()
    share = ""
    if run.against != KAFKA and kafka is not None:
        of = kafka.names(PASSED) & set(run.tests)
        both = of & run.names(PASSED)
        share = f"{len(both)} of {len(of)}, {100 * len(both) / len(of):.1f} %" if of else "-"
    name = "Apache Kafka" if run.against == KAFKA else "sawlog"
    again = sum(each.again and each.outcome == PASSED for each in run.tests.values())
    second = f", {again} of them when run again" if again else ""
    return (
        f"| {run.suite} {run.version} | {name} {run.broker} | {run.date} | {counts[PASSED]}{second} | {counts[FAILED]} "
        f"| {counts[SKIPPED]} | {share} |"
    )


def differences(runs: Runs) -> str:
    """Return the tests that only Kafka or only sawlog passes; empty if there are none."""
    rows: list[str] = []
    for suite in sorted({suite for suite, _ in runs}):
        ours, kafka = runs.get((suite, SAWLOG)), runs.get((suite, KAFKA))
        if ours is None or kafka is None:
            continue
        for name in sorted(set(ours.tests) & set(kafka.tests)):
            mine, other = ours.tests[name], kafka.tests[name]
            if mine.outcome != other.outcome and PASSED in (mine.outcome, other.outcome):
                why = EXPLAINED.get((suite, name)) or f"not explained: {_cell((mine if mine.reason else other).reason)}"
                rows.append(f"| {suite} | `{_cell(name)}` | {mine.outcome} | {other.outcome} | {why} |")
    if not rows:
        return ""
    return "\n".join(["| suite | test | sawlog | Kafka | why |", "|---|---|---|---|---|", *rows])


def failures(runs: Runs) -> str:
    """Return the tests that neither passes, with the reason for Kafka, which is mostly the environment."""
    rows: list[str] = []
    for (suite, against), run in sorted(runs.items()):
        ours = runs.get((suite, SAWLOG))
        if against != KAFKA or ours is None:
            continue
        for name in sorted(run.names(FAILED)):
            if ours.tests.get(name, _NOT_RUN).outcome == FAILED:
                why = EXPLAINED.get((suite, name)) or _cell(run.tests[name].reason)
                rows.append(f"| {suite} | `{_cell(name)}` | {why} |")
    if not rows:
        return ""
    return "\n".join(["| suite | test | why |", "|---|---|---|", *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")


def markdown(runs: Runs) -> str:
    """Return the whole report."""
    parts = [scores(runs)]
    for heading, table in (
        ("## Tests that end differently", differences(runs)),
        ("## Tests that neither passes", failures(runs)),
    ):
        if table:
            parts += [heading, table]
    return "\n\n".join(parts) + "\n"


def publish(runs: Runs, document: Path) -> None:
    """Replace the text between the marks in a document."""
    text = document.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{document} has no marks {BEGIN} and {END}")
    document.write_text(f"{before}{begin}\n{markdown(runs)}{end}{after}", encoding="utf-8")
