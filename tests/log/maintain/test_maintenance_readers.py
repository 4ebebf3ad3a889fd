"""Readers beside maintenance, in this process and in others, see every record that is not superseded, in order, once,
and never an error, whatever is compacted, merged, recompressed, rotated and trimmed under them.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sawlog import Log, LogConfig, Producer
from sawlog.batch.header import scan
from sawlog.batch.read import decode
from sawlog.errors import RecordRemoved
from sawlog.log import reader as reading
from sawlog.log import rewrite
from sawlog.log.followed_segments import FollowedSegmentSet
from sawlog.log.segments import SegmentSet

from ...batch.clients import seen
from ...processes.launch import finish, ready, start
from ...processes.rewriting import SETTINGS, Rewriting
from ...processes.watching import Watching
from ..places import FilePlace, Place, eventually
from ..read.test_usual_reads import Nothing

SEED = int(os.environ.get("SAWLOG_SEED", "7"))
WAYS: list[tuple[str, ...]] = [("follow",), ("read",), ()]


# --- all at once


def watch_here(log: Log, trims: bool, steps: int) -> None:
    """Readers in threads, beside a writer and its maintenance."""
    work = Rewriting(log, SEED, tell=lambda line: None)
    work.append()
    fall = ("fall",) if trims else ()
    watching = [Watching(log, SEED + number, (*way, *fall)) for number, way in enumerate(WAYS)]
    with ThreadPoolExecutor(len(watching)) as pool:
        running = [pool.submit(each.run) for each in watching]
        work.run(range(steps), trims=trims)
        for each in running:
            each.result(timeout=60)


def watch_elsewhere(directory: Path, trims: bool, seed: int, steps: int) -> None:
    """Readers in processes, beside the writer's process."""
    fall, trim = (("fall",), ("trim",)) if trims else ((), ())
    readers = [start("watching", directory, seed, "follow", *fall), start("watching", directory, seed + 1, *fall)]
    finish(ready(start("rewriting", directory, seed, steps, *trim)))
    for reader in readers:
        summary = json.loads(finish(reader).splitlines()[-1])
        assert summary["seen"] > 0


@pytest.mark.sampled(1)  # over a second each
@pytest.mark.parametrize("trims", [False, True], ids=["kept", "trimmed"])
def test_readers_in_the_same_process_see_what_stays(place: Place, trims: bool) -> None:
    watch_here(place.open(SETTINGS.with_(max_mapped_segments=3)), trims, 100)


@pytest.mark.alternating
@pytest.mark.costly  # starts three processes
@pytest.mark.sampled(1)
@pytest.mark.parametrize("trims", [False, True], ids=["kept", "trimmed"])
def test_readers_in_other_processes_see_what_stays(tmp_path: Path, trims: bool) -> None:
    watch_elsewhere(tmp_path, trims, SEED, 50)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("trims", [False, True], ids=["kept", "trimmed"])
def test_readers_at_length(file_place: FilePlace, tmp_path: Path, trims: bool, seed: int) -> None:
    watch_elsewhere(tmp_path / str(seed), trims, seed, 1000)
    watch_here(file_place.open(SETTINGS.with_(max_mapped_segments=3)), trims, 500)


# --- step by step


def numbered(place: Place, *, all_sealed: bool = False, **settings: Any) -> Log:
    """Six keys, written over and over into five sealed segments, and a record in the active one unless `all_sealed`."""
    log = place.open(LogConfig(durability="os", **settings))
    for i in range(60):
        log.append(b"%d" % i * 20, b"%d" % (i % 6))
        if i % 12 == 11:
            log.seal()
    if not all_sealed:
        log.append(b"end", b"end")
    return log


WORK: dict[str, Callable[[Log], object]] = {
    "compact": lambda log: log.compact(),
    "merge": lambda log: log._merge_segments(),
    "recompress": lambda log: log._recompress(),
}


