"""The rules of ADR 25: processes that are stopped, interrupted or given no or wrong answers break no guarantee."""

from __future__ import annotations

import errno
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any
from unittest import mock

import pytest

from sawlog.batch.build import encode
from sawlog.errors import AmbiguousAppend, CorruptData, InvalidConfig, LogClosed, SawlogError, StorageError
from sawlog.log.ingest import checked_rows
from sawlog.store.directory.transactions.staging import Part
from sawlog.store.objects import checkpoints
from sawlog.store.objects.bucket import Bucket, Unanswered
from sawlog.store.objects.collect import Collector
from sawlog.store.objects.journal import HISTORY_S, STORE, Journal, StoreParameters, UnknownOutcome
from sawlog.store.objects.session import Committer, StoreSession
from sawlog.store.objects.state import State, partitions
from sawlog.store.objects.state.commit import (
    INLINE,
    TOMBSTONE_BYTES,
    Commit,
    Nonce,
    Tombstone,
    UpgradeRequired,
    append_action,
    canonical,
    commit_key,
    described,
    is_tombstone,
)
from sawlog.store.objects.state.entries import Entries, Rejected
from sawlog.store.objects.store import ObjectStore

from .simulated import SimulatedBucket, SimulatedClocks, World

PARAMETERS = StoreParameters(belief_s=10, grace_s=60, readers_s=5, checkpoint_every=4)
TOPIC = {"do": "create topic", "name": "t", "id": "t1", "partitions": 1, "settings": {}}


@pytest.fixture
def world() -> World:
    return World(0)


def journal(world: World) -> Journal:
    return Journal(SimulatedBucket(world), PARAMETERS, clocks=SimulatedClocks(world))


def opened(world: World, parameters: StoreParameters = PARAMETERS) -> ObjectStore:
    clocks = SimulatedClocks(world)
    return ObjectStore.open(SimulatedBucket(world), parameters=parameters, maintenance_interval_s=None, clocks=clocks)


def appended(value: bytes, **more: object) -> tuple[dict[str, Any], bytes]:
    data = encode([value])
    return {**append_action("t1", 0, INLINE, described(checked_rows(memoryview(data))), None), **more}, data


def append(to: Journal, value: bytes, **more: object) -> Any:
    action, data = appended(value, **more)
    (outcome,) = to.commit([[action]], data)
    return outcome


_Act = Callable[[Callable[..., Any], tuple[Any, ...]], Any]


class Answers:
    """A bucket whose next requests of one kind run other code first, or instead."""

    def __init__(
        self, bucket: Bucket, method: str, *acts: Callable[[Callable[..., Any], tuple[Any, ...]], Any]
    ) -> None:
        self._real: Callable[..., Any] = getattr(bucket, method)
        self._acts = list(acts)
        setattr(bucket, method, self)

    def __call__(self, *given: Any) -> Any:
        return self._acts.pop(0)(self._real, given) if self._acts else self._real(*given)


