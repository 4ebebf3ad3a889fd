"""Output of the laboratory: a progress bar on a terminal, plain lines elsewhere, and counts at the end."""

from __future__ import annotations

import sys
import time
from collections import Counter
from types import TracebackType

from sawlog import Log
from sawlog.cli.output import ProgressBar

#: Without a terminal, print a line this often.
_SIGN_OF_LIFE_S = 30.0


def say(*lines: str) -> None:
    """Print to standard output and flush."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def corruption_of(log: Log) -> str:
    """Describe the reported corruption of a log, without the parts that vary in a replay: path and duration."""
    findings = [str(each).replace(f"{log.path}/", "") for each in log.recovery.corruption]
    return f"corruption was reported: {findings}"


class Tally:
    """Counts scenarios and violations; `failed` gives the exit code."""

    def __init__(self, title: str, total: int | None, unit: str) -> None:
        self._title, self._unit, self._total = title, unit, total
        self._bar = ProgressBar(title, total, unit)
        self.counts: Counter[str] = Counter()
        #: The violations, each with the command that replays it.
        self.violations: list[str] = []
        self._started = self._spoken = time.monotonic()

    def __enter__(self) -> Tally:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    @property
    def done(self) -> int:
        """Number of scenarios so far."""
        return self._bar.done

    @property
    def failed(self) -> bool:
        """True if there was a violation."""
        return bool(self.violations)

    def advance(self, count: int = 1, *, what: str = "") -> None:
        """Add `count` scenarios of a kind."""
        self._bar.advance(count)
        if what:
            self.counts[what] += count
        now = time.monotonic()
        if now - self._spoken > _SIGN_OF_LIFE_S and not sys.stderr.isatty():
            self._spoken = now
            of = f" of {self._total:,}" if self._total else ""
            say(f"{self._title}: {self.done:,}{of} {self._unit}, {len(self.violations)} violations")

    def violation(self, text: str) -> None:
        """Record and print a violation."""
        self.violations.append(text)
        say(f"VIOLATION {text}")

    def finish(self) -> int:
        """Print all counts and return the exit code."""
        seconds = time.monotonic() - self._started
        for what, count in sorted(self.counts.items()):
            say(f"  {what:40} {count:12,}")
        rate = f"{self.done / seconds:,.0f}/s" if seconds > 0 else ""
        say(f"{self._title}: {self.done:,} {self._unit} in {seconds:.1f} s ({rate}), {len(self.violations)} violations")
        return 1 if self.violations else 0
