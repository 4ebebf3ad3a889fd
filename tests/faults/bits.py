"""Bit rot: flip one bit of one file, then check everything.

A *fixture* is the complete contents of a disk: a log or a store that was closed, or whose process was killed. A *flip*
is one bit of one of its files. For each flip the fixture's judge opens the directory, first for reading and then for
writing, and checks:

- Below the durable watermark a flip is reported as corruption: by reading, by `verify`, and by opening if that reads
  there. Everything around it is served, byte for byte. Nothing is cut or deleted, and no offset is reused.
- Above the watermark, in the tail of a killed process, it ends the log like a torn tail: set aside, reported, cut.
- In a cache (indexes, producers, maintenance, notes in locks) it costs nothing.
- In a small file with a checksum (catalogue, intents) it is refused with `CorruptFile`; everything that does not need
  the file is served, nothing is lost, and restoring the file restores everything.
- Only sawlog's own errors are raised, and no record appears that was never written.

The four bytes of a batch's leader epoch are outside its checksum, as in Kafka, and have no meaning to sawlog: a flip
there must be harmless.

`python -m tests.faults bits` flips every bit of every fixture, `--flips N` a sample. A violation prints the line that
replays it: fixtures consist of the same bytes every time.
"""

from __future__ import annotations

import argparse
import itertools
import random
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import TypeVar
from unittest.mock import patch

from sawlog import background
from sawlog.errors import SawlogError
from sawlog.storage import Directory, MemoryDirectory

from .report import Tally, say

D = TypeVar("D", bound=Directory)


