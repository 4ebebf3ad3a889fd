"""Records that are safely in the replica are removed locally and read from there: readers see the same topic."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import sawlog
from sawlog import Log, Store
from sawlog.batch.header import POSITION, SIZE
from sawlog.errors import InvalidConfig, RemoteUnavailable, StorageError, StoreNotFound
from sawlog.log.ingest import rows_of
from sawlog.store.directory.replica import ReplicaAddress
from sawlog.store.objects.bucket import Bucket, public_options
from sawlog.store.objects.cache import BlockCache
from sawlog.store.objects.store import ObjectStore
from sawlog.store.replica import promote, restore

from .. import warm
from ..cli.conftest import Cli
from ..log.transactional import batch
from ..objects.histories import give_cache
from .pairs import assert_comes_back, replicator, ship

SETTINGS: dict[str, Any] = {"segment_bytes": 2000, "local_retention_bytes": 2000, "merge_bytes": 0}


class Tiered:
    """A store with a topic whose older part is only in its replica."""

    def __init__(self, path: Path, count: int = 200, **settings: Any) -> None:
        self.data, self.url = path / "data", f"file://{path}/bucket"
        self.store = self.open()
        self.store.create_topic("orders", **{**SETTINGS, **settings})
        self.append(count)
        self.ship()
        self.tier()

    def open(self) -> Store:
        return sawlog.open(self.data, maintenance_interval_s=None)

    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()

    @property
    def log(self) -> Log:
        return self.store["orders"].partition(0)

    def append(self, count: int) -> None:
        first, topic = self.log.next_offset, self.store["orders"]
        for number in range(first, first + count):
            topic.append(b"value %d" % number, key=b"%d" % (number % 5), timestamp=1000 + number)

    def ship(self, **more: Any) -> Any:
        return ship(self.data, self.url, **more)

    def tier(self) -> list[str]:
        return [str(each) for each in self.store.maintain() if each]


@pytest.fixture
def tiered(tmp_path: Path) -> Any:
    made = Tiered(tmp_path)
    assert 0 < made.log._local_offset < 200
    yield made
    made.store.close()


def values(log: Log) -> list[bytes | None]:
    return [each.value for each in log.scan()]


def expected(start: int, end: int) -> list[bytes]:
    return [b"value %d" % number for number in range(start, end)]


# --- everybody reads it


def test_logs_consumers_and_groups_read_it(tiered: Tiered) -> None:
    assert tiered.log.lowest_offset == 0
    for _ in range(2):
        with pytest.raises(StorageError, match="only in the replica; use fetch"):
            tiered.log.reader()
        tiered.log._end_turn()  # between two turns, a process reads as others do
    assert values(tiered.log) == expected(0, 200)
    with tiered.store.consumer("all", ["orders"]) as consumer:
        assert [each.value for each in consumer.drain()] == expected(0, 200)
    tiered.store.groups.commit("late", {("orders", 0): 37})
    with tiered.store.consumer("late", ["orders"]) as consumer:
        assert [each.value for each in consumer.drain()] == expected(37, 200)
    assert tiered.store.groups.describe("late").rows[0].lag == 0


def test_sql_counts_and_reads_it(tiered: Tiered) -> None:
    def ask(query: str) -> list[dict[str, Any]]:
        return tiered.store.sql(query).to_pylist()

    [row] = ask('select count(*) c, min("offset") a, max("offset") b, min(timestamp) s, max(timestamp) t from orders')
    assert (row["c"], row["a"], row["b"]) == (200, 0, 199)
    assert [round(row[name].timestamp() * 1000) for name in "st"] == [1000, 1199]
    assert [each["v"] for each in ask('select value v from orders order by "offset"')] == expected(0, 200)
    assert ask("select count(*) c from orders where timestamp < '1970-01-01 00:00:01.050Z'") == [{"c": 50}]
    assert {each["key"]: each["c"] for each in ask("select key, count(*) c from orders group by key")} == {
        b"%d" % number: 40 for number in range(5)
    }


def test_slices_are_read_in_another_process_and_after_more_was_removed(tiered: Tiered) -> None:
    topic = tiered.store["orders"]
    tiered.append(100)
    planned = topic._plan(0, 0, 300, target_bytes=1000)
    assert len({type(each) for each in planned}) == 2
    assert [each.start_offset for each in planned] == [0, *(each.end_offset for each in planned[:-1])]
    tiered.ship()
    assert tiered.tier()  # files of the plan are gone now
    with sawlog.open(tiered.data, "r") as other:
        reader = other._slice_reader("orders", topic.id, 0)
        found: list[int] = []
        for piece in planned:
            for each in reader.read(piece, columns=["offset"], batch_rows=1000):
                found += each.column(0).to_pylist()
        reader.close()
    assert found == list(range(300))


def test_another_process_reads_it(tiered: Tiered) -> None:
    program = (
        "import sawlog, sys\n"
        "with sawlog.open(sys.argv[1], 'r') as store: print([r.offset for r in store['orders'].scan()])"
    )
    found = warm.run(["-c", program, str(tiered.data)], timeout=60)
    assert found.stdout == f"{list(range(200))}\n"


def test_commands_say_what_is_only_in_the_replica(tiered: Tiered) -> None:
    run = Cli(tiered.data)
    here = tiered.log._local_offset
    tiered.store.close()
    assert run("read", "orders", "-d", tiered.data).ok().lines == [each.decode() for each in expected(0, 200)]
    for command in (["stats"], ["verify"], ["topic", "describe", "orders"]):
        said = " ".join(run(*command, "-d", tiered.data).ok().err.split())
        assert f"offsets 0 to {here - 1} (" in said, command
        assert "are only in the replica" in said


def test_commands_report_that_the_list_of_what_is_only_in_the_replica_is_gone(tiered: Tiered) -> None:
    here = tiered.log._local_offset
    tiered.store.close()
    (tiered.data / "topics" / "orders" / "partition-0" / "remote").unlink()
    lost = "partition-0/remote at byte 0: the list of segments that are only in the replica is missing"
    run = Cli(tiered.data)
    for command, code in (("verify", 4), ("doctor", 1), ("repair", 4)):
        found = run(command, "-d", tiered.data)
        assert found.code == code
        assert lost in " ".join((found.out + found.err).split()), command
    assert run("read", "orders", "-d", tiered.data).ok().lines == [each.decode() for each in expected(0, 200)]
    tiered.store = tiered.open()
    tiered.tier()
    assert (tiered.log.lowest_offset, tiered.log._local_offset) == (0, here)
    run("verify", "-d", tiered.data).ok()


def test_an_export_has_all_of_it(tiered: Tiered, tmp_path: Path) -> None:
    tiered.store.close()
    Cli(tiered.data)("export", "orders", tmp_path / "kafka", "-d", tiered.data, "--format", "kafka").ok()
    found = b"".join(each.read_bytes() for each in sorted((tmp_path / "kafka").rglob("*.log")))
    assert all(value in found for value in expected(0, 200))


# --- a replica that is unreachable, or another one


def test_an_unrecorded_replica_is_an_error_that_says_what_to_do(tiered: Tiered) -> None:
    (tiered.data / "replica.json").unlink()
    here = tiered.log._local_offset
    with pytest.raises(RemoteUnavailable, match="sawlog replicate"):
        values(tiered.log)
    assert [each.value for each in tiered.log.scan(here)] == expected(here, 200)
    tiered.ship()
    assert values(tiered.log) == expected(0, 200)


def test_an_unreachable_replica_is_an_error_and_maintenance_goes_on(tiered: Tiered, tmp_path: Path) -> None:
    tiered.append(100)
    tiered.ship()
    tiered.store.close()
    (tmp_path / "bucket").rename(tmp_path / "away")
    tiered.store = tiered.open()
    with pytest.raises(RemoteUnavailable, match="bucket"):
        values(tiered.log)
    [said] = tiered.tier()
    assert "nothing was removed" in said
    here = tiered.log._local_offset
    assert [each.value for each in tiered.log.scan(here)] == expected(here, 300)
    (tmp_path / "away").rename(tmp_path / "bucket")
    assert values(tiered.log) == expected(0, 300)


def test_maintenance_says_that_the_replica_has_lost_the_commit_with_the_records(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path, local_retention_bytes=None)
    bucket = Bucket(tiered.url)
    bucket.delete(max(bucket.list("commits/"), key=lambda entry: entry.size_bytes).key)
    tiered.store.alter_topic("orders", local_retention_bytes=2000)
    for _ in range(2):  # with the log locked by this process, and without
        tiered.reopen()
        [said] = tiered.tier()
        assert "nothing was removed" in said
        assert "the replica does not have offsets 0 to " in said
        assert tiered.log._local_offset == 0
        tiered.append(1)
        assert "the replica does not have offsets 0 to " in tiered.tier()[0]
    tiered.store.close()


def test_a_promoted_replica_is_read_and_not_trusted_with_more(tiered: Tiered) -> None:
    tiered.append(100)
    tiered.ship()
    here = tiered.log._local_offset
    promote(tiered.url)
    [said] = tiered.tier()
    assert "promoted" in said
    assert tiered.log._local_offset == here
    assert values(tiered.log) == expected(0, 300)


def test_a_topic_that_is_deleted_in_the_replica_is_an_error_and_is_not_shipped_over(tiered: Tiered) -> None:
    with ObjectStore.open(tiered.url, maintenance_interval_s=None) as replica:
        replica.delete_topic("orders")
    tiered.reopen()
    with pytest.raises(RemoteUnavailable, match="deleted there"):
        values(tiered.log)
    tiered.append(20)
    done = tiered.ship()
    assert "only in the replica" in done.problems["orders/0"]
    here = tiered.log._local_offset
    assert [each.value for each in tiered.log.scan(here)] == expected(here, 220)


def test_a_recreated_topic_has_nothing_to_do_with_the_one_before(tiered: Tiered) -> None:
    tiered.store.delete_topic("orders")
    tiered.store.create_topic("orders", **SETTINGS)
    tiered.append(100)
    assert "does not have orders/0" in "".join(tiered.tier())
    assert tiered.log._local_offset == 0
    tiered.ship(delete=True)
    assert tiered.tier()
    assert values(tiered.log) == expected(0, 100)


# --- retention, and mirrored retention


def test_mirrored_retention_follows_the_start_of_the_log_and_not_what_is_here(tiered: Tiered) -> None:
    for _ in range(3):
        tiered.append(30)
        tiered.ship(mirror_retention=True)
        tiered.tier()
        with ObjectStore.open(tiered.url, "r") as replica:
            assert replica["orders"].partition(0).lowest_offset == 0
    assert values(tiered.log) == expected(0, 290)
    tiered.store["orders"].trim({0: 55})
    tiered.ship(mirror_retention=True)
    with ObjectStore.open(tiered.url, "r") as replica:
        assert replica["orders"].partition(0).lowest_offset == 55
    assert values(tiered.log) == expected(55, 290)


def test_a_restored_store_has_everything_here(tiered: Tiered, tmp_path: Path) -> None:
    assert_comes_back(tiered.store, tiered.url, tmp_path / "again")
    with sawlog.open(tmp_path / "again", maintenance_interval_s=None) as again:
        log = again["orders"].partition(0)
        assert (log._local_offset, again.replica) == (0, None)
        assert not any(again.maintain())  # it has no replica of its own


def test_another_replica_gets_all_of_it_and_takes_over(tiered: Tiered, tmp_path: Path) -> None:
    other = f"file://{tmp_path}/other"
    before = tiered.store.replica
    first = replicator(tiered.data, other)
    assert tiered.store.replica == before
    first.run(once=True)
    first.close()
    ship(tiered.data, other)
    assert tiered.store.replica == ReplicaAddress(other)
    (tmp_path / "bucket").rename(tmp_path / "away")
    tiered.reopen()
    assert values(tiered.log) == expected(0, 200)


def test_a_topic_that_took_another_name_is_not_deleted_in_the_replica(tiered: Tiered) -> None:
    tiered.store.create_topic("instead")
    tiered.store["instead"].append(b"x")
    tiered.store.replace_topic("instead", "orders")
    done = tiered.ship(delete=True)
    assert "has another name" in done.problems["orders"]
    log = tiered.store["instead"].partition(0)
    assert values(log) == expected(0, 200)


# --- settings and the address


def test_settings_are_checked(tmp_path: Path) -> None:
    with sawlog.open(tmp_path, maintenance_interval_s=None) as store:
        with pytest.raises(InvalidConfig, match="compact"):
            store.create_topic("keyed", cleanup_policy="compact", local_retention_ms=5)
        with pytest.raises(InvalidConfig, match="at most"):
            store.create_topic("long", retention_ms=5, local_retention_ms=6)
        with pytest.raises(InvalidConfig, match="at most"):
            store.create_topic("long", retention_bytes=5, local_retention_bytes=-1)
        topic = store.create_topic("orders", retention_ms=5, local_retention_ms=-2)
        assert topic.config.local_retention_ms is None
        with pytest.raises(InvalidConfig, match="compact"):
            store.alter_topic("orders", cleanup_policy="compact", local_retention_ms=1)


def test_credentials_are_not_recorded() -> None:
    given = {
        "endpoint": "http://127.0.0.1:9000",
        "aws_region": "eu-central-1",
        "timeout": "5s",
        "access_key_id": "me",
        "aws_secret_access_key": "secret",
        "session_token": "secret",
        "proxy_url": "http://me:secret@proxy",
        "aws_endpoint_url": "http://me:secret@127.0.0.1",
    }
    assert set(public_options(given)) == {"endpoint", "aws_region", "timeout"}


def test_a_replica_in_memory_is_not_trusted(tmp_path: Path) -> None:
    with sawlog.open(tmp_path, maintenance_interval_s=None) as store:
        store.create_topic("orders", **SETTINGS)
        for _ in range(100):
            store["orders"].append(b"x" * 100)
        ship(tmp_path, "memory://not-for-long")
        assert store.replica is None
        assert not any(store.maintain())


# --- all of it together


@pytest.mark.alternating
@pytest.mark.parametrize(
    ("seed", "steps"), [(0, 50), *(pytest.param(seed, 120, marks=pytest.mark.slow) for seed in range(4))]
)
def test_any_steps_leave_exactly_the_records(tmp_path: Path, seed: int, steps: int) -> None:
    """A writer, transactions, a replicator, removal, trimming, retention and restarts, against a list."""
    chosen = random.Random(seed)
    made = Tiered(tmp_path, 20)
    kept = expected(0, 20)
    offsets = list(range(20))
    start, sequence = 0, 0
    for _ in range(steps):
        step = chosen.randrange(14)
        end = made.log.next_offset
        if step < 5:
            for number in range(end, end + chosen.randrange(1, 25)):
                made.store["orders"].append(b"value %d" % number, timestamp=1000 + number)
                kept.append(b"value %d" % number)
                offsets.append(number)
        elif step < 7:
            commit = chosen.random() < 0.5
            log = made.store["orders"].partition(0)
            log.append_batches(batch([b"in %d" % end], 9, sequence=sequence))
            sequence += 1
            log.append_marker(9, 0, commit=commit)
            if commit:
                kept.append(b"in %d" % end)
                offsets.append(end)
        elif step < 9:
            made.ship(mirror_retention=chosen.random() < 0.5)
        elif step < 11:
            made.tier()
        elif step < 12:
            start = chosen.randrange(start, min(start + 60, end + 1))
            made.store["orders"].trim({0: start})
        elif step < 13:
            made.reopen()
        else:
            made.store["orders"].partition(0)
        lowest = made.log.lowest_offset
        assert lowest == start
        wanted = [value for at, value in zip(offsets, kept, strict=True) if at >= start]
        assert values(made.log) == wanted
        if chosen.random() < 0.2:
            with sawlog.open(made.data, "r") as other:
                assert values(other["orders"].partition(0)) == wanted
                assert [
                    row["v"] for row in other.sql('select value v from orders order by "offset"').to_pylist()
                ] == wanted
                assert other.sql("select count(*) c from orders").to_pylist() == [{"c": len(wanted)}]
            with made.store.consumer(f"group {chosen.random()}", ["orders"]) as consumer:
                assert [each.value for each in consumer.drain()] == wanted
            at = chosen.choice([*[each for each in offsets if each >= start], end])
            found = made.log.scan(at)
            assert [each.offset for each in found] == [each for each in offsets if each >= at]
    made.ship()
    assert made.log._local_offset > 0
    restore(made.url, tmp_path / "again")
    with sawlog.open(tmp_path / "again", "r") as again:
        assert_same_records(made.store, again)
    made.store.close()


def assert_same_records(one: Store, other: Store) -> None:
    """The replica may start earlier: it keeps what retention drops."""
    mine, theirs = one["orders"].partition(0), other["orders"].partition(0)
    assert [each.value for each in theirs.scan(mine.lowest_offset)] == values(mine)


_REMOVE = """
import sys, sawlog
print('begun', flush=True)
with sawlog.open(sys.argv[1], maintenance_interval_s=None) as store:
    while True:
        store.maintain()
