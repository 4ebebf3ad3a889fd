"""Points in time: the content of a store at an earlier moment.

```
points/<commits>-<time in ms>     topics, ends, epochs, groups and documents, without extents; deflated JSON
```

The commits of a store describe every earlier state, but they are collected behind checkpoints. Offsets never change, so
the records of a moment can be found in today's store if the ends of all partitions at that moment are known. A point
records these. A replicator keeps one about every minute if something has changed; after a day one per hour is left, and
after a month one per day. Points are never needed for safety.

`at` and `until` search commits first, as far as these reach back, and points beyond that.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from ...clock import Stopwatch, now_ms
from ...errors import CorruptData, InvalidConfig
from ..objects import checkpoints
from ..objects.session import StoreSession
from ..objects.state import State
from ..objects.state.commit import Collected, Commit, canonical, commit_key, read_commit
from ..objects.state.entries import Entries

POINTS = "points/"
#: Minimum interval between points.
EVERY_S = 60.0
#: Interval at which surplus points are deleted. `_SPANS` are (minimum age, interval between points).
_THIN_S = 3600.0
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
_SPANS = ((30 * _DAY_MS, _DAY_MS), (_DAY_MS, _HOUR_MS))
_KINDS = ("topic/", "end/", "epochs/", "group/", "offset/", "document/")


class Point(NamedTuple):
    """A stored point, as described by its key."""

    commits: int
    time_ms: int
    key: str


class Points:
    """The points of one store."""

    def __init__(self, session: StoreSession) -> None:
        self._session = session
        self._since: Stopwatch | None = None
        self._last = -1
        self._thinned = Stopwatch()

    # --- keeping

    def keep_sometimes(self) -> None:
        if self._since is None or self._since.elapsed_s >= EVERY_S:
            self.keep()

    def keep(self) -> None:
        """Store a point of the current state, unless it exists."""
        self._since = Stopwatch()

        def look(state: State) -> tuple[int, list[list[object]]]:
            if state.number == self._last:
                return state.number, []
            return state.number, [
                [name, state.entries.get(name)] for kind in _KINDS for name in state.entries.names(kind)
            ]

        if self._last < 0:
            self._last = max((point.commits for point in self.thin()), default=-1)
        number, entries = self._session.look(look)
        if number != self._last:
            text = canonical({"version": 1, "entries": entries})
            self._session.bucket.put(f"{POINTS}{number:020}-{now_ms():015}", zlib.compress(text, 6))
            self._last = number
        if self._thinned.elapsed_s >= _THIN_S:
            self.thin()

    def thin(self, at_ms: int | None = None) -> list[Point]:
        """Delete surplus points, keeping the first of each hour or day depending on their age, and return the rest."""
        self._thinned = Stopwatch()
        time_ms = now_ms() if at_ms is None else at_ms
        kept: dict[object, Point] = {}
        for point in self.listed():
            age_ms = time_ms - point.time_ms
            span_ms = next((span for older, span in _SPANS if age_ms > older), None)
            place = point.key if span_ms is None else (span_ms, point.time_ms // span_ms)
            if place in kept:
                self._session.bucket.delete(point.key)
            else:
                kept[place] = point
        return list(kept.values())

    # --- finding

    def listed(self) -> list[Point]:
        """Return all points, oldest first."""
        found = []
        for entry in self._session.bucket.list(POINTS):
            commits, _, time_ms = entry.key.removeprefix(POINTS).partition("-")
            if commits.isdigit() and time_ms.isdigit():
                found.append(Point(int(commits), int(time_ms), entry.key))
        return sorted(found)

    def at(self, commits: int) -> State:
        """Return the state after `commits` commits. Raises `InvalidConfig` if it is no longer known."""
        last = self._session.look(lambda state: state.number, fresh=True)
        if not 0 <= commits <= last:
            raise InvalidConfig(
                f"{self._session.bucket.url} has {last} commits, so there was no moment after {commits}"
            )
        for base in self._bases():
            if base.number <= commits:
                found = self._folded(base, lambda commit, number: number >= commits)
                if found is not None:
                    return found
        for point in self.listed():
            if point.commits == commits:
                return self._loaded(point)
        raise InvalidConfig(f"the state after commit {commits} is no longer known; {self._oldest()}")

    def until(self, time_ms: int) -> State:
        """Return the state after the last commit made at that time or before, by the clock of the process that made it.
        Raises `InvalidConfig` if it is no longer known."""
        for base in self._bases():
            first = read_commit(self._session.bucket, commit_key(base.number))
            if first is None or first[0].time_ms > time_ms:
                continue  # too late
            found = self._folded(base, lambda commit, number: commit.time_ms > time_ms)
            if found is not None:
                return found
        before = [point for point in self.listed() if point.time_ms <= time_ms]
        if before:
            return self._loaded(before[-1])
        raise InvalidConfig(f"the state at {shown(time_ms)} is unknown or no longer known; {self._oldest()}")

    def _bases(self) -> Iterator[State]:
        """Yield the states to start from, newest first."""
        for each in checkpoints.listed(self._session.bucket):
            try:
                yield checkpoints.loaded(self._session.bucket, each)
            except Collected:
                continue
        yield State()

    def _folded(self, state: State, is_enough: Callable[[Commit, int], bool]) -> State | None:
        """Fold the commits after a state until `is_enough`. Return None if one of them is collected."""
        last = self._session.look(lambda now: now.number)
        while state.number < last:
            key = commit_key(state.number)
            found = read_commit(self._session.bucket, key)
            if found is None:
                return None
            commit, inline_at = found
            if is_enough(commit, state.number):
                return state
            if commit.digest != state.digest:
                raise CorruptData(f"{key} does not follow the state that was computed")
            state.apply(commit, key, inline_at)
        return state

    def _loaded(self, point: Point) -> State:
        data = self._session.bucket.get(point.key)
        try:
            text = json.loads(zlib.decompress(data or b""))
            if text["version"] != 1:
                raise ValueError(f"its version is {text['version']}")
            entries = [(str(name), value) for name, value in text["entries"]]
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            raise CorruptData(f"{point.key} cannot be read: {error}") from error
        return State(Entries(entries), point.commits)

    def _oldest(self) -> str:
        found: list[tuple[int, int]] = [(point.time_ms, point.commits) for point in self.listed()]
        for base in self._bases():
            commit = read_commit(self._session.bucket, commit_key(base.number))
            if commit is not None:
                found.append((commit[0].time_ms, base.number))
        if not found:
            return "nothing earlier than now is known"
        time_ms, commits = min(found)
        return f"the oldest moment is {shown(time_ms)} (commit {commits})"


def shown(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