@pytest.mark.parametrize("work", WORK)
def test_a_scan_that_has_begun_goes_on(place: Place, work: str) -> None:
    log = numbered(place)
    expected = [seen(record) for record in log]
    scan, follow = log.scan(), log.follow(timeout=0)
    arrow = log.scan_arrow(batch_rows=5)
    first = [seen(next(scan)), seen(next(follow))]
    rows = next(arrow).column("offset").to_pylist()
    assert first == [expected[0]] * 2
    WORK[work](log)
    stay = [seen(record) for record in log]
    for rest in ([seen(record) for record in scan], [seen(record) for record in follow]):
        assert rest == [record for record in expected if record in rest]
        assert set(stay) - {expected[0]} <= set(rest)
    rows += [offset for batch in arrow for offset in batch.column("offset").to_pylist()]
    assert rows == sorted(set(rows))
    assert {record[0] for record in stay} <= set(rows)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_no_record_comes_twice_when_batches_are_joined_under_a_scan(file_place: FilePlace, elsewhere: bool) -> None:
    """After the replacement, the last record read shares a batch with the next one."""
    log = file_place.open(LogConfig(durability="os"))
    for number in range(30):
        log.append(b"%d" % number)
        if number % 10 == 9:
            log.seal()
    log.append(b"end")
    reader = file_place.open(mode="r") if elsewhere else log
    scan, follow, arrow = reader.scan(), reader.follow(timeout=0), reader.scan_arrow()
    records, followed, rows = [next(scan).offset], [next(follow).offset], next(arrow).column("offset").to_pylist()
    assert log.compact().segments_after == 1
    records += [record.offset for record in scan]
    followed += [record.offset for record in follow]
    rows += [offset for batch in arrow for offset in batch.column("offset").to_pylist()]
    assert records == followed == rows == list(range(31))


@pytest.mark.parametrize("work", WORK)
def test_a_reader_elsewhere_goes_on(file_place: FilePlace, work: str) -> None:
    log = numbered(file_place)
    reader = file_place.open(mode="r", max_mapped_segments=2)
    assert len(list(reader)) == 61
    scan, follow = reader.scan(), reader.follow(timeout=0)
    next(scan)
    next(follow)
    WORK[work](log)
    stay = [seen(record) for record in log]
    for rest in ([seen(record) for record in scan], [seen(record) for record in follow]):
        assert set(stay[1:]) <= set(rest)
        assert [record[0] for record in rest] == sorted({record[0] for record in rest})
    assert [seen(record) for record in reader] == stay
    for offset in range(61):
        try:
            assert seen(reader.read(offset)) in stay
        except RecordRemoved:
            assert offset not in {record[0] for record in stay}