"""


@pytest.mark.alternating
def test_a_process_that_removes_is_killed_at_any_moment(tmp_path: Path) -> None:
    made = Tiered(tmp_path, 20)
    for round_number in range(4):
        made.append(60)
        made.ship()
        made.store.close()
        victim = warm.start(["-c", _REMOVE, str(made.data)], stdout=subprocess.PIPE, text=True)
        assert victim.stdout is not None
        assert victim.stdout.readline() == "begun\n"
        try:
            victim.wait(0.03 + 0.04 * round_number)
        except subprocess.TimeoutExpired:
            pass
        victim.kill()
        victim.communicate()
        made.store = made.open()
        assert values(made.log) == expected(0, 20 + 60 * (round_number + 1))
    made.ship()
    made.tier()
    assert made.log._local_offset > 200
    assert values(made.log) == expected(0, 260)
    made.store.close()


def test_asyncio_reads_it_without_standing_still(tiered: Tiered) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    async def read() -> None:
        async with sawlog.open_async(tiered.data, "r") as store:
            topic = await store.topic("orders")
            ticking = asyncio.ensure_future(tick())
            assert [each.value async for each in topic.scan()] == expected(0, 200)
            assert (await topic.read((0, 3))).value == b"value 3"
            assert await topic.offset_at(1003) == {0: 3}
            assert [each.offset async for each in topic.follow(timeout=0)] == list(range(200))
            ticking.cancel()

    asyncio.run(read())
    assert ticks


# --- outside changes of files, names and addresses


@pytest.mark.alternating
@pytest.mark.parametrize("more", [{}, {"delete": True}], ids=["", "delete"])
@pytest.mark.parametrize("is_shipped", [False, True])
def test_a_topic_that_replaces_another_keeps_its_only_records(
    tiered: Tiered, more: dict[str, bool], is_shipped: bool
) -> None:
    """The replica finds a topic by its id and must not create it a second time."""
    tiered.store.create_topic("totals")
    if is_shipped:
        tiered.ship()
    tiered.store.replace_topic("totals", by="orders")
    for _ in range(2):
        done = tiered.ship(**more)
        assert "Ship to another address" in done.problems["totals"]
    log = tiered.store["totals"].partition(0)
    assert log._local_offset > 0
    assert values(log) == expected(0, 200)
    elsewhere = tiered.url + "-2"
    assert not ship(tiered.data, elsewhere).problems
    with ObjectStore.open(elsewhere, "r") as replica:
        assert [each.value for each in replica.topic("totals").scan()] == expected(0, 200)


def test_a_directory_that_was_put_back_keeps_its_own_records(tmp_path: Path) -> None:
    """Even in the same leader epoch and with an equal batch at the end of a segment."""
    data, copy, url = tmp_path / "data", tmp_path / "copy", f"file://{tmp_path}/bucket"

    def append(what: bytes, count: int) -> None:
        with sawlog.open(data, maintenance_interval_s=None) as store:
            for number in range(count):
                store["orders"].append(b"%s %d" % (what, number), timestamp=1000 + number)
            store["orders"].append(b"beat", timestamp=5000)
            store["orders"].partition(0).seal()

    with sawlog.open(data, maintenance_interval_s=None) as store:
        store.create_topic("orders", **{**SETTINGS, "local_retention_bytes": 0, "segment_bytes": 1 << 20})
    ship(data, url)
    shutil.copytree(data, copy)
    append(b"a", 20)
    ship(data, url)
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    assert (data / "replica.json").exists()
    append(b"b", 20)
    with sawlog.open(data, maintenance_interval_s=None) as store:
        store.maintain()
        log = store["orders"].partition(0)
        assert log._local_offset == log.lowest_offset == 0
        assert values(log)[:20] == [b"b %d" % number for number in range(20)]


def test_other_records_at_the_same_offsets_are_found_though_nothing_is_new(tmp_path: Path) -> None:
    data, copy, url = tmp_path / "data", tmp_path / "copy", f"file://{tmp_path}/bucket"
    with sawlog.open(data) as store:
        store.create_topic("orders").append(b"one")
    shutil.copytree(data, copy)
    for what in (b"two", b"another"):
        shutil.rmtree(data)
        shutil.copytree(copy, data)
        with sawlog.open(data) as store:
            store["orders"].append(what)
        done = ship(data, url)
    assert "has another record at offset 1" in done.problems["orders/0"]


def test_a_damaged_address_is_an_error_that_says_what_to_do_and_stops_no_other_maintenance(tiered: Tiered) -> None:
    other = tiered.store.create_topic("other", segment_bytes=1000, retention_bytes=1000)
    for number in range(100):
        other.append(b"value %d" % number)
    (tiered.data / "replica.json").write_bytes(b"{}")
    with pytest.raises(RemoteUnavailable, match="sawlog replicate"):
        values(tiered.log)
    tiered.append(100)
    said = tiered.tier()
    assert other.partition(0).lowest_offset > 0
    assert any("sawlog replicate" in each for each in said)
    assert not tiered.ship().problems
    assert values(tiered.log) == expected(0, 300)


def test_the_first_run_for_another_address_records_it(tiered: Tiered) -> None:
    elsewhere = tiered.url + "-2"
    ship(tiered.data, elsewhere)
    assert tiered.store.replica is not None
    assert tiered.store.replica.url == elsewhere
    shutil.rmtree(tiered.url.removeprefix("file://"))
    assert values(tiered.log) == expected(0, 200)


def test_statistics_count_what_is_here_if_the_replica_does_not_answer(tiered: Tiered) -> None:
    shutil.rmtree(tiered.url.removeprefix("file://"))
    tiered.reopen()
    done = Cli(tiered.data)("stats", "orders", "-d", tiered.data, "--output", "json")
    assert done.code == 0, done.err
    [row] = json.loads(done.out)["partitions"]
    assert row["records"] == 200 - tiered.log._local_offset
    assert "not counted" in done.err


def test_topics_that_are_not_there_and_addresses_that_are_none_are_errors(tiered: Tiered, tmp_path: Path) -> None:
    assert "no topic nothing" in tiered.ship(topics=["nothing"]).problems["nothing"]
    with pytest.raises(InvalidConfig, match="absolute"):
        ship(tiered.data, "file://relative/bucket")
    with pytest.raises(StoreNotFound):
        sawlog.open(f"file://{tmp_path}/no/where", "r")
    assert not (tmp_path / "no").exists()


# --- the only copy is never removed


def give_all_stores_a_cache(monkeypatch: pytest.MonkeyPatch, path: Path) -> list[BlockCache]:
    """Give stores in a file:// bucket a cache, which they do not have by default."""
    caches: list[BlockCache] = []
    open_ = ObjectStore.open

    def open_with_cache(*given: Any, **more: Any) -> ObjectStore:
        store = open_(*given, **more)
        caches.append(give_cache(store, path))
        return store

    monkeypatch.setattr(ObjectStore, "open", open_with_cache)
    return caches


