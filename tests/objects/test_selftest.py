"""The self-test passes for safe storage and refuses every server that breaks one of its promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from sawlog.errors import StorageError, UnsafeStorage
from sawlog.store.objects import selftest
from sawlog.store.objects.bucket import Bucket
from sawlog.store.objects.journal import STORE, STORE_COPY
from sawlog.store.objects.selftest import BAD, FAILED, OK, SKIPPED, TRIALS, Scale
from sawlog.store.objects.store import ObjectStore

from . import servers
from .careless import Careless, careless
from .proxy import Fault, Faults, Proxy
from .servers import Server

SMALL = Scale(threads=4, races=6, rounds=3, listed=110, large_bytes=6 << 20)
#: Trials that take less than a second.
FAST = [name for name in TRIALS if name not in ("ambiguous time-outs", "listing")]


def states(findings: list[selftest.Finding]) -> dict[str, str]:
    return {each.check: each.state for each in findings}


# --- safe


def test_storage_on_this_machine_passes(tmp_path: Path) -> None:
    found = states(selftest.run(Bucket(f"file://{tmp_path}/bucket"), SMALL))
    assert found == dict.fromkeys(TRIALS, OK) | {"ambiguous time-outs": SKIPPED}
    found = states(selftest.run(Bucket("memory://selftest"), SMALL))
    assert found == dict.fromkeys(TRIALS, OK) | {"ambiguous time-outs": SKIPPED}


def test_a_server_that_keeps_its_promises_passes(moto: Server) -> None:
    names = [*FAST, "ambiguous time-outs"]
    found = selftest.run(Bucket(moto.new_url(), moto.options), SMALL, names=names)
    assert states(found) == dict.fromkeys(names, OK), found
    assert all(each.evidence and each.requests for each in found)


@pytest.mark.slow
def test_moto_passes_the_full_self_test(moto: Server) -> None:
    assert states(selftest.run(Bucket(moto.new_url(), moto.options))) == dict.fromkeys(TRIALS, OK)


@pytest.mark.slow
@pytest.mark.group("seaweedfs")
def test_seaweedfs_passes_the_full_self_test(seaweedfs: Server) -> None:
    found = selftest.run(Bucket(seaweedfs.new_url(), seaweedfs.options), Scale(race_s=10.0))
    assert states(found) == dict.fromkeys(TRIALS, OK), found


# --- not safe


@pytest.mark.parametrize(
    ("fault", "name", "evidence"),
    [
        ("no_preconditions", "create once", "created and created"),
        ("no_preconditions", "racing threads", "6 of 6 keys were created more than once"),
        ("no_preconditions", "ambiguous time-outs", "owners"),
        ("racy_preconditions", "racing threads", "keys were created more than once"),
        ("late_overwrites", "ambiguous time-outs", "ambiguous/00000"),
        ("stale_reads", "read after write", "another client read None"),
        ("stale_lists", "list after write", "was created, and a listing has []"),
        ("undead", "list after write", "was deleted, and a listing has"),
        ("short_lists", "listing", "110 keys were created; the listing has 100"),
        ("wrong_ranges", "ranges", "are not the stored ones"),
        ("changed_content", "large object", "other bytes came back"),
    ],
)
def test_a_server_that_breaks_a_promise_is_found(fault: str, name: str, evidence: str) -> None:
    with careless(fault) as (server, _):
        [found] = selftest.run(Bucket(server.new_url(), server.options), SMALL, names=[name])
    assert (found.check, found.state) == (name, BAD)
    assert evidence in found.evidence


def test_a_server_that_cannot_be_tested_is_not_trusted() -> None:
    with careless("no_ranges") as (server, _):
        bucket = Bucket(server.new_url(), {**server.options, "max_retries": "0"})
        found = selftest.run(bucket, SMALL, names=["ranges"])
    assert states(found) == {"ranges": FAILED}
    with pytest.raises(StorageError, match=r"could not be tested: ranges: .*ranges/object"):
        selftest.refuse(bucket, found)


def test_a_bad_network_is_not_taken_for_a_bad_server(moto: Server) -> None:
    faults = Faults(seed=5, late_s=0.05, lost_before=0.02, lost_after=0.08, failed=0.03, late=0.05, conflict=0.1)
    with Proxy(moto.endpoint, faults) as proxy:
        bucket = Bucket(moto.new_url(), {**moto.options, "endpoint": proxy.endpoint})
        names = ["create once", "racing threads", "read after write", "list after write"]
        found = selftest.run(bucket, SMALL, names=names)
        assert states(found) == dict.fromkeys(names, OK), found
        assert sum(proxy.counts[each] for each in (Fault.LOST_AFTER, Fault.FAILED, Fault.LATE)) >= 5
        proxy.settle()


def test_the_careless_server_without_a_fault_passes() -> None:
    """Otherwise the tests above would show nothing."""
    with careless() as (server, state):
        found = selftest.run(Bucket(server.new_url(), server.options), SMALL)
        assert states(found) == dict.fromkeys(TRIALS, OK), found
        assert state.objects == {}


def test_a_server_without_conditional_writes_is_reported() -> None:
    with careless("unsupported") as (server, _), pytest.raises(StorageError, match="sawlog needs conditional writes"):
        selftest.run(Bucket(server.new_url(), {**server.options, "max_retries": "0"}), SMALL)


@pytest.mark.slow
def test_rclone_is_refused(tmp_path: Path) -> None:
    with servers.rclone(tmp_path) as server:
        bucket = Bucket(server.new_url(), server.options)
        with pytest.raises(UnsafeStorage, match=r"not safe for a store: create once: .*preconditions are ignored"):
            selftest.check(bucket)
        found = states(selftest.run(bucket, SMALL, names=["create once", "racing threads"]))
    assert set(found.values()) == {BAD}


# --- brief, and before a store is created


def test_the_brief_test_refuses_with_the_evidence_and_leaves_nothing() -> None:
    with careless("no_preconditions") as (server, state):
        bucket = Bucket(server.new_url(), server.options)
        with pytest.raises(UnsafeStorage, match=rf"{bucket.url} is not safe for a store: create once: two creates"):
            selftest.check(bucket)
        assert state.objects == {}


def test_the_brief_test_finds_races_stale_reads_and_stale_lists() -> None:
    for fault in ("racy_preconditions", "stale_reads", "stale_lists"):
        with careless(fault) as (server, _), pytest.raises(UnsafeStorage):
            selftest.check(Bucket(server.new_url(), server.options))


def test_the_brief_test_needs_few_requests() -> None:
    with careless() as (server, state):
        selftest.check(Bucket(server.new_url(), server.options))
        assert state.requests <= 35


def test_a_store_is_not_created_where_it_would_not_be_safe() -> None:
    with careless("no_preconditions") as (server, state):
        with pytest.raises(UnsafeStorage, match="preconditions are ignored"):
            ObjectStore.open(server.new_url(), options=server.options)
        assert state.objects == {}


def moved(moto: Server, state: Careless) -> str:
    """Create a store on a safe server, and move it to a careless one."""
    url = moto.new_url()
    ObjectStore.open(url, options=moto.options).close()
    for key in (STORE, STORE_COPY):
        data = Bucket(url, moto.options).get(key)
        assert data is not None
        state.objects[f"{url.removeprefix('s3://bucket/')}/{key}"] = data
    return url


@pytest.mark.parametrize("has_copy", [True, False])
def test_a_store_behind_a_server_that_ignores_preconditions_is_not_opened_for_writing(
    moto: Server, has_copy: bool
) -> None:
    with careless("no_preconditions") as (server, state):
        url = moved(moto, state)
        if not has_copy:  # as in stores of earlier versions
            del state.objects[f"{url.removeprefix('s3://bucket/')}/{STORE_COPY}"]
        before = dict(state.objects)
        with pytest.raises(UnsafeStorage, match="ignores conditional writes"):
            ObjectStore.open(url, options=server.options)
        assert before.items() <= state.objects.items()
        ObjectStore.open(url, "r", options=server.options).close()


def test_opening_a_store_for_writing_costs_one_request_more_than_opening_it_for_reading(moto: Server) -> None:
    with careless() as (server, state):
        url = moved(moto, state)
        counts = []
        for mode in ("r", "w"):
            before = state.requests
            ObjectStore.open(url, mode, options=server.options, maintenance_interval_s=None).close()
            counts.append(state.requests - before)
        assert counts[1] == counts[0] + 1


# --- clean-up


def test_an_interrupted_self_test_deletes_its_objects(tmp_path: Path) -> None:
    def interrupt(_: selftest.Finding) -> None:
        raise KeyboardInterrupt

    bucket = Bucket(f"file://{tmp_path}/bucket")
    with pytest.raises(KeyboardInterrupt):
        selftest.run(bucket, SMALL, names=["create once", "ranges"], on_found=interrupt)
    assert list((tmp_path / "bucket").iterdir()) == []


def test_other_objects_are_left_alone(moto: Server) -> None:
    bucket = Bucket(moto.new_url(), moto.options)
    bucket.put("sawlog-selftest/mine", b"1")
    bucket.put("other", b"2")
    selftest.check(bucket)
    assert [entry.key for entry in bucket.list("")] == ["other", "sawlog-selftest/mine"]
