"""librdkafka's own `test-runner`, in its quick mode or in the long default mode.

Its source is in the crate rdkafka-sys, which Cargo fetches and checks; a C and a C++ compiler build it. The runner
kills itself with SIGKILL if a test takes too long, so every test number runs in a separate process: a test that hangs
affects only its own result. With RapidJSON's headers (rapidjson-dev) and a Java compiler, it builds a few more tests.
Timeouts are doubled, as the runner itself does if three tests run at once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import places
from .brokers import Wanted, kafka_tools
from .outcomes import FAILED, PASSED, SKIPPED, Outcome
from .suite import CannotRun, Job, build, matches

_CRATE = "4.10.0+2.12.1"
_MANIFEST = f"""\
[package]
name = "suites"
version = "0.0.0"
edition = "2021"
[lib]
path = "nothing.rs"
[dependencies]
rdkafka-sys = "={_CRATE}"
"""
#: Longer than any test: each has its own time limit, which it raises if necessary.
_LIMIT_S = 900.0
_STATES = {"PASSED": PASSED, "FAILED": FAILED, "RUNNING": FAILED, "SKIPPED": SKIPPED, "DNS": SKIPPED}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_DEFINED = re.compile(r"^    _TEST\((\w+),\s*(\w+)", re.MULTILINE)
_FAILURE = re.compile(r'^### Test "(\w+)[^"]*" failed at ([^\n]*?\(\)).*###\n([^\n]*)', re.MULTILINE)
_SKIPPED = re.compile(r"^(?:.*\|)?.*SKIPPING TEST: ([^\n]*)", re.MULTILINE)


class Librdkafka:
    """The runner, one process per number."""

    version = "2.12.1"
    wanted = Wanted(partitions=4)

    def __init__(self, jobs: int = 2, *, quick: bool = True) -> None:
        self.name = "librdkafka" if quick else "librdkafka-long"
        mode = "in quick mode" if quick else "in its long mode"
        self.about = f"librdkafka's test-runner {mode}, from the crate rdkafka-sys {_CRATE} (Cargo, make, C++ compiler)"
        self._mode = ["-Q"] if quick else []
        self._jobs = jobs
        self._home = places.cache() / f"librdkafka-{self.version}"
        self._source = self._home / "vendor" / "rdkafka-sys" / "librdkafka"

    @property
    def _tests(self) -> Path:
        return self._source / "tests"

    def prepare(self) -> None:
        """Fetch the crate, then configure and make."""
        log = self._home / "build.log"
        if not self._source.exists():
            self._home.mkdir(parents=True, exist_ok=True)
            (self._home / "Cargo.toml").write_text(_MANIFEST, encoding="utf-8")
            (self._home / "nothing.rs").touch()
            build(["cargo", "vendor", "--quiet", "vendor"], self._home, log)
        if not (self._tests / "test-runner").exists():
            quiet = {"CFLAGS": "-w", "CXXFLAGS": "-w"}
            # With bash: the files of a crate are not executable.
            build(["bash", "./configure", "--disable-sasl", "--disable-curl"], self._source, log, quiet)
            build(["make", "-j", str(self._jobs), "libs"], self._source, log)
            build(["make", "-C", "tests", "-j", str(self._jobs), "build"], self._source, log)
        tools = kafka_tools(self._home / "kafka")
        if tools is not None and shutil.which("javac") and not any((self._tests / "java").glob("*.class")):
            build(["make", "-C", "tests/java", f"KAFKA_PATH={tools}"], self._source, log)

    def defined(self) -> dict[str, bool]:
        """Return all tests except manual ones, and whether each is local, that is, needs no broker."""
        found = _DEFINED.findall((self._tests / "test.c").read_text(encoding="utf-8"))
        if not found:
            raise CannotRun(f"{self._tests / 'test.c'} defines no tests")
        return {name: flags == "TEST_F_LOCAL" for name, flags in found if flags != "TEST_F_MANUAL"}

    def run(self, job: Job) -> None:
        """Run each number in its own process, a few at a time."""
        names = [name for name in self.defined() if matches(name, job)]
        deadline = time.monotonic() + job.limit_s
        tools = kafka_tools(self._home / "kafka")
        more = {} if tools is None else {"KAFKA_PATH": str(tools), "BROKERS": job.address}
        numbers = {number: [name for name in names if name[:4] == number] for number in sorted({e[:4] for e in names})}
        with ThreadPoolExecutor(1 if job.again else self._jobs) as pool:
            for ended in pool.map(lambda number: self._run(job, number, numbers[number], deadline, more), numbers):
                for name, outcome in ended.items():
                    job.told(name, outcome)

    def _run(
        self, job: Job, number: str, names: list[str], deadline: float, more: dict[str, str]
    ) -> dict[str, Outcome]:
        """Run all tests of a number."""
        conf, report, log = (job.directory / f"{number}.{kind}" for kind in ("conf", "json", "log"))
        conf.write_text(f"bootstrap.servers={job.address}\ntest.timeout.multiplier=2\n", encoding="utf-8")
        left = max(min(_LIMIT_S, deadline - time.monotonic()), 1.0)
        environment = {
            **{name: value for name, value in os.environ.items() if name != "CI"},
            "LD_LIBRARY_PATH": "../src:../src-cpp",
            "RDKAFKA_TEST_CONF": str(conf),
            "TEST_KAFKA_VERSION": "4.3.0",
            "TEST_REPORT": str(report),
            "TESTS": number,
            **more,
        }
        with log.open("wb") as output:
            try:
                subprocess.run(
                    ["./test-runner", "-p1", *self._mode],
                    cwd=self._tests,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=left,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                output.write(b"\nended from outside: out of time\n")
        return _outcomes(names, report, _COLOUR.sub("", log.read_text(encoding="utf-8", errors="replace")))


def _outcomes(names: list[str], report: Path, said: str) -> dict[str, Outcome]:
    """Return the outcomes of the report, with reasons from the output."""
    reasons = {name: f"{where}: {text}" for name, where, text in reversed(_FAILURE.findall(said))}
    skipped = _SKIPPED.search(said)
    try:
        tests = json.loads(report.read_text(encoding="utf-8", errors="replace"))["tests"]
    except (OSError, ValueError, KeyError):
        # The runner crashed or was killed before it wrote a report.
        end = said.strip().splitlines()[-1:] or ["it said nothing"]
        return {name: Outcome(FAILED, reason=reasons.get(name, end[0])[:300]) for name in names}
    found: dict[str, Outcome] = {}
    for name in names:
        each = tests.get(name, {"state": "DNS", "duration": 0.0})
        outcome = _STATES[each["state"]]
        reason = reasons.get(name, "")
        if outcome == SKIPPED:
            reason = skipped.group(1) if skipped else "not built, or for another set-up"
        found[name] = Outcome(outcome, each["duration"], reason[:300])
    return found