def _with_two_batches_swapped(data: bytes) -> bytes:
    """Return intact batches of the same sizes in another order."""
    rows = rows_of(memoryview(data))
    batches = [data[row[POSITION] : row[POSITION] + row[SIZE]] for row in rows.tolist()]
    assert len(batches[150]) == len(batches[151])
    batches[150], batches[151] = batches[151], batches[150]
    return b"".join(batches)


@pytest.mark.parametrize("damage", ["lost", "flipped", "replaced"])
def test_nothing_is_removed_here_that_only_the_cache_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """The replica was read on this machine and then damaged in the bucket: the cache still has good copies."""
    monkeypatch.setattr("sawlog.store.replica.shipment._INLINE_BYTES", 0)
    caches = give_all_stores_a_cache(monkeypatch, tmp_path / "cache")
    tiered = Tiered(tmp_path, local_retention_bytes=None)
    with ObjectStore.open(tiered.url, "r") as replica:
        for _ in range(2):
            assert [record.value for record in replica.topic("orders").scan()] == expected(0, 200)
        [*segments] = {each.path for each in replica.topic("orders").partition(0).segments}
    assert caches[-1].hits
    assert all("/staged/" in each for each in segments)
    files = [Path(each.removeprefix("file://")) for each in segments]
    sound = {each: each.read_bytes() for each in files}
    for file, data in sound.items():
        if damage == "lost":
            file.unlink()
        elif damage == "flipped":
            at = data.index(b"value 100")
            file.write_bytes(data[:at] + b"w" + data[at + 1 :])
        else:
            file.write_bytes(_with_two_batches_swapped(data))
    tiered.store.alter_topic("orders", local_retention_bytes=2000)
    tiered.reopen()
    said = tiered.tier()
    assert tiered.log._local_offset == 0
    assert "nothing was removed" in said[0]
    for file, data in sound.items():
        file.write_bytes(data)
    tiered.reopen()
    tiered.tier()
    assert tiered.log._local_offset > 0
    assert values(tiered.log) == expected(0, 200)
    tiered.store.close()