def test_a_time_is_found_while_segments_are_replaced(file_place: FilePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    log = numbered(file_place)
    reader = file_place.open(mode="r", max_mapped_segments=0)
    real = FollowedSegmentSet.refresh
    work: list[Callable[[], object]] = [log._merge_segments, lambda: log.trim(60)]

    def refresh(self: Any) -> bool:
        """The listed files are gone right after the listing."""
        done = real(self)
        if work:
            work.pop(0)()
        return done

    monkeypatch.setattr(FollowedSegmentSet, "refresh", refresh)
    assert reader.offset_at(0) == 0
    assert reader.offset_at(0) == 60
    assert not work


def test_a_page_holds_a_record_however_many_were_removed_before_it(place: Place) -> None:
    """A reader of pages continues after the last record of each page; an empty page would look like the end."""
    log = place.open(LogConfig(durability="os"))
    for number in range(50):
        log.append_many([(b"%d" % number, b"a")], producer=Producer(number, 0, 0))
    log.append_many([(b"x" * 300, b"b"), (b"y", b"c"), (b"z", b"a")])
    log.append_many([(b"1", b"c"), (b"1", b"d")])
    log.seal()
    log.compact()
    stay = [record.offset for record in log]
    assert stay == [50, 52, 53, 54]
    for size in (1, 61, 100, 1000):
        pages, at = [], 0
        while page := list(log.scan(at, max_bytes=size)):
            pages += [record.offset for record in page]
            at = pages[-1] + 1
        assert pages == stay
        for first in range(55):
            assert next(log.scan(first, max_bytes=size)).offset == min(offset for offset in stay if offset >= first)


def test_views_of_a_segment_that_was_replaced_stay_valid(file_place: FilePlace) -> None:
    log = numbered(file_place)
    batches = list(log.scan_arrow(views=True))
    page = log.fetch(0, 1 << 20)
    before = [batch.to_pylist() for batch in batches], page.raw
    log.compact()
    log._merge_segments()
    log._recompress()
    assert ([batch.to_pylist() for batch in batches], page.raw) == before


def pausing(monkeypatch: pytest.MonkeyPatch, directory: Any, look: Callable[[str], None]) -> None:
    """Look at the log between any two changes of its directory, while segments are replaced."""
    real = {name: getattr(type(directory), name) for name in ("rename", "remove", "replace")}

    def wrapped(name: str) -> Any:
        def call(self: Any, first: str, *rest: Any) -> Any:
            done = real[name](self, first, *rest)
            look(f"{name} {first}")
            return done

        return call

    for name in real:
        monkeypatch.setattr(type(directory), name, wrapped(name))


@pytest.mark.sampled(1)  # 0.5 s each
@pytest.mark.parametrize("work", WORK)
def test_between_any_two_steps_of_a_swap_readers_see_a_whole_log(
    file_place: FilePlace, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """One that was open before, one that opens just now, and one in the writer itself."""
    log = numbered(file_place, segment_bytes=3000, max_mapped_segments=0)
    expected = [seen(record) for record in log]
    old = file_place.open(mode="r", max_mapped_segments=0)
    steps: list[str] = []
    lists: list[list[Any]] = []

    def look(step: str) -> None:
        steps.append(step)
        with Log.open(file_place.path, mode="r") as new:
            for reader in (log, new, old):
                found = [seen(record) for record in reader]
                assert found == [record for record in expected if record in found]
                lists.append(found)
                for offset in (0, 30, 59):
                    try:
                        assert seen(reader.read(offset)) == expected[offset]
                    except RecordRemoved:
                        assert work == "compact"
                assert reader.next_offset == 61

    with monkeypatch.context() as patched:
        pausing(patched, log._access.directory, look)
        WORK[work](log)
    assert any(".swap" in step for step in steps)
    stay = {record[0] for record in (seen(r) for r in log)}
    assert all(stay <= {record[0] for record in found} for found in lists)
    if work != "compact":
        assert all(found == expected for found in lists)


def test_a_listing_that_misses_the_swap_and_what_it_replaced_is_looked_at_again(
    file_place: FilePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing a directory is not atomic: a file that is renamed meanwhile may be missing under both names."""
    log = numbered(file_place)
    stale = log._access.directory.names()
    log._merge_segments()
    reader = file_place.open(mode="r")
    real = type(reader._access.directory).names
    lies = [[name for name in stale if not name.startswith(f"{12:020d}")]]

    def names(self: Any) -> list[str]:
        return lies.pop() if lies else real(self)

    monkeypatch.setattr(type(reader._access.directory), "names", names)
    fresh = Log.open(file_place.path, mode="r")
    assert [record.offset for record in fresh] == list(range(61))
    fresh.close()


def test_a_replaced_segment_is_let_go_when_its_readers_are_gone(file_place: FilePlace) -> None:
    log = numbered(file_place)
    list(log)
    for _ in range(30):
        log.compact()
        log.append(b"x", b"0")
        log.seal()
        list(log)
    assert sum(str(file_place.path) in path and path.endswith("(deleted)") for path in open_files()) <= 2


def open_files() -> list[str]:
    """Return the files that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            pass  # the listing itself
    return found


# --- with the writer's other work


def test_appends_go_on_while_a_replacement_is_written(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    log = numbered(place)
    placed: list[int] = []
    real = rewrite.replace_run

    def replace(*arguments: Any) -> Any:
        appended = threading.Thread(target=lambda: placed.append(log.append(b"meanwhile", b"0")))
        appended.start()
        appended.join(timeout=60)
        assert placed, "an append had to wait"
        return real(*arguments)

    monkeypatch.setattr(rewrite, "replace_run", replace)
    assert log.compact().records_removed == 54
    assert placed[0] == 61
    assert log.read(61).value == b"meanwhile"


def test_closing_does_not_wait_for_maintenance_to_finish(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    log = numbered(place)
    began, closing = threading.Event(), threading.Event()
    real = rewrite.chunks_of

    def chunks(*arguments: Any) -> Any:
        began.set()
        assert closing.wait(60)
        yield from real(*arguments)

    monkeypatch.setattr(rewrite, "chunks_of", chunks)
    appender = log._access.appender
    assert appender is not None
    with ThreadPoolExecutor(2) as pool:
        work = pool.submit(log.compact)
        assert began.wait(60)
        closed = pool.submit(log.close)
        assert eventually(lambda: appender.maintenance_lock._closing)
        closing.set()
        closed.result(timeout=60)
        assert type(work.exception(timeout=60)).__name__ == "LogClosed"
    assert not [name for name in place.names() if name.endswith((".tmp", ".swap"))]
    assert place.open().recovery.clean


def test_two_threads_that_compact_take_turns(place: Place) -> None:
    log = numbered(place)
    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda _: log.compact(), range(4)))
    assert sum(report.records_removed for report in reports) == 54
    assert log.verify()


def test_a_log_may_be_removed_during_maintenance(place: Place) -> None:
    log = numbered(place)
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            log.compact()
            log._merge_segments()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(work)
        log.remove()
        done.set()
        error = running.exception(timeout=60)
    assert error is None or type(error).__name__ == "LogClosed"
    assert place.files() == {}


def test_a_page_ends_where_batches_were_joined_under_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would hold a batch that begins before the one in front of it ends."""
    log = numbered(place)
    reader: Any = log._access.reader
    reader._fast = Nothing()  # its pages are never joined under it: see below
    kept = {record.key: seen(record) for record in log}
    real = reading._bytes_of
    compacted: list[object] = []

    def compacting(view: memoryview, rows: Any) -> memoryview:
        made = real(view, rows)
        if not compacted:
            compacted.append(log.compact())
        return made

    monkeypatch.setattr(reading, "_bytes_of", compacting)
    found: dict[bytes | None, Any] = {}
    position, pages = 3, 0
    while position < log.next_offset:
        page = log.fetch(position, 1 << 20)
        found |= {record.key: seen(record) for record in decode(page.raw)}
        assert page.next_offset > position
        position, pages = page.next_offset, pages + 1
    assert pages == 2
    assert found == kept


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_a_page_made_in_one_call_has_no_batches_that_were_joined_under_it(
    place: Place, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page goes on from segment to segment; they are compacted when it looks for one of them, or begins with it. No
    segment follows in which it would notice that later."""
    log = numbered(place, all_sealed=True)
    kept = {record.key: seen(record) for record in log}
    assert len(log.fetch(3, 1 << 20).buffers) == 5  # now all segments are open
    real, calls = SegmentSet.use, list[Any]()

    def compacting(segments: SegmentSet, given: Any) -> Any:
        calls.append(given)
        if len(calls) == number:
            log.compact()
            log.fetch(3, 1 << 20)  # the new segment is open, too
        return real(segments, given)

    monkeypatch.setattr(SegmentSet, "use", compacting)
    found: dict[bytes | None, Any] = {}
    position = 3
    while position < log.next_offset:
        page = log.fetch(position, 1 << 20)
        assert page.next_offset > position
        for before, after in pairwise(scan(page.raw)):
            assert before.last_offset < after.base_offset
        found |= {record.key: seen(record) for record in page.records()}
        position = page.next_offset
    assert len(calls) >= number
    assert found == kept
