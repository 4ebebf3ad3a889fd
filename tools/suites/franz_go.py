"""The tests of franz-go's client, `pkg/kgo`, which come with its Go module.

`go mod download` fetches the module and checks it against the checksum below. The tests are built once into a program,
which stays in the cache; building takes about a minute of CPU time if Go must compile its standard library first. The
program runs all tests in one process; a test that runs again gets its own process.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from . import places
from .brokers import Wanted
from .outcomes import FAILED, PASSED, SKIPPED, Outcome
from .suite import CannotRun, Job, build, matches

_MODULE = "github.com/twmb/franz-go"
_CHECKSUM = "h1:EdwIHGzD/4mgCpl/sNS0C74JYn6cL/r2KYS+8UC96Ww="
#: Time limit. The module has 1 MB; without a network, Go waits much longer for its proxy.
_FETCH_S = 120.0
#: Records of the tests that pass records through a chain of groups. The transactional one commits every 10,000.
_RECORDS = 25_000
_OUTCOMES = {"pass": PASSED, "fail": FAILED, "skip": SKIPPED}
_MESSAGE = re.compile(r"\s+\w+_test\.go:\d+: (?!deleting |FAILED TESTING)(.*)")
_NOT_ENDED = "the test program ended before this test did"


class FranzGo:
    """All tests of `pkg/kgo`, counted without their subtests."""

    name = "franz-go"
    version = "1.22.2"
    about = "franz-go's pkg/kgo, from its Go module (Go)"
    wanted = Wanted(partitions=4)

    def __init__(self, records: int = _RECORDS) -> None:
        self._records = records
        self._home = places.cache() / f"franz-go-{self.version}"
        self._source = self._home / "source"
        #: Path of the built tests.
        self.program = self._home / "kgo.test"

    def prepare(self) -> None:
        """Fetch the module and build its tests. Blocks while another process does that."""
        if self.program.exists():
            return
        self._home.mkdir(parents=True, exist_ok=True)
        with (self._home / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.program.exists():
                self._build()

    def _build(self) -> None:
        package = self._fetch() / "pkg" / "kgo"
        self._source.mkdir(parents=True, exist_ok=True)
        for path in package.glob("*.go"):  # some tests read the sources
            shutil.copyfile(path, self._source / path.name)
        with tempfile.TemporaryDirectory(dir=self._home) as scratch:
            made = Path(scratch) / self.program.name
            # -s -w: without debugging information, which halves the size.
            build(["go", "test", "-c", "-ldflags=-s -w", "-o", str(made), "."], package, self._home / "build.log")
            made.replace(self.program)

    def _fetch(self) -> Path:
        """Fetch the module with Go and return its directory in Go's cache."""
        if shutil.which("go") is None:
            raise CannotRun("Go is needed, and is not installed")
        with tempfile.TemporaryDirectory() as scratch:
            command = ["go", "mod", "download", "-json", f"{_MODULE}@v{self.version}"]
            try:
                done = subprocess.run(
                    command, cwd=scratch, capture_output=True, text=True, timeout=_FETCH_S, check=False
                )
                told = json.loads(done.stdout or json.dumps({"Error": done.stderr.strip()}))
            except subprocess.TimeoutExpired:
                told = {"Error": f"no answer within {_FETCH_S:g} s"}
        if told.get("Error"):
            raise CannotRun(f"Go cannot fetch {_MODULE}: {told['Error']}")
        if told["Sum"] != _CHECKSUM:
            raise CannotRun(f"{_MODULE} v{self.version} has the checksum {told['Sum']}, not {_CHECKSUM}")
        return Path(told["Dir"])

    def names(self) -> list[str]:
        """Return all tests, including the seed corpora of fuzz tests."""
        listed = subprocess.run([self.program, "-test.list", "."], capture_output=True, text=True, check=True)
        return [line for line in listed.stdout.splitlines() if line.startswith(("Test", "Fuzz"))]

    def run(self, job: Job) -> None:
        """Run the tests in one process, or each in its own if they run again."""
        names = [name for name in self.names() if matches(name, job)]
        for some in [[name] for name in names] if job.again else [names]:
            log = job.directory / f"{some[0] if job.again else 'kgo'}.log"
            for name, outcome in self.outcomes(some, log, job.address, job.limit_s):
                job.told(name, outcome)

    def outcomes(
        self, names: list[str], log: Path, address: str, limit_s: float, settings: Mapping[str, str] | None = None
    ) -> Iterator[tuple[str, Outcome]]:
        """Run some tests and yield each as it ends. The log gets their output."""
        command = ["go", "tool", "test2json", "-t", str(self.program), "-test.v=test2json"]
        command += [f"-test.run=^({'|'.join(names)})$", f"-test.timeout={limit_s:.0f}s"]
        environment = {
            **os.environ,
            "KGO_SEEDS": address,
            "KGO_TEST_RF": "1",
            "KGO_TEST_RECORDS": str(self._records),
            "KGO_TEST_UNSAFE": "1",
            "KGO_LOG_LEVEL": "none",
            **(settings or {}),
        }
        with (
            log.open("w", encoding="utf-8") as output,
            subprocess.Popen(
                command,
                cwd=self._source,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                encoding="utf-8",
                errors="replace",
            ) as process,
        ):
            assert process.stdout is not None
            try:
                yield from _outcomes(names, process.stdout, output)
            finally:
                process.kill()


def _outcomes(names: list[str], events: Iterable[str], log: IO[str]) -> Iterator[tuple[str, Outcome]]:
    """Yield outcomes from the events of `go tool test2json`. A test without an end has failed."""
    missing = dict.fromkeys(names)
    said: dict[str, list[str]] = {}
    for line in events:
        event = json.loads(line)
        test = event.get("Test", "").partition("/")[0]
        if event["Action"] == "output":
            log.write(event["Output"])
            said.setdefault(test, []).append(event["Output"])
        elif event.get("Test") in missing and event["Action"] in _OUTCOMES:
            del missing[test]
            outcome = _OUTCOMES[event["Action"]]
            yield test, Outcome(outcome, event["Elapsed"], "" if outcome == PASSED else _reason(said.get(test, [])))
    for test in missing:
        yield test, Outcome(FAILED, reason=_reason(said.get(test, [])) or _NOT_ENDED)


def _reason(said: list[str]) -> str:
    """Return the first message of a test: `    file_test.go:12: message`."""
    found = (_MESSAGE.match(line) for line in said)
    return next((match[1][:300] for match in found if match is not None), "")
