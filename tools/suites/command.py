"""The command line of `make suites`."""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from . import brokers, failover, outcomes, places, report
from .aiokafka import Aiokafka
from .franz_go import FranzGo
from .kafka_python import KafkaPython
from .librdkafka import Librdkafka
from .outcomes import FAILED, PASSED, SKIPPED, Outcome, Run
from .suite import CannotRun, Job, Suite

_NAMES = ("librdkafka", "librdkafka-long", "aiokafka", "kafka-python", "franz-go")
_USUAL = ("librdkafka", "aiokafka", "kafka-python", "franz-go")
_ABOUT = """\
Run third-party test suites against `sawlog serve` and against Apache Kafka, and compare.

Each suite is fetched and built once, into a cache ($SAWLOG_SUITES, or below ~/.cache/sawlog/suites). A broker with an
empty store is started for each run, and stopped afterwards. Results are kept as JSON in build/suites, one file per
suite and broker, so that the two sides can be run one after the other; the table shows the existing results.
"""
_EXAMPLES = """\
examples (make suites ARGS="..."):
  --list                                   list the suites and their requirements
  --only kafka-python                      one suite against both brokers: the quickest, a minute each
  --only librdkafka --against sawlog       one suite against one broker
  --only librdkafka --tests 0081,0103      some of its tests, by a part of their names; their results are only shown
  --only aiokafka --checkout ~/aiokafka    aiokafka's tests come from a checkout of its repository
  --failover 3                             franz-go's ETL tests while one of two brokers is killed, three rounds
  --report                                 run nothing: recreate the table from the kept results
  --report --write                         and put it into docs/compatibility.md

needs: Java and `make kafka-jars` for Apache Kafka; Cargo, make and a C++ compiler for librdkafka; Go for
franz-go; pip for the others.
time on two cores: librdkafka 7 to 15 minutes per broker, aiokafka 6, franz-go 4, kafka-python 1;
a round of --failover 4.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested actions; return 1 if a suite could not run."""
    asked = _parser().parse_args(arguments)
    suites = _suites(asked)
    if asked.list:
        for suite in suites:
            print(f"{suite.name:14} {suite.about}")
        return 0
    bad = 0
    if asked.failover:
        return _run_failover(asked)
    if not asked.report:
        for suite in suites:
            bad += _run_suite(suite, asked)
    runs = outcomes.load(places.RESULTS)
    if runs and not asked.tests:
        text = report.markdown(runs)
        (places.RESULTS / "results.md").write_text(text, encoding="utf-8")
        print(f"\n{text}")
    if asked.write:
        report.publish(runs, places.DOCUMENT)
        print(f"written to {places.DOCUMENT.relative_to(places.ROOT)}")
    return 1 if bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make suites", description=_ABOUT, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", choices=_NAMES, help="this suite; can be repeated (default: all but the long one)"
    )
    parser.add_argument("--against", action="append", choices=brokers.BROKERS, help="this broker (default: both)")
    parser.add_argument("--tests", default="", metavar="A,B", help="only tests whose names contain one of these")
    parser.add_argument("--checkout", type=Path, metavar="DIR", help="a checkout of aiokafka's repository")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes of librdkafka's runner (2)")
    parser.add_argument("--limit", type=float, default=60, metavar="MINUTES", help="for one suite and broker (60)")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the logs of tests and brokers there")
    parser.add_argument("--again", action="store_true", help="only what failed in an earlier run; corrects its results")
    parser.add_argument(
        "--failover",
        type=int,
        metavar="ROUNDS",
        help="franz-go's ETL tests against two brokers, one of which is killed; its results are only shown",
    )
    parser.add_argument("--list", action="store_true", help="list the suites")
    parser.add_argument("--report", action="store_true", help="run nothing, make the table from earlier results")
    parser.add_argument("--write", action="store_true", help="put the table into docs/compatibility.md")
    return parser


