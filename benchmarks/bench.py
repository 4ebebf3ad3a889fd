"""The context of a benchmark: a directory, the size of the run, and stores that many cases read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dataset import Dataset
from ours import Sawlog
from rivals import Store
from rounds import Candidate, Effort, Trial, expect, timed
from rows import Row


@dataclass(slots=True)
class Bench:
    """One run of the benchmark."""

    directory: Path
    effort: Effort
    _shelf: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    _made: int = 0

    def path(self) -> Path:
        """An unused name."""
        self._made += 1
        return self.directory / f"store-{self._made}"

    def scaled(self, count: int, quick: int) -> int:
        """A number for the whole run, or the smaller one."""
        return quick if self.effort.quick else count

    @contextmanager
    def fresh(self, kind: Callable[..., Any], **settings: Any) -> Iterator[Any]:
        """A new, empty store that is removed afterwards."""
        path = self.path()
        store = kind(path, **settings)
        try:
            yield store
        finally:
            store.close()
            _remove(path)

    def filled(self, kind: type[Store], data: Dataset) -> Any:
        """A rival's store with these records, kept until the end."""
        key = (kind, data)
        if key not in self._shelf:
            store = kind(self.path())
            store.append_many(store.prepared(data))
            expect(store.content(), data.content, f"content of {kind.name}")
            self._shelf[key] = store
        return self._shelf[key]

    def filled_log(self, data: Dataset, batch_records: int = 1000, compression: str = "none") -> Sawlog:
        """Return a sealed log of these records, filled once and kept until the run ends."""
        key = (Sawlog, data, batch_records, compression)
        if key not in self._shelf:
            store = Sawlog(self.path(), compression=compression)
            for batch in store.prepared(data):
                for first in range(0, len(batch), batch_records):
                    store.log.append_many(batch[first : first + batch_records])
            store.log.seal()
            expect(store.content(), data.content, "content of sawlog")
            self._shelf[key] = store
        found: Sawlog = self._shelf[key]
        return found

    def close(self) -> None:
        """Close everything; the caller removes the directory."""
        for store in self._shelf.values():
            store.close()
        self._shelf.clear()


@dataclass(frozen=True, slots=True)
class Case:
    """Some rows that are measured together."""

    name: str
    run: Callable[[Bench], list[Row]]


def working(name: str, work: Callable[[], object], wanted: object) -> Candidate:
    """A candidate without preparation whose work returns its own result."""

    @contextmanager
    def trial() -> Iterator[Trial]:
        found: list[object] = []
        yield Trial(lambda: timed(lambda: found.append(work())), lambda: expect(found, [wanted], name))

    return Candidate(name, trial)


def _remove(path: Path) -> None:
    """The store at `path`, be it a directory or files that are named after it."""
    if path.is_dir():
        shutil.rmtree(path)
    for file in path.parent.glob(f"{path.name}.*"):
        file.unlink()
