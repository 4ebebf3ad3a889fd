"""Whether object storage keeps the promises that a store depends on: `sawlog store test URL`.

A store is safe if the server creates an object only where there is none, whoever asks at the same moment, and shows
what was stored to everybody at once. There are servers that look like S3 and do not: two writers would both be told
that commit 42 is theirs. So `run` tries it and returns the evidence, and `check` does so with a few requests before a
store is created. trials.py has the trials.

Everything is below `sawlog-selftest/` and a unique name, and is deleted afterwards, so it can run while the bucket is
in use. A test finds faults and does not prove their absence: what happens once in a million requests may not show.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..clock import Stopwatch
from ..errors import StorageError, UnsafeStorage
from . import trials
from .bucket import Bucket
from .probing import Probe, Scale
from .trials import Broken, NotHere

__all__ = ["BRIEF", "BRIEF_SCALE", "TRIALS", "Finding", "Scale", "check", "refuse", "run"]

#: The promise is kept, broken, not for this kind of storage, or nobody knows: requests failed.
OK, BAD, SKIPPED, FAILED = "ok", "bad", "skipped", "failed"

#: Each by its name, in the order in which they are made. The first says whether there is anything to test.
TRIALS: dict[str, Callable[[Probe], str]] = {
    "access": trials.access,
    "create once": trials.create_once,
    "racing threads": trials.racing_threads,
    "racing processes": trials.racing_processes,
    "ambiguous time-outs": trials.ambiguous,
    "create after delete": trials.create_after_delete,
    "read after write": trials.read_after_write,
    "list after write": trials.list_after_write,
    "listing": trials.listing,
    "ranges": trials.ranges,
    "large object": trials.large_object,
    "content": trials.content,
}
#: Some thirty requests: what a server that ignores preconditions cannot pass.
BRIEF = ("access", "create once", "racing threads", "read after write", "list after write")
BRIEF_SCALE = Scale(threads=4, races=2, rounds=1)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one trial has found."""

    check: str
    state: str
    evidence: str
    requests: int
    elapsed_s: float


def run(
    bucket: Bucket,
    scale: Scale | None = None,
    *,
    names: Iterable[str] = tuple(TRIALS),
    on_found: Callable[[Finding], object] = lambda _: None,
) -> list[Finding]:
    """Try what a store depends on. `StorageError` if the bucket cannot be used at all."""
    probe = Probe(bucket, scale or Scale())
    found: list[Finding] = []
    try:
        for name in names:
            found.append(_tried(probe, name))
            on_found(found[-1])
    finally:
        left = _cleaned(probe)  # and what was raised is more important than what is left
    return [*found, *left]


def _cleaned(probe: Probe) -> list[Finding]:
    """Delete what was stored; something is found if that fails."""
    watch = Stopwatch()
    try:
        probe.clean_up()
    except StorageError as error:
        return [Finding("clean up", FAILED, f"{error.strerror}; delete {probe.prefix}", 0, watch.elapsed_s)]
    return []


def _tried(probe: Probe, name: str) -> Finding:
    watch, before = Stopwatch(), probe.requests
    try:
        state, evidence = OK, TRIALS[name](probe)
    except Broken as error:
        state, evidence = BAD, str(error)
    except NotHere as error:
        state, evidence = SKIPPED, str(error)
    except StorageError as error:
        if name == "access":
            raise
        state, evidence = FAILED, error.strerror or str(error)
    return Finding(name, state, evidence, probe.requests - before, watch.elapsed_s)


def check(bucket: Bucket) -> None:
    """Try it with some thirty requests; `UnsafeStorage` with the evidence if a promise is broken, another
    `StorageError` if requests failed."""
    refuse(bucket, run(bucket, BRIEF_SCALE, names=BRIEF))


def refuse(bucket: Bucket, findings: Iterable[Finding]) -> None:
    """Raise `UnsafeStorage` if a promise is broken, another `StorageError` if nobody knows."""
    for each in sorted(findings, key=lambda each: each.state != BAD):
        if each.state == BAD:
            raise UnsafeStorage(
                errno.ENOTSUP,
                f"{bucket.url} is not safe for a store: {each.check}: {each.evidence}; use other storage, or a newer "
                "version of this server",
            )
        if each.state == FAILED:
            raise StorageError(errno.EIO, f"{bucket.url} could not be tested: {each.check}: {each.evidence}")
