"""franz-go's chained ETL tests against two brokers, one of which is killed and restarted while they run.

The tests pass records through three consumer groups in a row, without transactions (`TestGroupETL`) and with them
(`TestTxnEtl`). They report every error of a client, and every record that a group processes twice. They were not
written for brokers that die: some of these errors are reported by the client, which then recovers. A single failed test
means little; the result is which errors each kind of broker causes, and how often.

- *sawlog*: two processes of `sawlog serve` over one bucket of a local S3 server (moto).
- *Apache Kafka*: two brokers, and a controller that is not killed. All topics have two replicas.
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .brokers import KAFKA, SAWLOG
from .franz_go import FranzGo
from .places import ROOT

TESTS = ("TestGroupETL", "TestTxnEtl")
_NAMES = {SAWLOG: "sawlog", KAFKA: "Apache Kafka"}
#: Seconds until the first kill, by round: while members join, while they read, while they rebalance.
_FIRST_S = (5.0, 7.0, 9.0)
#: Downtime of a killed broker, and its uptime before the next kill. Both kinds of broker give up a dead one after about
#: ten seconds.
_DOWN_S, _UP_S = 12.0, 20.0
_LIMIT_S = 300.0
_RECORDS = 20_000
_PARTITIONS = 4

_ENDED = re.compile(r"^ *--- (PASS|FAIL): (\w+/\S+)", re.MULTILINE)
_COMPLAINT = re.compile(r"^ +testConsumer sendErr group=(\w+): (.*)", re.MULTILINE)
_PANIC = re.compile(r"^(panic: .*)|^ +helpers_test\.go:\d+: (consumers \d: got .*)", re.MULTILINE)
#: Names in messages that are ignored when errors are counted: topics, addresses, partitions and offsets.
_ALIKE = (
    (re.compile(r"poll got unexpected errs: \[\{ *\d+ ([^{}]*)\}.*"), r"\1"),
    (re.compile(r"(unable to dial: )?dial tcp \S+ (connect: )?"), ""),
    (re.compile(r" t [0-9a-f]{64} p\d.*"), ""),
    (re.compile(r"topic [0-9a-f]{64} partition \d+: "), ""),
    (re.compile(r"([A-Z]+_[A-Z_]+): .*"), r"\1"),
    (re.compile(r"consumers \d: got .*"), "keys are missing or doubled"),
    (re.compile(r"consumed too much .*"), "consumed too much"),
)


@dataclass
class Findings:
    """The outcome of some rounds against one kind of broker."""

    passed: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    #: Number of groups with an error, by test and kind of error.
    complaints: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, test: str, output: str) -> None:
        """Count one round's output."""
        for result, name in _ENDED.findall(output):
            (self.passed if result == "PASS" else self.failed)[name] += 1
        seen = {(group, _kind(text)) for group, text in _COMPLAINT.findall(output)}
        seen |= {("", _kind(panic or text)) for panic, text in _PANIC.findall(output)}
        self.complaints.update((test, kind) for _, kind in seen)


def _kind(complaint: str) -> str:
    for pattern, stands in _ALIKE:
        complaint = pattern.sub(stands, complaint)
    return complaint.strip()


def compare(against: Sequence[str], rounds: int, logs: Path) -> str:
    """Run the rounds against each kind of broker, and tabulate the findings."""
    suite = FranzGo(_RECORDS)
    suite.prepare()
    found = {kind: Findings() for kind in against}
    for number in range(rounds):
        for test in TESTS:
            for kind in against:
                log = logs / f"failover-{kind}-{test}-{number + 1}.log"
                output = _run(suite, kind, test, _FIRST_S[number % len(_FIRST_S)], log)
                found[kind].add(test, output)
                results = [result for result, _ in _ENDED.findall(output)]
                told = f"{results.count('PASS')} of {len(results)} passed"
                print(f"round {number + 1}, {test} against {_NAMES[kind]}: {told}", flush=True)
    return tables(found)


def tables(found: dict[str, Findings]) -> str:
    """Return passed subtests and errors, side by side."""
    head = " | ".join(_NAMES[kind] for kind in found)
    line = "|---|" + "---|" * len(found)
    rows = [f"| passed | {head} |", line]
    for name in sorted({name for each in found.values() for name in each.passed | each.failed}):
        numbers = (f"{each.passed[name]} of {each.passed[name] + each.failed[name]}" for each in found.values())
        rows.append(f"| `{name}` | {' | '.join(numbers)} |")
    rows += ["", f"| groups with this complaint | {head} |", line]
    for test, kind in sorted({each for findings in found.values() for each in findings.complaints}):
        numbers = (str(each.complaints[test, kind]) for each in found.values())
        rows.append(f"| `{test}`: {kind} | {' | '.join(numbers)} |")
    return "\n".join(rows) + "\n"


def _run(suite: FranzGo, kind: str, test: str, first_s: float, log: Path) -> str:
    """Run one round of a test and return its output, which is also in the log."""
    ended = threading.Event()
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sawlog-suites-") as scratch, _pair(kind, Path(scratch)) as brokers:
        killer = threading.Thread(target=_kill, args=(brokers[0], first_s, ended))
        killer.start()
        try:
            settings = {
                "KGO_TEST_RF": "1" if kind == SAWLOG else "2",
                "KGO_TEST_MAX_TOPIC_PARTS": str(_PARTITIONS),
            }
            for _ in suite.outcomes([test], log, ",".join(each.address for each in brokers), _LIMIT_S, settings):
                pass
        finally:
            ended.set()
            killer.join()
    return log.read_text(encoding="utf-8", errors="replace")


def _kill(broker: Any, first_s: float, ended: threading.Event) -> None:
    """Kill a broker repeatedly until the tests end."""
    pause_s = first_s
    while not ended.wait(pause_s):
        broker.kill()
        ended.wait(_DOWN_S)
        broker.start()
        pause_s = _UP_S


@contextmanager
def _pair(kind: str, place: Path) -> Iterator[list[Any]]:
    """Start two brokers of one kind, with the tests' code."""
    sys.path.insert(0, str(ROOT))
    try:
        serving = importlib.import_module("tests.broker.serving")
        servers = importlib.import_module("tests.objects.servers")
        oracle = importlib.import_module("tests.broker.oracle")
    finally:
        sys.path.remove(str(ROOT))
    with ExitStack() as last:
        if kind == SAWLOG:
            server = last.enter_context(servers.moto())
            given = {"url": server.new_url(), "variables": server.variables}
            brokers = [serving.Serving(place / f"broker-{number}", **given) for number in (1, 2)]
            for broker in brokers:
                last.enter_context(broker)
        else:
            brokers = last.enter_context(oracle.two_brokers(place))
        yield brokers