def lost(real: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    raise Unanswered(5, "lost")


def applied(real: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    real(*given)
    raise Unanswered(5, "applied, but not answered")


NOTHING = {"do": "forget names", "names": []}


def collect_for_long(world: World, store: ObjectStore) -> None:
    """Commit and collect until the present numbers are deleted, unless they have batches."""
    collector = Collector(store._session, workers=1)
    for _ in range(12):
        for _ in range(5):
            store._session.commit([NOTHING])
        world.now_s += PARAMETERS.grace_s / 2
        collector.run()


# --- R1: belief


def test_a_writer_that_sleeps_while_its_number_is_collected_does_not_believe_its_create(world: World) -> None:
    sleeper, store = journal(world), opened(world)
    sleeper.commit([[TOPIC]])
    created = []

    def sleep(real: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        collect_for_long(world, store)
        created.append(real(*given))
        return created[-1]

    Answers(sleeper._bucket, "create", sleep)
    assert append(sleeper, b"once") == {"ok": [[0, 1]]}
    assert created == [True]  # the server said so
    assert [each.value for each in opened(world).topic("t").scan()] == [b"once"]
    collect_for_long(world, store)
    stray = [key for key in world.objects if key.startswith("commits/") and key < commit_key(30)]
    assert not stray  # and the number that it has created again is free again


def test_a_writer_that_sleeps_before_the_answer_learns_the_outcome_of_its_commit(world: World) -> None:
    sleeper, store = journal(world), opened(world)
    sleeper.commit([[TOPIC]])

    def sleep(real: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        made = real(*given)
        collect_for_long(world, store)
        return made

    Answers(sleeper._bucket, "create", sleep)
    assert sleeper.commit([[{"do": "change document", "name": "d", "version": 0, "fields": {}}]])[0] in (
        {"ok": [1]},  # it was there once
        {"no": ["Expired", mock.ANY]},  # or its outcome is forgotten
    )
    fresh = journal(world)
    fresh.refresh()
    assert fresh.state.document("d")[0] == 1


def test_a_reader_that_sleeps_does_not_take_a_collected_number_for_the_end(world: World) -> None:
    reader, store = journal(world), opened(world)
    reader.commit([[TOPIC]])
    at = reader.state.number
    store._session.commit([NOTHING])
    append(journal(world), b"a")
    collect_for_long(world, store)
    assert commit_key(at) not in world.objects
    reader.refresh()
    assert reader.state.number == store._session.look(lambda state: state.number, fresh=True)
    assert reader.state.ends("t1", 0) == (0, 1)


def test_a_reader_that_sleeps_before_the_answer_does_not_take_it_for_the_end(world: World) -> None:
    reader, store = journal(world), opened(world)
    reader.commit([[TOPIC]])
    store._session.commit([NOTHING])

    def sleep(real: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        collect_for_long(world, store)
        return real(*given)

    Answers(reader._bucket, "get", sleep)
    reader.refresh()
    assert reader.state.number == store._session.look(lambda state: state.number, fresh=True)


def test_a_clock_that_stood_still_is_outvoted_by_the_other(world: World) -> None:
    class Still(SimulatedClocks):
        def now_s(self) -> tuple[float, float]:
            return 5.0, world.now_s

    sleeper = Journal(SimulatedBucket(world), PARAMETERS, clocks=Still(world))
    sleeper.refresh()
    assert sleeper._is_believed()
    world.now_s += PARAMETERS.belief_s + 1
    assert not sleeper._is_believed()


def test_a_restart_does_not_prove_that_there_are_no_new_commits(world: World) -> None:
    session, other = opened(world)._session, journal(world)
    session.poll(0)
    world.now_s += PARAMETERS.belief_s + 1
    other.commit([[TOPIC]])
    Answers(session.bucket, "get_many", lost)
    with pytest.raises(Unanswered):
        session.poll(0)
    session.poll(5)  # the checkpoints were listed within that time, and no commit was read
    assert session.peek(lambda state: state.topics()) == ["t"]


# --- R2: collection


def test_numbers_are_deleted_only_long_after_a_checkpoint_was_confirmed_not_after_it_was_made(world: World) -> None:
    """A checkpoint may stay unconfirmed for a week. A process that started just before the confirmation relies on the
    commits behind it."""
    store = opened(world)
    store.create_topic("t")
    for _ in range(6):
        store._session.commit([NOTHING])
    store._session.checkpoint()
    collector = Collector(store._session, workers=1)
    collector.run()
    world.now_s += 10 * PARAMETERS.grace_s
    collector.run()
    late = journal(world)
    late.refresh()
    late_at = late.state.number - 2  # as if it had just started with these two to read
    for _ in range(6):
        store._session.commit([NOTHING])
    store._session.checkpoint()
    store._session.commit([NOTHING])
    for _ in range(3):
        collector.run()
    assert commit_key(late_at) in world.objects
    world.now_s += PARAMETERS.grace_s / 2
    collector.run()
    assert commit_key(late_at) in world.objects
    world.now_s += PARAMETERS.grace_s
    collector.run()
    assert commit_key(late_at) not in world.objects


def test_a_large_commit_becomes_a_tombstone_when_its_batches_are_consolidated_and_not_before(world: World) -> None:
    store = opened(world)
    topic = store.create_topic("t")
    first = store._session.known()
    topic.append(b"x" * 10_000)
    collector = Collector(store._session, workers=1)
    for _ in range(20):
        store._session.commit([NOTHING])
        world.now_s += PARAMETERS.grace_s
        collector.run()
    assert len(world.objects[commit_key(first)][0]) > 10_000  # its batches are the only ones
    store.maintain()
    world.now_s += PARAMETERS.readers_s - 1
    collector.run()
    assert commit_key(first) in world.objects  # a reader may be using them
    world.now_s += PARAMETERS.readers_s
    collector.run()
    left = world.objects.get(commit_key(first))
    assert left is None or is_tombstone(left[0])
    assert [each.value for each in topic.scan()] == [b"x" * 10_000]


def test_tombstones_are_small_and_commits_are_not() -> None:
    nonce = Nonce(uuid.uuid4().hex, 2**62)
    assert len(Tombstone(nonce).encode()) <= TOMBSTONE_BYTES
    assert len(Commit(Nonce(uuid.uuid4().hex, 0), 0, "0" * 64, ()).encode()) > TOMBSTONE_BYTES


def test_the_last_two_confirmed_checkpoints_stay_and_so_do_the_commits_since(world: World) -> None:
    store = opened(world)
    for _ in range(40):
        store._session.commit([NOTHING])
    collector = Collector(store._session, workers=1)
    for _ in range(6):
        world.now_s += PARAMETERS.grace_s
        collector.run()
    listed = checkpoints.listed(SimulatedBucket(world))
    confirmed = [each for each in listed if checkpoints.is_confirmed(SimulatedBucket(world), each)]
    assert len(confirmed) == 2
    numbers = sorted(int(key.removeprefix("commits/")) for key in world.objects if key.startswith("commits/"))
    assert numbers == list(range(confirmed[1].number, 40))
    del world.objects[confirmed[0].key]  # if the newest fails, the one before it serves
    assert opened(world)._session.known() == 40


# --- R4, R5: nonces


@pytest.mark.parametrize("acts", [(lost,), (applied,), (lost, applied), (applied, lost), (lost,) * 5])
def test_a_create_without_an_answer_is_applied_once(world: World, acts: tuple[Any, ...]) -> None:
    writer = journal(world)
    writer.commit([[TOPIC]])
    Answers(writer._bucket, "create", *acts)
    assert append(writer, b"a") == {"ok": [[0, 1]]}
    assert append(journal(world), b"b") == {"ok": [[1, 2]]}


def test_after_an_unknown_outcome_the_next_commit_is_safe_wherever_the_first_one_lands(world: World) -> None:
    writer = journal(world)
    writer.commit([[TOPIC]])
    late: list[tuple[Any, ...]] = []

    def delayed(real: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        late.append(given)
        raise Unanswered(5, "on its way")

    Answers(writer._bucket, "create", *[delayed] * 8)
    with pytest.raises(UnknownOutcome) as raised:
        append(writer, b"a")
    assert isinstance(raised.value, AmbiguousAppend)
    assert world.create(*late[0], "late")
    assert append(writer, b"b") == {"ok": [[1, 2]]}
    assert not world.create(*late[1], "late")
    fresh = journal(world)
    fresh.refresh()
    assert fresh.state.ends("t1", 0) == (0, 2)


def refused_by_own_retry(real: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    """Act like a client library that repeats requests: the first attempt is applied and answered with 500, and the
    second one is refused because of it."""
    assert real(*given)
    return real(*given)


def denied(real: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    raise StorageError(errno.EACCES, "the credentials expired")


def flipped(real: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    data = bytearray(real(*given))
    data[len(data) // 2] ^= 1
    return bytes(data)


def cut(real: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    return real(*given)[:-5]


def of_a_newer_version(real: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    """Flip one bit in the version."""
    return real(*given).replace(b"sawlog commit 2", b"sawlog commit 3", 1)


@pytest.mark.parametrize(
    "look", [(), (denied,), (denied,) * 3, (lost, denied), (flipped,), (flipped, cut), (of_a_newer_version,)]
)
def test_a_create_that_is_refused_by_its_own_repetition_is_acknowledged_once(
    world: World, look: tuple[Any, ...]
) -> None:
    writer = journal(world)
    writer.commit([[TOPIC]])
    Answers(writer._bucket, "create", refused_by_own_retry)
    Answers(writer._bucket, "get", *look)
    assert append(writer, b"a") == {"ok": [[0, 1]]}
    assert append(writer, b"b") == {"ok": [[1, 2]]}


@pytest.mark.parametrize("answer", [denied, lost, flipped])
def test_a_refused_create_is_ambiguous_until_the_stored_commit_is_identified(world: World, answer: Any) -> None:
    writer = journal(world)
    writer.commit([[TOPIC]])
    Answers(writer._bucket, "create", refused_by_own_retry)
    Answers(writer._bucket, "get", *[answer] * 30)
    with pytest.raises(AmbiguousAppend, match="stored or not"):
        append(writer, b"a")
    fresh = journal(world)
    fresh.refresh()
    assert fresh.state.ends("t1", 0) == (0, 1)  # and it is stored


def test_a_denied_create_is_definite_unless_an_earlier_attempt_was_not_answered(world: World) -> None:
    writer = journal(world)
    writer.commit([[TOPIC]])
    Answers(writer._bucket, "create", denied)
    with pytest.raises(StorageError) as raised:
        append(writer, b"a")
    assert not isinstance(raised.value, AmbiguousAppend)
    Answers(writer._bucket, "create", lost, denied)
    with pytest.raises(AmbiguousAppend):
        append(writer, b"a")
    Answers(writer._bucket, "create", lambda real, given: other_wins(world), denied)  # the race is lost, then denied
    with pytest.raises(StorageError) as raised:
        append(writer, b"a")
    assert not isinstance(raised.value, AmbiguousAppend)


def other_wins(world: World) -> bool:
    journal(world).commit([[NOTHING]])
    return False


def test_a_commit_whose_number_was_collected_is_ambiguous_if_the_state_cannot_be_read(world: World) -> None:
    sleeper, store = journal(world), opened(world)
    sleeper.commit([[TOPIC]])

    def sleep(real: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        made = real(*given)
        collect_for_long(world, store)
        return made

    Answers(sleeper._bucket, "create", sleep)
    Answers(sleeper._bucket, "list", denied)
    with pytest.raises(AmbiguousAppend):
        append(sleeper, b"a")


def test_an_error_of_a_watcher_is_not_the_error_of_a_commit_that_is_stored() -> None:
    with ObjectStore.open(f"memory://{uuid.uuid4().hex}") as store:
        topic = store.create_topic("t")

        def fail() -> None:
            raise ValueError("of a watcher")

        stop = store._session.notifier.watch(fail)
        assert topic.append(b"a").offset == 0
        stop()


def test_a_transaction_that_may_be_stored_is_not_stored_again(world: World) -> None:
    with ObjectStore.open(f"memory://{uuid.uuid4().hex}") as store:
        topic = store.create_topic("t")
        transaction = store.transaction()
        transaction.append("t", b"a")
        real = store._session.bucket.create
        with (
            mock.patch.object(store._session.bucket, "create", lambda *given: applied(real, given)),
            mock.patch.object(store._session.bucket, "get", lambda *given: denied(real, given)),
            mock.patch("sawlog.store.objects.journal._LOOKS", 1),
            pytest.raises(AmbiguousAppend),
        ):
            transaction.commit()
        with pytest.raises(AmbiguousAppend, match="cannot be repeated"):
            transaction.commit()
        store._session.poll(0)
        assert [each.value for each in topic.scan()] == [b"a"]


@pytest.mark.parametrize("damage", [flipped, cut, of_a_newer_version])
def test_a_bit_flipped_in_transit_does_not_stop_a_reader(world: World, damage: Any) -> None:
    writer, reader = journal(world), journal(world)
    writer.commit([[TOPIC]])
    Answers(reader._bucket, "get", lambda real, given: real(*given), damage, damage)
    reader.refresh()
    assert reader.state.topics() == ["t"]
    for _ in range(9):
        writer.commit([[NOTHING]])
    writer.checkpoint()
    writer.commit([[NOTHING]])
    late = journal(world)
    Answers(late._bucket, "get", damage, damage, lambda real, given: real(*given), flipped, cut)
    late.refresh()
    assert late.state.digest == writer.state.digest


# --- a bucket that was deleted or rolled back


def rolled_back(world: World, to: dict[str, tuple[bytes, float]]) -> None:
    world.objects.clear()
    world.objects.update(to)


@pytest.mark.parametrize("what", ["deleted", "rolled back", "replaced", "last commit"])
def test_a_writer_stops_soon_after_its_store_was_deleted_or_rolled_back(world: World, what: str) -> None:
    store = opened(world, StoreParameters(checkpoint_every=5))
    topic = store.create_topic("t")
    topic.append(b"before")
    backup = dict(world.objects)
    for _ in range(2):
        topic.append(b"gone")
    if what == "last commit":
        del world.objects[commit_key(3)]
    else:
        rolled_back(world, {} if what == "deleted" else backup)
    if what == "replaced":
        for _ in range(2):
            opened(world).topic("t").append(b"another history")

    def append_for_a_while() -> None:
        until_s = world.now_s + HISTORY_S + 2
        while world.now_s < until_s:
            world.now_s += 1
            topic.append(b"not in the store")

    with pytest.raises(CorruptData, match="gone or is another commit"):
        append_for_a_while()
    with pytest.raises(CorruptData):
        topic.append(b"nor this")
    with pytest.raises(CorruptData):
        list(topic.scan())


def test_a_writer_that_was_idle_stores_nothing_in_a_store_that_was_rolled_back(world: World) -> None:
    store = opened(world)
    topic = store.create_topic("t")
    backup = dict(world.objects)
    topic.append(b"gone")
    rolled_back(world, backup)
    world.now_s += PARAMETERS.belief_s + 1
    with pytest.raises(CorruptData, match="gone or is another commit"):
        topic.append(b"not in the store")
    assert world.objects == backup


def test_a_writer_stops_if_others_have_continued_an_earlier_state_past_a_checkpoint(world: World) -> None:
    store = opened(world)
    topic = store.create_topic("t")
    backup = dict(world.objects)
    topic.append(b"gone")
    rolled_back(world, backup)
    other = opened(world)
    for _ in range(3 * PARAMETERS.checkpoint_every):
        other._session.commit([NOTHING])
    world.now_s += PARAMETERS.belief_s + 1
    with pytest.raises(CorruptData, match="continues another history"):
        topic.append(b"not in the store")


def test_maintenance_notices_that_sawlog_json_was_deleted_or_replaced(world: World) -> None:
    for lost_or_changed in (None, b"{}"):
        store = opened(world)
        store._maintainer._since_check = mock.Mock(elapsed_s=60.0)
        store.maintain()
        before = world.objects.pop(STORE)
        if lost_or_changed is not None:
            world.objects[STORE] = (lost_or_changed, world.now_s)
        with pytest.raises(CorruptData, match="was deleted or replaced"):
            store.maintain()
        with pytest.raises(CorruptData):
            store.create_topic("t")
        world.objects[STORE] = before


def test_commits_without_sawlog_json_are_not_taken_for_no_store(world: World) -> None:
    opened(world).create_topic("t")
    del world.objects[STORE]
    before = dict(world.objects)
    for mode in ("w", "r"):
        with pytest.raises(CorruptData, match=r"has commits/0+, but no sawlog.json"):
            ObjectStore.open(SimulatedBucket(world), mode, clocks=SimulatedClocks(world))  # type: ignore[arg-type]
    assert world.objects == before


def test_losing_the_last_commit_is_noticed_if_a_checkpoint_knows_it(world: World) -> None:
    writer = journal(world)
    for _ in range(5):
        writer.commit([[NOTHING]])
    writer.checkpoint()
    del world.objects[commit_key(4)]
    with pytest.raises(CorruptData, match="a checkpoint records 5 commits: 1 or more were lost"):
        journal(world).refresh()


@pytest.mark.parametrize("idle_s", [0.0, PARAMETERS.belief_s + 1])
@pytest.mark.parametrize("request_", ["list", "get_range"])
def test_a_process_that_is_suspended_while_it_checks_its_history_does_not_take_collected_commits_for_lost(
    world: World, request_: str, idle_s: float
) -> None:
    reader, store = journal(world), opened(world)
    for _ in range(6):
        store._session.commit([NOTHING])
    store._session.commit([NOTHING])
    reader.refresh()
    store._session.commit([NOTHING])
    reader.refresh()
    world.now_s += idle_s

    def suspended(real: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        collect_for_long(world, store)
        return real(*given)

    def answered(real: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        return real(*given)

    # The first listing is that of the checkpoints, the second one that of the commits.
    Answers(reader._bucket, request_, *([answered] if request_ == "list" else []), suspended)
    reader._anchor = None
    reader.refresh()
    assert reader.state.number == store._session.known()


def append_nothing(writer: Journal) -> Any:
    return writer.commit([[NOTHING]])


def test_the_check_of_the_history_costs_nothing_while_it_is_recent_and_believes_no_failed_request(world: World) -> None:
    writer = journal(world)
    for _ in range(3):
        writer.commit([[NOTHING]])
    requests = Answers(writer._bucket, "get_range", denied, lost)
    writer.check_history(HISTORY_S)
    assert len(requests._acts) == 2
    world.now_s += HISTORY_S
    for _ in range(2):
        with pytest.raises(StorageError):
            writer.check_history(HISTORY_S)
    writer.check_history(HISTORY_S)
    assert append_nothing(writer)


def test_a_commit_that_is_repeated_has_its_first_outcome_also_if_that_was_a_rejection() -> None:
    state = State()
    action, data = appended(b"a", expect=7)
    apply(state, Nonce("w", 1), TOPIC)
    repeated = Commit(Nonce("w", 2), 1, state.digest, ((action,),), 0, data)
    first = state.apply(repeated, commit_key(1), 0)
    assert first[0]["no"][0] == "OffsetMismatch"
    for _ in range(7):
        fresh, more = appended(b"b")
        state.apply(Commit(Nonce("v", state.number), 0, "", ((fresh,),), 0, more), commit_key(state.number), 0)
    again = state.apply(repeated, commit_key(state.number), 0)
    assert again[0]["no"][0] == "OffsetMismatch"
    assert state.ends("t1", 0) == (0, 7)


def apply(state: State, nonce: Nonce, *actions: dict[str, Any], known: int | None = None) -> Any:
    made = Commit(nonce, state.number if known is None else known, state.digest, (actions,))
    return state.apply(made, commit_key(state.number), 0)[0]


def test_a_forgotten_commit_below_the_floor_is_ambiguous_not_rejected() -> None:
    state = State()
    apply(state, Nonce("w", 1), TOPIC)
    apply(state, Nonce("v", 1), {"do": "raise floor", "number": 1})
    assert apply(state, Nonce("w", 1), TOPIC, known=0)["no"][0] == "Expired"
    assert "ok" in apply(state, Nonce("w", 2), NOTHING)


def test_a_writer_that_was_idle_while_the_floor_rose_can_commit(world: World) -> None:
    idle, busy = journal(world), journal(world)
    idle.commit([[TOPIC]])
    for _ in range(3):
        busy.commit([[NOTHING]])
    busy.commit([[{"do": "raise floor", "number": busy.state.number}]])
    assert append(idle, b"a") == {"ok": [[0, 1]]}


# --- R6: the floor


def test_an_upload_below_the_floor_cannot_be_committed(world: World) -> None:
    store = opened(world)
    topic = store.create_topic("t")
    with mock.patch("sawlog.store.objects.session.INLINE_BATCH_BYTES", 0):
        action, _ = topic._append_action(0, [b"late"])
    collector = Collector(store._session, workers=1)
    for _ in range(4):
        store._session.commit([NOTHING])
        world.now_s += PARAMETERS.grace_s
        collector.run()
    with pytest.raises(AmbiguousAppend, match="upload it again"):
        store._session.commit([action])
    world.now_s += PARAMETERS.readers_s
    collector.run()
    assert not [key for key in world.objects if key.startswith("staged/")]


def test_an_uncommitted_upload_is_deleted_even_in_an_idle_store(world: World) -> None:
    store = opened(world)
    store.create_topic("t")
    store._session.upload(b"orphan")
    collector = Collector(store._session, workers=1)
    before = store._session.known()
    for _ in range(8):
        world.now_s += PARAMETERS.grace_s
        collector.run()
    assert not [key for key in world.objects if key.startswith(("staged/", "garbage/"))]
    assert store._session.known() <= before + 3  # and it costs few commits


def test_a_floor_above_all_commits_is_refused() -> None:
    state = State()
    assert apply(state, Nonce("w", 1), {"do": "raise floor", "number": 5})["no"][0] == "InvalidConfig"


def test_an_abandoned_job_keeps_published_batches_and_loses_the_rest(world: World) -> None:
    store = opened(world)
    topic = store.create_topic("t")
    parts = []
    for value in (b"a", b"b"):
        task = store._staging.task("job")
        piece = task.write(encode([value]))
        task.sync()
        parts.append(Part("t", topic.id, 0, 1, (piece,)))
    store._staging.publish("job", parts[:1])
    store._staging.discard("job")
    assert [each.value for each in topic.scan()] == [b"a"]
    assert len([key for key in world.objects if key.startswith("staged/")]) == 1
    (piece,) = parts[1].pieces  # the late commit of a stopped driver
    late = append_action(topic.id, 0, piece.file, described(checked_rows(memoryview(encode([b"b"])))), None)
    with pytest.raises(AmbiguousAppend, match="abandoned"):
        store._session.commit([late])
    with pytest.raises(SawlogError):
        store._staging.publish("job", parts[1:])


# --- R7: digests


def test_a_checkpoint_is_not_used_before_the_next_commit_has_its_digest(world: World) -> None:
    store = opened(world)
    store.create_topic("t")
    number, digest = store._session.look(lambda state: (state.number, state.digest))
    wrong = State(Entries([("named/x", 7)]), number)
    checkpoints.stored(SimulatedBucket(world), wrong)
    assert opened(world)._session.look(lambda state: state.digest) == digest
    store._session.commit([NOTHING])
    with pytest.raises(CorruptData, match="is not the state before"):
        opened(world)
    with pytest.raises(CorruptData, match="is not the state before"):
        Collector(store._session, workers=1).run()


def test_a_digest_that_does_not_match_stops_a_process_for_good(world: World) -> None:
    one, other = journal(world), journal(world)
    one.commit([[TOPIC]])
    other.refresh()
    one.state.entries.put("named/x", 7)
    one.commit([[NOTHING]])
    for call in (other.refresh, other.refresh, lambda: other.commit([[NOTHING]]), other.checkpoint):
        with pytest.raises(CorruptData, match="none may go on"):
            call()


def test_a_store_that_lost_its_checkpoints_is_not_taken_for_an_empty_one(world: World) -> None:
    store = opened(world)
    store.create_topic("t")
    collect_for_long(world, store)
    for key in list(world.objects):
        if key.startswith("checkpoints/"):
            del world.objects[key]
    with pytest.raises(CorruptData, match="no checkpoint is confirmed"):
        opened(world)


def test_messages_of_rejections_are_not_part_of_the_state() -> None:
    one, other = State(), State()
    apply(one, Nonce("w", 1), {"do": "delete topic", "name": "t"})
    with mock.patch.object(partitions, "_topic_of", side_effect=_rejected("in other words")):
        apply(other, Nonce("w", 1), {"do": "delete topic", "name": "t"})
    assert one.digest == other.digest


def _rejected(text: str) -> Exception:
    return Rejected("TopicNotFound", text)


# --- R8: versions


@pytest.mark.parametrize(
    "action", [{"do": "something new"}, {**NOTHING, "but": "not all"}, {"without": "a name"}], ids=str
)
def test_unknown_content_stops_a_process_for_good(world: World, action: dict[str, Any]) -> None:
    old = journal(world)
    old.commit([[TOPIC]])
    world.create(commit_key(1), Commit(Nonce("new", 1), 1, old.state.digest, ((action,),)).encode(), "new")
    for call in (old.refresh, lambda: old.commit([[NOTHING]]), old.checkpoint):
        with pytest.raises(UpgradeRequired):
            call()
    assert len(world.history) == 2


def test_a_reader_continues_after_answers_that_stayed_damaged(world: World) -> None:
    writer, reader = journal(world), journal(world)
    writer.commit([[TOPIC]])
    Answers(reader._bucket, "get", lambda real, given: real(*given), *[flipped] * 3)
    with pytest.raises(CorruptData):
        reader.refresh()
    reader.refresh()
    assert reader.state.topics() == ["t"]


def test_a_checkpoint_of_a_newer_version_is_not_used(world: World) -> None:
    newer = State(Entries([("fork/a", 1)]), 1)
    checkpoints.stored(SimulatedBucket(world), newer)
    made = Commit(Nonce("new", 1), 1, newer.digest, ((NOTHING,),))
    world.create(commit_key(1), made.encode(), "new")
    with pytest.raises(UpgradeRequired):
        journal(world).refresh()


def test_a_commit_with_an_unknown_field_stops_a_process() -> None:
    from sawlog.store.objects.state.commit import COMMIT, sealed

    text = canonical({"nonce": ["w", 1], "known": 0, "digest": "", "time_ms": 0, "requests": [], "more": 1})
    with pytest.raises(UpgradeRequired):
        Commit.decode(sealed(COMMIT, text), "commits/0")


# --- one bad request


@pytest.mark.parametrize(
    "action",
    [
        {"do": "append", "topic": "t1", "partition": 0, "key": "not an upload", "extents": [[0, 1, 1, 0, "0" * 16]]},
        {"do": "append", "topic": "t1", "partition": 0, "key": "staged/x-y", "extents": [[0, 1, 1, 0, "0" * 16]]},
        {"do": "append", "topic": "t1", "partition": 0, "key": "", "extents": [["0", 1, 1, 0, "0" * 16]]},
        {"do": "append", "topic": "t1", "partition": 0, "key": "", "extents": [[0, 1, -1, 0, "0" * 16]]},
        {"do": "append", "topic": "t1", "partition": 0, "key": "", "extents": [[0, 1, 1, 0]]},
        {"do": "append", "topic": "t1", "partition": 0, "key": "", "extents": [[0, 1, 1, 0, "0"]]},
        {"do": "append", "topic": "t1", "partition": 0, "key": "", "extents": [[0, 1, 1, 0, '"' * 16]]},
        {"do": "append", "topic": "t1"},
        {"do": "move start", "topic": "t1", "partition": 0, "offset": "x"},
    ],
    ids=str,
)
def test_an_invalid_request_is_rejected_and_changes_nothing(action: dict[str, Any]) -> None:
    state = State()
    apply(state, Nonce("w", 1), TOPIC)
    before = {name: value for name, value in state.entries if not name.startswith("nonce/")}
    extra, _ = appended(b"undone")
    assert apply(state, Nonce("w", 2), extra, action)["no"][0] == "InvalidConfig"
    assert {name: value for name, value in state.entries if not name.startswith("nonce/")} == before
    assert "ok" in apply(state, Nonce("w", 3), extra)


# --- interruptions, threads, forks


def test_an_interrupted_fold_leaves_no_half_applied_commit(world: World) -> None:
    one, other = journal(world), journal(world)
    one.commit([[TOPIC]])
    append(one, b"a")
    request = State._request

    def interrupted(self: State, *given: Any) -> Any:
        request(self, *given)
        raise KeyboardInterrupt

    with mock.patch.object(State, "_request", interrupted), pytest.raises(KeyboardInterrupt):
        other.refresh()
    assert append(other, b"b") == {"ok": [[1, 2]]}
    one.refresh()
    assert one.state.digest == other.state.digest


def test_readers_never_see_a_half_applied_commit_of_an_interrupted_fold(world: World) -> None:
    session, other = opened(world)._session, journal(world)
    session.poll(0)
    other.commit([[TOPIC]])
    request = State._request

    def interrupted(self: State, *given: Any) -> Any:
        request(self, *given)
        raise KeyboardInterrupt

    with mock.patch.object(State, "_request", interrupted), pytest.raises(KeyboardInterrupt):
        session.poll(0)
    assert session.look(lambda state: state.number) == other.state.number


def test_readers_do_not_wait_for_a_commit_that_loses_races(world: World) -> None:
    asks, looked = threading.Event(), threading.Event()
    other, seen = journal(world), list[int]()

    class Noting(SimulatedClocks):
        def now_s(self) -> tuple[float, float]:
            if threading.current_thread() is looking:
                asks.set()
            return super().now_s()

    def look() -> None:
        seen.append(session.look(lambda state: state.number, fresh=True))
        looked.set()

    def lose(real: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        other.refresh()
        other.commit([[NOTHING]])
        return real(*given)

    def lose_while_somebody_looks(real: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        lost_it = lose(real, given)
        looking.start()
        assert asks.wait(60)
        return lost_it

    def win(real: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        assert looked.wait(60), "it waits for the lock"
        return real(*given)

    looking = threading.Thread(target=look, daemon=True)
    session = StoreSession(SimulatedBucket(world), "w", PARAMETERS, clocks=Noting(world))
    session.poll(0)
    Answers(session.bucket, "create", lose, lose_while_somebody_looks, win)
    session.commit([NOTHING])
    assert seen == [other.state.number]
    session.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_committer_replaces_its_dead_thread() -> None:
    with ObjectStore.open(f"memory://{uuid.uuid4().hex}", maintenance_interval_s=None) as store:
        topic = store.create_topic("t")

        def dies(*given: object) -> None:
            raise SystemExit

        with mock.patch.object(Journal, "commit", dies), pytest.raises(SystemExit):
            topic.append(b"a")
        store._session._committer._thread.join(60)  # type: ignore[union-attr]
        assert topic.append(b"b") == (0, 0)


def test_a_cancelled_caller_does_not_end_the_committer() -> None:
    with ObjectStore.open(f"memory://{uuid.uuid4().hex}", maintenance_interval_s=None) as store:
        topic = store.create_topic("t")
        with store._session._lock:
            running = store._session.submit([NOTHING])
            waiting: list[Future[Any]] = [store._session.submit([NOTHING]) for _ in range(3)]
            assert any(each.cancel() for each in waiting)
        running.result(60)
        assert topic.append(b"a") == (0, 0)


def test_closing_commits_queued_requests_and_refuses_later_ones() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    store = ObjectStore.open(url, maintenance_interval_s=None)
    topic = store.create_topic("t")
    with store._session._lock:
        requests = [topic._append_action(0, [b"%d" % n]) for n in range(5)]
        waiting = [store._session.submit([action], inline) for action, inline in requests]
        closing = threading.Thread(target=store.close)
        closing.start()
    closing.join(60)
    assert all("ok" in each.result(0) for each in waiting)
    with pytest.raises(LogClosed):
        topic.append(b"late")
    with ObjectStore.open(url, "r") as again:
        assert len(list(again.topic("t").scan())) == 5


def test_a_request_that_cannot_be_encoded_fails_alone() -> None:
    with ObjectStore.open(f"memory://{uuid.uuid4().hex}", maintenance_interval_s=None) as store:
        with pytest.raises(TypeError):
            store._session.submit([{"do": "forget names", "names": [b"bytes"]}])
        store._session.commit([NOTHING])


def test_closing_in_the_committers_own_thread_does_not_wait_for_itself(world: World) -> None:
    session = StoreSession(SimulatedBucket(world), "w", PARAMETERS, clocks=SimulatedClocks(world))
    done = threading.Event()

    def close(future: Future[Any]) -> None:
        session.close()
        done.set()

    with session._lock:
        session.submit([NOTHING]).add_done_callback(close)
    assert done.wait(60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_must_open_its_own_store() -> None:
    store = ObjectStore.open(f"memory://{uuid.uuid4().hex}", maintenance_interval_s=None)
    topic = store.create_topic("t")
    pid = os.fork()
    if not pid:
        code = 1
        try:
            topic.append(b"a")
        except LogClosed:
            store.close()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert status == 0
    assert topic.append(b"b") == (0, 0)
    store.close()


# --- parameters


def test_all_processes_use_the_parameters_with_which_a_store_was_created(world: World) -> None:
    opened(world)
    other = ObjectStore.open(SimulatedBucket(world), parameters=StoreParameters(), clocks=SimulatedClocks(world))
    assert other._session.parameters == PARAMETERS
    with pytest.raises(InvalidConfig):
        StoreParameters(belief_s=10, grace_s=15)


def test_a_session_and_its_committer_share_one_lock(world: World) -> None:
    """Its lock guards the journal, so no thread reads a state that changes."""
    session = StoreSession(SimulatedBucket(world), "w", PARAMETERS)
    assert isinstance(session._committer, Committer)
    assert session._committer._lock is session._lock


@pytest.fixture(autouse=True)
def _no_pauses() -> Iterator[None]:
    with mock.patch("sawlog.store.objects.journal.Clocks.pause"):
        yield


# --- copies


def folded(world: World, *requests: list[dict[str, Any]]) -> tuple[Journal, list[Any]]:
    made = journal(world)
    made.commit([[TOPIC]])
    return made, [made.commit([request])[0] for request in requests]


def test_only_an_empty_partition_can_begin_at_the_offset_of_its_original(world: World) -> None:
    advance = {"do": "advance", "topic": "t1", "partition": 0}
    made, (first, back, wrong) = folded(
        world, [{**advance, "offset": 100}], [{**advance, "offset": 99}], [{**advance, "offset": True}]
    )
    assert (first, back["no"][0], wrong["no"][0]) == ({"ok": [None]}, "InvalidConfig", "InvalidConfig")
    assert made.state.ends("t1", 0) == (100, 100)
    assert append(made, b"x") == {"ok": [[100, 101]]}
    (late,) = made.commit([[{**advance, "offset": 200}]])
    assert late["no"][0] == "Changed", "there is a record"
    (missing,) = made.commit([[{**advance, "topic": "t2", "offset": 1}]])
    assert missing["no"][0] == "TopicNotFound"
    assert journal_of(world).state.digest == made.state.digest


def journal_of(world: World) -> Journal:
    again = journal(world)
    again.refresh()
    return again


def test_leader_epochs_of_a_copy_increase_and_cover_later_batches(world: World) -> None:
    begin = {"do": "begin epoch", "topic": "t1", "partition": 0}
    made, _ = folded(world)
    append(made, b"a")
    for epoch, expected in ((3, "ok"), (3, "no"), (2, "no"), (-1, "no"), (True, "no"), (2**31, "no")):
        (outcome,) = made.commit([[{**begin, "epoch": epoch}]])
        if expected == "ok":
            append(made, b"b")
        assert expected in outcome
    made.commit([[{**begin, "epoch": 5}]])
    made.commit([[{**begin, "epoch": 7}]])
    append(made, b"c")
    assert made.state.epochs("t1", 0) == [(3, 1), (7, 2)], "epoch 5 has no record"
    assert [each.leader_epoch for each in made.state.extents("t1", 0, 0)] == [0, 3, 7]
    made.commit([[{"do": "delete topic", "name": "t", "id": "t1"}]])
    assert not made.state.entries.names("epochs/")
    assert journal_of(world).state.digest == made.state.digest


def test_producers_of_a_copy_are_remembered_and_not_checked(world: World) -> None:
    made, _ = folded(world)
    assert append(made, b"a", producers=[[7, 0, 4, 4, 0]], copied=True) == {"ok": [[0, 1]]}
    assert append(made, b"b", producers=[[7, 0, 9, 9, 0]], copied=True) == {"ok": [[1, 2]]}
    assert append(made, b"b", producers=[[7, 0, 9, 9, 0]]) == {"ok": [[1, 2]]}, "whoever goes on there repeats it"
    assert append(made, b"c", producers=[[7, 0, 10, 10, 0]]) == {"ok": [[2, 3]]}
    assert append(made, b"d", producers=[[7, 0, 12, 12, 0]])["no"][0] == "OutOfOrderSequence"
    assert append(made, b"e", expect=0, copied=True)["no"][0] == "OffsetMismatch"


def test_a_request_can_depend_on_a_document(world: World) -> None:
    change = {"do": "change document", "name": "d", "version": 0, "fields": {"a": 1}}
    expect = {"do": "expect document", "name": "d"}
    made, (ok, stale) = folded(
        world, [{**expect, "version": 0}, change], [{**expect, "version": 0}, {**change, "version": 1}]
    )
    assert ("ok" in ok, stale["no"][0]) == (True, "Changed")
    assert made.state.document("d") == (1, {"a": 1})