@dataclass(frozen=True, slots=True)
class Flip:
    """One bit of one file."""

    path: str
    position: int
    bit: int

    def __str__(self) -> str:
        return f"{self.path}:{self.position}:{self.bit}"

    @classmethod
    def parse(cls, text: str) -> Flip:
        """Parse a flip as printed."""
        path, position, bit = text.rsplit(":", 2)
        return cls(path, int(position), int(bit))

    def of(self, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """The files with this bit different."""
        data = bytearray(files[self.path])
        data[self.position] ^= 1 << self.bit
        return {**files, self.path: bytes(data)}


class Violation(AssertionError):
    """A promise that did not hold, with the line that replays it."""


def disk(files: Mapping[str, bytes]) -> MemoryDirectory:
    """A directory in memory that holds these files, and nobody's locks."""
    return written(MemoryDirectory(), files)


def written(root: D, files: Mapping[str, bytes]) -> D:
    """A directory that now holds these files."""
    for path, data in files.items():
        *parents, name = path.split("/")
        directory: Directory = root
        for parent in parents:
            directory = directory.child(parent, create=True)
        if name:
            directory.replace(name, data)
    return root


@dataclass(frozen=True)
class Fixture:
    """The contents of a disk, and the judge of a flip."""

    name: str
    #: All files by path; a directory without any ends with a slash.
    files: Mapping[str, bytes]
    #: Patterns of the files to flip, as in the shell.
    rotten: Sequence[str]
    #: Returns the outcome of a flip in a few words; raises if it breaks a promise.
    judge: Callable[[Fixture, Flip], str]
    #: Creates a directory with the damaged files.
    disk: Callable[[Mapping[str, bytes]], Directory] = disk

    @property
    def paths(self) -> list[str]:
        """The files that rot."""
        return [path for path in sorted(self.files) if any(fnmatchcase(path, pattern) for pattern in self.rotten)]

    def flips(self) -> Iterator[Flip]:
        """Every bit of every file that rots."""
        for path in self.paths:
            yield from (Flip(path, *divmod(number, 8)) for number in range(8 * len(self.files[path])))

    def damaged(self, flip: Flip) -> Directory:
        """The disk with that flip."""
        return self.disk(flip.of(self.files))

    def try_flip(self, flip: Flip) -> str:
        """Return the outcome of a flip; raise `Violation` if a promise is broken or the error is not sawlog's."""
        try:
            return self.judge(self, flip)
        except Exception as error:
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            what = str(error) or traceback.extract_tb(error.__traceback__)[-1].line
            where = "" if isinstance(error, (AssertionError, SawlogError)) else " (not an error of ours)"
            raise Violation(f"{kind}{what}{where}\n  {replay(self, flip)}") from error


def replay(fixture: Fixture, flip: Flip) -> str:
    """The line that does it again."""
    return f"python -m tests.faults bits --fixture '{fixture.name}' --flip '{flip}'"


def files_of(directory: Directory, prefix: str = "") -> dict[str, bytes]:
    """All files below a directory by path; a directory itself ends with a slash."""
    found = {prefix + name: directory.read(name) for name in directory.names()}
    for name in directory.children():
        found[f"{prefix}{name}/"] = b""
        found |= files_of(directory.child(name), f"{prefix}{name}/")
    return found


@contextmanager
def standing_still(now_ms: int = 1_700_000_000_000) -> Iterator[None]:
    """The clock stands, ids are counted, nothing runs in the background: a fixture has the same bytes every time."""
    ids = (uuid.UUID(int=number, version=4) for number in itertools.count(1))
    with ExitStack() as patched:
        patched.enter_context(background.suspended())
        patched.enter_context(patch("time.time_ns", lambda: now_ms * 1_000_000))
        patched.enter_context(patch("time.time", lambda: now_ms / 1000))
        patched.enter_context(patch("uuid.uuid4", lambda: next(ids)))
        yield


@cache
def fixtures() -> tuple[Fixture, ...]:
    """Return all fixtures."""
    from . import rotten_logs, rotten_stores

    with standing_still():
        return *rotten_logs.fixtures(), *rotten_stores.fixtures()


def sample(fixture: Fixture, count: int, seed: int) -> list[Flip]:
    """Choose `count` flips by a seed, spread over the files: every file gets some, a large one more."""
    chance = random.Random(f"{seed} {fixture.name}")
    sizes = {path: 8 * len(fixture.files[path]) for path in fixture.paths if fixture.files[path]}
    least = max(count // (4 * len(sizes)), 1)
    chosen = [(path, number) for path, size in sizes.items() for number in chance.sample(range(size), min(least, size))]
    more = max(count - len(chosen), 0)
    weighted = chance.choices(list(sizes), list(sizes.values()), k=more)
    chosen += [(path, chance.randrange(sizes[path])) for path in weighted]
    return [Flip(path, *divmod(number, 8)) for path, number in chosen]


def try_all(fixture: Fixture, flips: Iterable[Flip], tally: Tally) -> None:
    """Try the flips one after the other and report every violation."""
    for flip in flips:
        try:
            what = fixture.try_flip(flip)
        except Violation as found:
            tally.violation(str(found))
            what = "VIOLATION"
        kind = flip.path.rsplit("/", 1)[-1].lstrip("0123456789-.") or flip.path
        tally.advance(what=f"{fixture.name}, {kind}: {what}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """For `python -m tests.faults bits`."""
    parser.add_argument("--flips", type=int, help="so many flips of each fixture, chosen by the seed (default: all)")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="I/N", help="of N equal parts only the I-th")
    parser.add_argument("--fixture", help="only those with this in their name")
    parser.add_argument("--flip", type=Flip.parse, metavar="FILE:BYTE:BIT", help="only this one, as it was printed")


def _part(text: str) -> tuple[int, int]:
    number, _, parts = text.partition("/")
    return int(number), int(parts)


def run(options: argparse.Namespace) -> int:
    """Flip, look, count."""
    chosen = [each for each in fixtures() if options.fixture is None or options.fixture in each.name]
    if options.flip is not None:
        for fixture in chosen:
            if options.flip.path in fixture.files:
                say(f"{fixture.name}: {fixture.try_flip(options.flip)}")
        return 0
    count, (part, parts) = options.flips, options.part
    work = [
        (each, (sample(each, count, options.seed) if count else list(each.flips()))[part - 1 :: parts])
        for each in chosen
    ]
    with Tally("bits", sum(len(flips) for _, flips in work), "flips") as tally:
        for fixture, flips in work:
            try_all(fixture, flips, tally)
    return tally.finish()