def _suites(asked: argparse.Namespace) -> list[Suite]:
    made: list[Suite] = [
        Librdkafka(asked.jobs),
        Librdkafka(asked.jobs, quick=False),
        Aiokafka(asked.checkout),
        KafkaPython(),
        FranzGo(),
    ]
    return [each for each in made if each.name in (asked.only or (_NAMES if asked.list else _USUAL))]


def _run_suite(suite: Suite, asked: argparse.Namespace) -> int:
    """Run one suite against each broker; return the number of runs that were not possible."""
    bad = 0
    print(f"{suite.name} {suite.version}: preparing it", flush=True)
    try:
        suite.prepare()
    except CannotRun as error:
        print(f"{suite.name}: {error}", file=sys.stderr)
        return 1
    for against in asked.against or brokers.BROKERS:
        lacking = brokers.missing(against)
        try:
            if lacking is not None:
                raise CannotRun(lacking)
            run = _run(suite, against, asked)
        except CannotRun as error:
            print(f"{suite.name} against {against}: {error}", file=sys.stderr)
            bad += 1
        else:
            counts = run.counts()
            said = ", ".join(f"{counts[each]} {each}" for each in (PASSED, FAILED, SKIPPED))
            print(f"{suite.name} against {against}: {said} in {run.seconds:.0f} s", flush=True)
            if not asked.tests:
                run.save(places.RESULTS)
    return bad


def _run_failover(asked: argparse.Namespace) -> int:
    """Run the tests during which a broker is killed."""
    try:
        for against in asked.against or brokers.BROKERS:
            lacking = brokers.missing(against)
            if lacking is not None:
                raise CannotRun(lacking)
        with tempfile.TemporaryDirectory(prefix="sawlog-suites-") as scratch:
            logs = asked.logs or Path(scratch)
            print(failover.compare(asked.against or brokers.BROKERS, asked.failover, logs.resolve()))
    except CannotRun as error:
        print(f"failover: {error}", file=sys.stderr)
        return 1
    return 0


def _kept(suite: Suite, against: str) -> dict[str, Outcome]:
    """Return the outcomes of an earlier run."""
    kept = outcomes.load(places.RESULTS).get((suite.name, against))
    if kept is None:
        raise CannotRun("there is no earlier result: run it without --again first")
    return kept.tests


def _run_again(suite: Suite, job: Job, run: Run) -> None:
    """Run the failed tests again, one at a time: many have time limits, and this machine may be busy."""
    failed = tuple(sorted(run.names(FAILED)))
    if not failed:
        return
    print(f"  once more, alone: {len(failed)} that failed", flush=True)
    directory = job.directory / "again"
    directory.mkdir(exist_ok=True)
    suite.run(replace(job, again=failed, directory=directory))
    for name in failed:
        run.tests[name] = replace(run.tests[name], again=True)


def _run(suite: Suite, against: str, asked: argparse.Namespace) -> Run:
    """Run one suite against one broker, and print the outcome of each test as it ends."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    run = Run(suite.name, suite.version, against, brokers.version_of(against), today)
    with tempfile.TemporaryDirectory(prefix="sawlog-suites-") as scratch:
        directory = asked.logs / f"{suite.name}-{against}" if asked.logs else Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)

        def told(name: str, outcome: Outcome) -> None:
            run.tests[name] = outcome
            mark = "" if outcome.outcome == PASSED else f"  {outcome.reason}"
            print(f"  {len(run.tests):4} {outcome.outcome:8}{outcome.seconds:7.1f} s  {name}{mark}", flush=True)

        only = tuple(each for each in asked.tests.split(",") if each)
        with brokers.serving(against, suite.wanted, Path(scratch)) as address:
            print(f"{suite.name} against {against} on {address}", flush=True)
            began = time.monotonic()
            job = Job(address, only, (), directory.resolve(), asked.limit * 60, told)
            if asked.again:
                run.tests.update(_kept(suite, against))
            else:
                suite.run(job)
            _run_again(suite, job, run)
            run.seconds = time.monotonic() - began
    return run
