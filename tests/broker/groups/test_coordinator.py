"""The coordinator: stored offsets, group commit, and exclusion of other consumers."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import pytest

from sawlog.broker.groups.members import Sender
from sawlog.broker.groups.stored import NewOffset
from sawlog.broker.wire import ErrorCode as E
from sawlog.broker.wire import Key
from sawlog.errors import AmbiguousAppend, DirectoryLocked, GroupActive, StorageError
from sawlog.store.directory.offsets import OffsetStore
from sawlog.store.directory.store import DirectoryStore

from ... import warm
from ...processes.launch import PATIENCE_S
from .asking import Asked, in_loop, until

ORDERS = ("orders", 0)


async def member(broker: Asked, group: str = "billing") -> dict:
    joined = await broker.joined(group)
    assert joined["error_code"] == 0, joined
    await broker.synced(joined, group)
    return joined


async def leave(broker: Asked, joined: dict, group: str = "billing") -> None:
    left = await broker.ask(Key.LEAVE_GROUP, group_id=group, members=[{"member_id": joined["member_id"]}])
    assert left["members"][0]["error_code"] == 0


def started(module: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that runs one of `tests.processes` and has said that it is ready."""
    process = warm.start(
        ["-m", f"tests.processes.{module}", *map(str, arguments)],
        stdin=subprocess.PIPE,  # some of them end when their input does
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "ready\n", line + process.communicate()[0]
    return process


def said_by(module: str, *arguments: object) -> str:
    """Return the output of a process."""
    done = warm.run(["-m", f"tests.processes.{module}", *map(str, arguments)], timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- durable


@in_loop
async def test_offsets_are_there_after_the_store_was_reopened(path: Path, store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        joined = await member(broker)
        await broker.commit({ORDERS: (5, "noted", 2)}, joined)
    store.close()
    with DirectoryStore.open(path, maintenance_interval_s=None) as reopened:
        async with Asked(reopened) as broker:
            assert await broker.committed() == {ORDERS: (5, "noted", 2, 0)}


@in_loop
async def test_a_group_goes_on_in_python_and_back(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        joined = await member(broker)
        await broker.commit({ORDERS: 4}, joined)
        await leave(broker, joined)
        await until(lambda: store.groups._served_at("billing") is None)
        consumer = store.consumer("billing", ["orders"])
        assert consumer.position("orders", 0) == 4
        assert len(consumer.poll(max_records=3)) == 3
        consumer.close()
        assert (await broker.committed(ORDERS))[ORDERS][0] == 7


@in_loop
async def test_a_client_without_epochs_gets_none_back_though_the_store_knows_it(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        store.topic("orders").partition(0).truncate(8)
        epoch = store.topic("orders").partition(0).leader_epoch
        assert epoch > 0
        await broker.commit({ORDERS: 4}, version=3)
        assert (await broker.committed(ORDERS))[ORDERS] == (4, "", -1, 0)
        assert store.groups._offsets.of("billing")[ORDERS].leader_epoch == epoch


def test_acknowledged_commits_survive_kill_9(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path, maintenance_interval_s=None) as store:
        store.create_topic("orders").append(b"x")
        broker = started("serving", "broker", tmp_path, "billing")
        assert broker.stdout is not None
        last = 0
        while last < 20:
            last = int(broker.stdout.readline())
        broker.kill()
        rest = broker.stdout.read()  # with the lines that are buffered here, unlike communicate()
        broker.communicate()
        last = int((rest.split("\n")[-2:-1] or [last])[0])
        found = store.groups._offsets.of("billing")[ORDERS]
        assert last <= found.offset <= last + 1
        assert found.metadata == f"note {found.offset}"
        with store.consumer("billing", ["orders"]) as consumer:
            assert consumer.committed("orders", 0) == found.offset, "the dead broker keeps nobody out"


# --- many commits, one turn


class Turns:
    """Counts the writes to the groups log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = OffsetStore.turn

        def turn(offsets: OffsetStore):  # type: ignore[no-untyped-def]
            self.count += 1
            return real(offsets)

        monkeypatch.setattr(OffsetStore, "turn", turn)


@in_loop
async def test_commits_that_wait_share_a_turn(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Asked(store) as broker:
        turns = Turns(monkeypatch)
        names = [f"group {n}" for n in range(50)]
        codes = await asyncio.gather(*(broker.commit({ORDERS: n}, group=name) for n, name in enumerate(names)))
        assert codes == [{ORDERS: E.NONE}] * 50
        assert turns.count <= 3
        found = await asyncio.gather(*(broker.committed(group=name) for name in names))
        assert [each[ORDERS][0] for each in found] == list(range(50))


@in_loop
async def test_commits_of_one_group_keep_their_order(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        await asyncio.gather(*(broker.commit({ORDERS: n}) for n in range(30)))
        assert (await broker.committed(ORDERS))[ORDERS][0] == 29


@in_loop
async def test_a_fetch_sees_every_commit_accepted_before(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        for offset in range(1, 10):
            commit = broker.begin(
                Key.OFFSET_COMMIT,
                9,
                group_id="billing",
                topics=[{"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": offset}]}],
            )
            await asyncio.sleep(0)
            assert (await broker.committed(ORDERS))[ORDERS][0] == offset
            await commit


@in_loop
async def test_a_commit_is_written_though_its_client_is_gone(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        commit = broker.begin(
            Key.OFFSET_COMMIT,
            9,
            group_id="billing",
            topics=[{"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 3}]}],
        )
        await asyncio.sleep(0)
        commit.cancel()
        assert (await broker.committed(ORDERS))[ORDERS][0] == 3
        assert await broker.commit({ORDERS: 4}) == {ORDERS: E.NONE}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DirectoryLocked("store/groups", "process 7"), E.COORDINATOR_NOT_AVAILABLE),
        (AmbiguousAppend("the bucket does not answer"), E.COORDINATOR_NOT_AVAILABLE),
        (StorageError(28, "no space left"), E.KAFKA_STORAGE_ERROR),
        (ZeroDivisionError(), E.UNKNOWN_SERVER_ERROR),
    ],
)
@in_loop
async def test_a_commit_that_fails_says_so_and_the_next_one_works(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, error: Exception, code: E
) -> None:
    def fail(*_: object) -> None:
        raise error

    async with Asked(store) as broker:
        with monkeypatch.context() as patched:
            patched.setattr(type(store.groups), "_commit_together", fail)
            assert await broker.commit({ORDERS: 4}) == {ORDERS: code}
        assert await broker.commit({ORDERS: 5}) == {ORDERS: E.NONE}


# --- either members of the network or consumers of the library


@in_loop
async def test_a_consumer_is_refused_while_the_group_has_members_and_welcome_after(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        joined = await member(broker)
        with pytest.raises(GroupActive, match=r"connect to 127\.0\.0\.1:9092"):
            store.consumer("billing", ["orders"])
        with pytest.raises(GroupActive):
            store.groups.seek("billing", {ORDERS: 0})
        await leave(broker, joined)
        await until(lambda: store.groups._served_at("billing") is None)
        store.consumer("billing", ["orders"]).close()


@in_loop
async def test_members_are_refused_while_a_consumer_is_in_the_group_and_welcome_after(
    store: DirectoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with Asked(store) as broker:
        with store.consumer("billing", ["orders"], member="worker 7"):
            assert (await broker.joined())["error_code"] == E.INCONSISTENT_GROUP_PROTOCOL
            assert "worker 7" in caplog.text
            assert await broker.commit({ORDERS: 1}) == {ORDERS: E.UNKNOWN_MEMBER_ID}
            made = await broker.ask(
                Key.OFFSET_DELETE,
                group_id="billing",
                topics=[{"name": "orders", "partitions": [{"partition_index": 0}]}],
            )
            assert made["topics"][0]["partitions"][0]["error_code"] == E.GROUP_SUBSCRIBED_TO_TOPIC
            assert (await broker.joined("accounts"))["error_code"] == 0, "other groups are not concerned"
        assert (await broker.joined())["error_code"] == 0


@in_loop
async def test_the_other_one_may_be_another_process(path: Path, store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        joined = await member(broker)
        said = await asyncio.to_thread(said_by, "serving", "join", path, "billing")
        assert "connect to 127.0.0.1:9092" in said
        await leave(broker, joined)
        await until(lambda: store.groups._served_at("billing") is None)
        consumer = await asyncio.to_thread(
            lambda: started("consuming", "poll", path, "billing", json.dumps({"member": "far"}))
        )
        assert (await broker.joined())["error_code"] == E.INCONSISTENT_GROUP_PROTOCOL
        consumer.kill()
        consumer.communicate()
        assert (await broker.joined())["error_code"] == 0


@pytest.mark.slow
@in_loop
async def test_a_stopped_consumer_keeps_members_out_only_until_its_session_expires(
    path: Path, store: DirectoryStore
) -> None:
    async with Asked(store) as broker:
        options = json.dumps({"session_timeout_ms": 1000})
        consumer = await asyncio.to_thread(lambda: started("consuming", "poll", path, "billing", options))
        consumer.send_signal(signal.SIGSTOP)
        try:
            assert (await broker.joined())["error_code"] == 0
        finally:
            consumer.kill()
            consumer.communicate()


@in_loop
async def test_no_consumer_joins_before_the_last_commit_is_written(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member commits and leaves at once; the next member continues there."""
    async with Asked(store) as broker:
        for offset in range(1, 8):
            joined = await member(broker)
            commit = asyncio.ensure_future(broker.commit({ORDERS: offset}, joined))
            await asyncio.sleep(0)
            await leave(broker, joined)
            while True:
                try:
                    consumer = await asyncio.to_thread(store.consumer, "billing", ["orders"], auto_commit_ms=None)
                    break
                except GroupActive:
                    continue
            assert consumer.position("orders", 0) == offset
            consumer.close()
            assert await commit == {ORDERS: E.NONE}


@in_loop
async def test_members_that_come_and_go_at_once_never_meet_a_consumer(store: DirectoryStore) -> None:
    async with Asked(store) as broker:

        async def coming_and_going() -> None:
            for _ in range(8):
                joined = await broker.joined()
                if joined["error_code"] == 0:
                    assert broker.groups._is_held("billing")
                    assert store.groups._live("billing") == {}
                    await broker.ask(Key.LEAVE_GROUP, group_id="billing", members=[{"member_id": joined["member_id"]}])

        def consuming() -> int:
            entered = 0
            for _ in range(30):
                try:
                    with store.consumer("billing", ["orders"], auto_commit_ms=None):
                        assert not broker.members(), "both at once"
                        entered += 1
                except GroupActive:
                    pass
            return entered

        await asyncio.gather(*(coming_and_going() for _ in range(4)), asyncio.to_thread(consuming))
        await until(lambda: broker.groups._group("billing").claim.is_idle)
        store.consumer("billing", ["orders"]).close()


@in_loop
async def test_a_client_that_gives_up_while_the_group_is_taken_leaves_nothing(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        request = {"group_id": "billing", "session_timeout_ms": 10_000, "protocol_type": "consumer"}
        for _ in range(10):
            joining = broker.begin(Key.JOIN_GROUP, 3, **request, protocols=[{"name": "range", "metadata": b""}])
            await asyncio.sleep(0)
            joining.cancel()
        await until(lambda: broker.groups._group("billing").claim.is_idle and not broker.members())
        store.consumer("billing", ["orders"]).close()


@in_loop
async def test_closing_the_coordinator_releases_every_group(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        for name in ("one", "two"):
            await member(broker, name)
        assert store.groups.list() == ["one", "two"]
    for name in ("one", "two"):
        store.consumer(name, ["orders"]).close()


# --- transactions


@in_loop
async def test_offsets_of_a_transaction_are_pending_until_it_ends(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        await broker.commit({ORDERS: 1})
        for commit, expected in ((False, 1), (True, 6)):
            codes = await broker.stage("billing", {ORDERS: NewOffset(6, 0, "in a transaction")})
            assert codes == {ORDERS: E.NONE}
            assert (await broker.committed(ORDERS))[ORDERS][0] == 1
            for version in (7, 9):
                found = await broker.committed(ORDERS, ("orders", 1), version=version, require_stable=True)
                assert found[ORDERS] == (-1, "", -1, E.UNSTABLE_OFFSET_COMMIT)
                assert found["orders", 1][3] == E.NONE
                found = await broker.committed(version=version, require_stable=True)
                assert found[ORDERS][3] == E.UNSTABLE_OFFSET_COMMIT
            await broker.complete(commit=commit)
            assert not broker.staged
            assert (await broker.committed(ORDERS, require_stable=True))[ORDERS][0] == expected
        assert (await broker.committed(ORDERS))[ORDERS] == (6, "in a transaction", 0, 0)


@in_loop
async def test_invalid_offsets_of_a_transaction_are_refused_when_staged(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        joined = await member(broker)
        offsets = {ORDERS: NewOffset(1), ("nothing", 0): NewOffset(1), ("orders", 1): NewOffset(1, -1, "x" * 5000)}
        stage = broker.stage
        assert await stage("billing", offsets) == {
            ORDERS: E.NONE,
            ("nothing", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
            ("orders", 1): E.OFFSET_METADATA_TOO_LARGE,
        }
        one = {ORDERS: NewOffset(1)}
        assert await stage("billing", one, Sender("nobody", generation=1)) == {ORDERS: E.UNKNOWN_MEMBER_ID}
        late = await stage("billing", one, Sender(joined["member_id"], generation=0))
        assert late == {ORDERS: E.ILLEGAL_GENERATION}
        assert await stage("", one) == {ORDERS: E.INVALID_GROUP_ID}
        with store.consumer("embedded", ["orders"]):
            assert await stage("embedded", one) == {ORDERS: E.UNKNOWN_MEMBER_ID}


@in_loop
async def test_no_consumer_joins_while_a_transaction_holds_offsets_of_the_group(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        await broker.stage("billing", {ORDERS: NewOffset(6)})
        with pytest.raises(GroupActive):
            store.consumer("billing", ["orders"])
        assert await broker.groups.delete("billing") == E.NON_EMPTY_GROUP
        await broker.complete(commit=True)
        await until(lambda: store.groups._served_at("billing") is None)
        with store.consumer("billing", ["orders"]) as consumer:
            assert consumer.position("orders", 0) == 6


@in_loop
async def test_no_consumer_joins_after_a_restart_while_a_transaction_holds_offsets(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        broker.restart("billing", {ORDERS: NewOffset(6)})
        await until(lambda: store.groups._served_at("billing") is not None)
        with pytest.raises(GroupActive):
            store.consumer("billing", ["orders"])
        await broker.complete(commit=True)
        await until(lambda: store.groups._served_at("billing") is None)
        with store.consumer("billing", ["orders"]) as consumer:
            assert consumer.position("orders", 0) == 6


@in_loop
async def test_a_consumer_that_joined_while_no_broker_ran_stays_in_the_group(store: DirectoryStore) -> None:
    with store.consumer("billing", ["orders"]) as consumer:
        async with Asked(store) as broker:
            broker.restart("billing", {ORDERS: NewOffset(6)})
            await broker.complete(commit=False)
            assert len(consumer.poll(0)) == 10
            assert store.groups._served_at("billing") is None


@in_loop
async def test_a_transaction_that_is_completed_again_after_a_crash_moves_nothing_back(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        await broker.stage("billing", {ORDERS: NewOffset(3)})
        await broker.complete(commit=True, mark="1")
        await broker.commit({ORDERS: 8})
    async with Asked(store) as broker:
        broker.restart("billing", {ORDERS: NewOffset(3)})
        await broker.complete(commit=True, mark="1")
        assert (await broker.committed(ORDERS))[ORDERS][0] == 8
        broker.restart("billing", {ORDERS: NewOffset(9)})
        await broker.complete(commit=True, mark="2")
        assert (await broker.committed(ORDERS))[ORDERS][0] == 9


@in_loop
async def test_offsets_that_could_not_be_written_stay_staged(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError(28, "no space left")

    async with Asked(store) as broker:
        await broker.stage("billing", {ORDERS: NewOffset(3)})
        with monkeypatch.context() as patched:
            patched.setattr(type(store.groups), "_commit_together", fail)
            with pytest.raises(StorageError):
                await broker.complete(commit=True)
        await broker.complete(commit=True)
        assert (await broker.committed(ORDERS))[ORDERS][0] == 3