def test_the_replica_is_compared_as_it_is_in_the_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replicator compares the last batch of a partition with the bucket, not with the cache."""
    monkeypatch.setattr("sawlog.store.replica.shipment._INLINE_BYTES", 0)
    give_all_stores_a_cache(monkeypatch, tmp_path / "cache")
    tiered = Tiered(tmp_path, local_retention_bytes=None)
    with ObjectStore.open(tiered.url, "r") as replica:
        assert [record.value for record in replica.topic("orders").scan()] == expected(0, 200)
        [segment] = {each.path for each in replica.topic("orders").partition(0).segments}
    Path(segment.removeprefix("file://")).unlink()
    tiered.append(1)
    done = tiered.ship()
    assert "does not exist" in done.problems["orders/0"]
    tiered.store.close()


@pytest.mark.parametrize("rolled_back", ["the last commits are gone", "another commit is in the place of the last"])
def test_nothing_is_removed_here_that_no_commit_of_the_replica_refers_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rolled_back: str
) -> None:
    """The bucket is rolled back while this process has its state in memory, and uploads of removed commits remain."""
    monkeypatch.setattr("sawlog.store.replica.shipment._INLINE_BYTES", 0)
    tiered = Tiered(tmp_path, count=100)
    before = tiered.log._local_offset
    assert before
    tiered.append(100)
    commits = set((tmp_path / "bucket" / "commits").iterdir())
    tiered.ship()
    assert tiered.log._remote is not None
    replica = tiered.log._remote.open()
    assert replica.status().stable_offset == 200  # the state of the replica is in memory
    for file in set((tmp_path / "bucket" / "commits").iterdir()) - commits:
        file.unlink()
    if rolled_back != "the last commits are gone":
        with ObjectStore.open(tiered.url, maintenance_interval_s=None) as other:
            while len(list((tmp_path / "bucket" / "commits").iterdir())) <= len(commits):
                other.create_topic("another-history")
    said = tiered.tier()
    assert tiered.log._local_offset == before
    assert "rolled back" in said[0]
    tiered.reopen()
    tiered.ship()
    tiered.tier()
    assert tiered.log._local_offset > before
    assert values(tiered.log) == expected(0, 200)
    tiered.store.close()
