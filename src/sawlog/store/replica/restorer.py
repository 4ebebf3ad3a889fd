"""`Restorer`: restores a store on object storage to a directory, as it is now or at an earlier point in time.

Batches keep their bytes and offsets, topics their ids, and groups their committed offsets. The directory itself records
the progress, so an interrupted restore continues, after comparing its last batches with those in the bucket. Until it
is complete, no other process can open the directory (`sawlog.store.directory.founding`).

With `follow`, it keeps copying new records until it is stopped: a warm standby, which others may read meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from typing import Any

from ...addresses import check_local
from ...batch.header import COUNT, SIZE
from ...clock import now_ms
from ...closing import Closing
from ...errors import ImportMismatch, InvalidConfig, StorageError
from ...log.log import Log
from ...storage import FileDirectory
from ..directory import founding
from ..directory.founding import Standby
from ..directory.store import DirectoryStore
from ..groups import Committed
from ..names import RESTORE, RESTORE_LOCK, STORE
from ..objects.bucket import Unanswered
from ..objects.state import State
from ..objects.state.commit import Extent, epoch_of
from ..objects.state.entries import Entries
from ..objects.store import ObjectStore
from .metadata import documents_of
from .points import Points, shown
from .replicator import Lag, Progress
from .shipment import between, cut_below, is_same_batch, read_ahead

#: Polling interval for changes of the bucket.
POLL_S = 0.5
#: Number of partitions copied in parallel.
_WORKERS = 4
#: Maximum number of times extents are looked up again because they were consolidated and removed while being read.
_LOOKS = 5
#: Entries that a copy of the state does not need.
_LEFT_OUT = ("extent/", "nonce/", "producer/", "named/")


class Restorer(Closing):
    """Restores one directory. Not thread-safe."""

    def __init__(
        self,
        url: str,
        path: str | PathLike[str],
        *,
        at_commit: int | None = None,
        until_ms: int | None = None,
        topics: Iterable[str] = (),
        registry: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        if at_commit is not None and until_ms is not None:
            raise InvalidConfig("a moment is given by a commit or by a time, not by both")
        self._at_commit, self._until_ms = at_commit, until_ms
        self._topics = frozenset(topics)
        self._registry = registry
        self.progress = Progress()
        #: Number of commits at the last round.
        self._done = -1
        #: Partitions whose last batch was compared.
        self._compared: set[tuple[str, int]] = set()
        self._mutex = threading.Lock()
        with ExitStack() as undo:
            self._source = undo.enter_context(ObjectStore.open(url, "r", options=options))
            self._session = self._source._session
            self._view = self._moment()
            self._directory = FileDirectory(path, create=True)
            undo.callback(self._directory.close)
            undo.callback(founding.guard(self._directory).release)
            self._begin()
            self._store = undo.enter_context(DirectoryStore.open(path, maintenance_interval_s=None, filling=True))
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Close both stores. If the directory is complete, others can open it then."""
        self._undo.close()

    # --- point in time

    def _moment(self) -> State | None:
        points = Points(self._session)
        if self._at_commit is not None:
            return points.at(self._at_commit)
        return None if self._until_ms is None else points.until(self._until_ms)

    def _begin(self) -> None:
        """Mark the directory as incomplete, or continue an incomplete one."""
        moment = "now" if self._at_commit is None else f"commit {self._at_commit}"
        if self._until_ms is not None:
            moment = shown(self._until_ms)
        wanted = Standby(self._session.bucket.url, moment, complete=False)
        noted = founding.found(self._directory)
        if noted is not None and replace(noted, complete=False) != wanted:
            raise ImportMismatch(
                f"{self._directory.path} is being restored from {noted.source} ({noted.moment}), not from "
                f"{wanted.source} ({moment}): use a new directory"
            )
        if noted is not None:
            return
        there = [*self._directory.names(), *self._directory.children()]
        if STORE in there:
            raise ImportMismatch(f"{self._directory.path} is a store of its own: restore into a new directory")
        if set(there) - {RESTORE_LOCK, f"{RESTORE}.tmp", "lost+found"}:
            raise InvalidConfig(f"{self._directory.path} is not empty: restore into a new directory")
        founding.note(self._directory, wanted)

    # --- rounds

    def run(
        self,
        *,
        follow: bool = False,
        stopped: threading.Event | None = None,
        on_round: Callable[[Progress], None] = lambda progress: None,
    ) -> Progress:
        """Restore the directory; with `follow`, keep following until `stopped` is set."""
        if follow and self._view is not None:
            raise InvalidConfig("a moment that has passed cannot be followed")
        ended = threading.Event() if stopped is None else stopped
        self.round()
        noted = founding.found(self._directory)
        assert noted is not None
        if follow:
            founding.note(self._directory, replace(noted, complete=True))
        else:
            founding.end(self._directory)
        on_round(self.progress)
        while follow and not ended.wait(POLL_S):
            try:
                self.round()
                self.progress.problems.clear()
            except Unanswered as error:  # retried
                self.progress.problems["the bucket"] = str(error)
            on_round(self.progress)
        return self.progress

    def round(self) -> None:
        """Copy everything that is missing now."""
        number = self._session.look(lambda state: state.number, fresh=True)
        if self._view is None and number == self._done:
            return
        wanted = self._session.look(_frozen) if self._view is None else _frozen(self._view)
        names = [name for name in wanted.topics() if not self._topics or name in self._topics]
        self._make_topics(wanted, names)
        places = [(name, number) for name in names for number in range(_entry(wanted, name)["partitions"])]
        self._note_lags(wanted, places)
        with ThreadPoolExecutor(_WORKERS, "sawlog-restore") as pool:
            for done in [pool.submit(self._fill, wanted, *place) for place in places]:
                done.result()
        self._commit_offsets(wanted, names)
        if self._registry:
            for name, fields in documents_of(wanted).items():
                self._store._registry.change(name, lambda before, fields=fields: fields)  # type: ignore[misc]
        self.progress.rounds += 1
        self._done = number
        self._note_lags(wanted, places)

    def _note_lags(self, wanted: State, places: Iterable[tuple[str, int]]) -> None:
        lags: dict[str, Lag] = {}
        for name, number in places:
            topic_id = _entry(wanted, name)["id"]
            left = wanted.ends(topic_id, number)[1] - self._store.topic(name).partition(number).next_offset
            before = lags.get(name, Lag(name, 0, 0, 0.0))
            lags[name] = before._replace(records=before.records + max(left, 0))
        self.progress.lags = lags

    def _make_topics(self, wanted: State, names: Iterable[str]) -> None:
        there = set(self._store.topics())
        for name in names:
            entry = _entry(wanted, name)
            if name in there and self._store.topic(name).id != entry["id"]:
                self._store.delete_topic(name)
                there.discard(name)
            if name not in there:
                self._store._copy_topic(name, entry["id"], entry["partitions"], entry["settings"])
                continue
            topic = self._store.topic(name)
            settings, count = dict(entry["settings"]), max(entry["partitions"], topic.partitions)
            if dict(topic.settings) != settings or topic.partitions != count:
                gone = dict.fromkeys(set(topic.settings) - set(settings))
                self._store.alter_topic(name, count, **{**settings, **gone})
        for name in there - set(wanted.topics()):
            self._store.delete_topic(name)

    # --- partitions

    def _fill(self, wanted: State, name: str, number: int) -> None:
        """Copy the missing records of a partition, and drop records that the source has dropped."""
        topic_id = _entry(wanted, name)["id"]
        start, end = wanted.ends(topic_id, number)
        is_there, now = self._session.look(
            lambda state: ((state.topic(name) or {}).get("id") == topic_id, state.ends(topic_id, number))
        )
        if not is_there:
            raise ImportMismatch(f"{name} was deleted since, and cannot be restored; name the topics to restore")
        start = min(max(start, now[0]), end)  # records dropped since are gone
        topic = self._store.topic(name)
        with topic._partitions.holding(number) as logs:
            log = logs[number]
            if log.next_offset > end:
                raise ImportMismatch(
                    f"{log.path} has records up to {log.next_offset}, but ends at {end} where it comes from: it was "
                    "written to; restore into a new directory"
                )
            log._retract_epochs(epoch_of(wanted.epochs(topic_id, number), max(log.next_offset - 1, 0)))
            self._compare(log, name, topic_id, number, start)
            if log.next_offset < start:
                log._advance(start, wait=False)
            if log.next_offset < end:
                self._copy(log, topic_id, number, end, f"{name}/{number}")
                log.sync()
            if log.lowest_offset < start:
                log.trim(start)

    def _compare(self, log: Log, name: str, topic_id: str, number: int, start: int) -> None:
        """Raise `ImportMismatch` unless the last batch of the directory is in the bucket. A bucket that was rolled back
        since would continue it with records of another history."""
        last = log.next_offset - 1
        if (name, number) in self._compared or last < max(log.lowest_offset, start):
            return
        if not is_same_batch(self._session, log, name, topic_id, number, last):
            raise ImportMismatch(
                f"{log.path} has another record at offset {last} than {self._session.bucket.url}: the bucket was "
                "rolled back since this restore began, or is another one; restore into a new directory"
            )
        self._compared.add((name, number))

    def _copy(self, log: Log, topic_id: str, number: int, end: int, where: str) -> None:
        for attempt in range(_LOOKS):
            try:
                self._copy_extents(log, self._extents(topic_id, number, log.next_offset, end), end, where)
                break
            except StorageError:  # consolidated and removed since the lookup
                if attempt == _LOOKS - 1 or not log._is_writable:
                    raise
        if log.next_offset != end:
            raise ImportMismatch(f"{where} ends at {log.next_offset} instead of {end}: batches are missing")

    def _extents(self, topic_id: str, number: int, start: int, end: int) -> list[Extent]:
        return self._session.look(lambda state: list(state.extents(topic_id, number, start, end)), fresh=True)

    def _copy_extents(self, log: Log, extents: list[Extent], end: int, where: str) -> None:
        for read in read_ahead(self._session, extents):
            batches = between(read, log.next_offset, end, where)
            if batches is None:
                continue
            if log.next_offset > log.lowest_offset:  # otherwise its first batch may begin before the partition does
                batches = cut_below(batches, log.next_offset, log.config.max_decompressed_bytes)
            log._copy_batches(batches.data, batches.rows)
            with self._mutex:
                self.progress.records += int(batches.rows[:, COUNT].sum())
                self.progress.size_bytes += int(batches.rows[:, SIZE].sum())

    # --- groups

    def _commit_offsets(self, wanted: State, names: Iterable[str]) -> None:
        """Restore the committed offsets of groups in the restored topics."""
        ids = {_entry(wanted, name)["id"]: name for name in names}
        changes: list[tuple[str, dict[tuple[str, int], Committed | None]]] = []
        for group in wanted.groups():
            before = self._store.groups._offsets.of(group)
            made: dict[tuple[str, int], Committed | None] = {}
            for (topic_id, number), (offset, metadata, epoch) in wanted.offsets(group).items():
                if topic_id not in ids:
                    continue
                new, was = (
                    Committed(offset, topic_id, metadata, now_ms(), "", epoch),
                    before.get((ids[topic_id], number)),
                )
                if was is None or replace(was, time_ms=new.time_ms, member="") != new:
                    made[ids[topic_id], number] = new
            if made:
                changes.append((group, made))
        gone = set(self._store.groups._offsets.groups()) - set(wanted.groups())
        changes += [(group, dict.fromkeys(self._store.groups._offsets.of(group))) for group in sorted(gone)]
        if changes:
            with self._store.groups._offsets.turn() as turn:
                turn.write_all(changes)


def _entry(state: State, name: str) -> Mapping[str, Any]:
    found = state.topic(name)
    assert found is not None
    return found


def _frozen(state: State) -> State:
    """Return a copy of the state without its extents, since the state changes while records are copied."""
    return State(
        Entries((name, value) for name, value in state.entries if not name.startswith(_LEFT_OUT)), state.number
    )


def restore(
    url: str,
    path: str | PathLike[str],
    *,
    at_commit: int | None = None,
    until_ms: int | None = None,
    topics: Iterable[str] = (),
    registry: bool = False,
    follow: bool = False,
    options: Mapping[str, str] | None = None,
    stopped: threading.Event | None = None,
    on_round: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Restore a store on object storage to a new directory, with the same topics, offsets and groups.

    With `at_commit` or `until_ms`, restore its content after that many commits, or after the last commit made at that
    time or before. With `follow`, keep the directory up to date until `stopped` is set. To continue an interrupted
    restore, call it again.
    """
    check_local(path, "the directory to restore to")
    with Restorer(
        url, path, at_commit=at_commit, until_ms=until_ms, topics=topics, registry=registry, options=options
    ) as restorer:
        return restorer.run(follow=follow, stopped=stopped, on_round=on_round)
