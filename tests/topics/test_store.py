"""Creating, listing, describing, altering and deleting topics, and directories that a store refuses to touch."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sawlog import Log
from sawlog.errors import (
    CorruptFile,
    DirectoryLocked,
    InvalidConfig,
    InvalidTopicName,
    LogClosed,
    ReadOnlyLog,
    SawlogError,
    StoreNotFound,
    TopicExists,
    TopicNotFound,
)
from sawlog.storage import Directory, MemoryDirectory, checksummed
from sawlog.store.directory.store import DirectoryStore
from sawlog.testing.faulty import FaultyDirectory

from ..looping import for_each
from .stores import FilePlace, MemoryPlace, StorePlace, tree, values


def orders(place: StorePlace) -> Directory:
    """The directory of the topic of that name."""
    return place.raw().child("topics").child("orders")


# --- opening


def test_a_new_store_is_empty_and_has_an_id_that_stays(place: StorePlace) -> None:
    store = place.open()
    assert store.topics() == []
    first = store.id
    store.close()
    assert place.open().id == first


def test_two_stores_have_different_ids() -> None:
    assert DirectoryStore.open(MemoryDirectory()).id != DirectoryStore.open(MemoryDirectory()).id


def test_the_layout_can_be_read_with_ls(place: StorePlace) -> None:
    store = place.open()
    store.create_topic("orders", partitions=2)
    found = {name for name in tree(place.raw()) if not name.endswith("LOCK")}
    segments = {f"topics/orders/partition-{n}/{'0' * 20}.log" for n in (0, 1)}
    checkpoints = {f"topics/orders/partition-{n}/checkpoint" for n in (0, 1)}
    directories = {"staging/", "topics/", "topics/orders/", "topics/orders/partition-0/", "topics/orders/partition-1/"}
    assert found == {"sawlog.json", "topics/orders/topic.json", *directories, *segments, *checkpoints}


def test_what_a_crash_left_while_a_store_was_made_is_no_obstacle(tmp_path: Path) -> None:
    for name in ("topics", "staging"):
        (tmp_path / name).mkdir()
    with DirectoryStore.open(tmp_path) as store:
        assert store.topics() == []


def test_topics_of_another_system_are_not_taken_for_a_store(tmp_path: Path) -> None:
    (tmp_path / "topics" / "orders" / "partition-0").mkdir(parents=True)
    with pytest.raises(InvalidConfig, match="topics/"):
        DirectoryStore.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["topics"]


def test_a_missing_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path / "a" / "b") as store:
        assert store.path == str(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "sawlog.json").exists()


@pytest.mark.parametrize("what", ["nothing", "an empty directory", "a file"])
def test_reading_where_there_is_no_store_is_refused_and_leaves_nothing(tmp_path: Path, what: str) -> None:
    path = tmp_path / "store"
    if what == "an empty directory":
        path.mkdir()
    elif what == "a file":
        path.write_bytes(b"")
    with pytest.raises(StoreNotFound) as caught:
        DirectoryStore.open(path, "r")
    assert isinstance(caught.value, FileNotFoundError)
    assert path.exists() == (what != "nothing")
    assert what != "an empty directory" or not list(path.iterdir())


def test_a_strangers_directory_is_not_made_a_store(place: StorePlace) -> None:
    place.raw().replace("holiday.jpg", b"...")
    with pytest.raises(InvalidConfig, match=r"holiday\.jpg"):
        place.open()
    assert place.raw().names() == ["holiday.jpg"]


def test_the_directory_of_one_log_is_recognised(place: StorePlace) -> None:
    Log.open(place.directory()).close()
    before = tree(place.raw())
    with pytest.raises(InvalidConfig, match=r"Log\.open"):
        place.open()
    with pytest.raises(StoreNotFound, match=r"Log\.open"):
        place.open("r")
    assert tree(place.raw()) == before


def test_what_a_crash_leaves_while_a_store_is_made_is_no_strangers(place: StorePlace) -> None:
    place.raw().replace("LOCK", b"")
    place.raw().replace("sawlog.json.tmp", b"{")
    assert place.open().topics() == []


def test_a_store_of_another_format_is_refused(place: StorePlace) -> None:
    place.open().close()
    checksummed.store(place.raw(), "sawlog.json", {"format": 3, "id": "x"})
    with pytest.raises(InvalidConfig, match="format 3"):
        place.open("r")


def test_a_damaged_store_file_is_not_believed(place: StorePlace) -> None:
    place.open().close()
    place.raw().replace("sawlog.json", place.raw().read("sawlog.json").replace(b"2", b"1", 1))
    with pytest.raises(CorruptFile, match=r"sawlog\.json"):
        place.open()


def test_modes_other_than_w_and_r_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="mode"):
        DirectoryStore.open(MemoryDirectory(), "a")  # type: ignore[arg-type]


def test_a_store_in_memory_is_found_again_in_its_directory() -> None:
    directory = MemoryDirectory()
    with DirectoryStore.open(directory) as store:
        store.create_topic("orders").append(b"one")
    with DirectoryStore.open(directory) as store:
        assert values(store["orders"].scan()) == [b"one"]


# --- topics


def test_topics_are_listed_by_name_and_found(place: StorePlace) -> None:
    store = place.open()
    for name in ("stock", "orders", "Zebra"):
        store.create_topic(name)
    assert store.topics() == ["Zebra", "orders", "stock"]
    assert "orders" in store
    assert "nothing" not in store
    assert [topic.name for topic in store] == store.topics()
    assert store["orders"] is store.topic("orders")


def test_a_topic_that_is_not_there_is_a_key_error_that_says_which_are(place: StorePlace) -> None:
    store = place.open()
    with pytest.raises(TopicNotFound, match="no topics yet"):
        store.topic("orders")
    store.create_topic("stock")
    with pytest.raises(KeyError, match="stock"):
        store["orders"]


@for_each("name", ["..", "../..", "a/b", "", "x.deleted"])
def test_an_impossible_name_is_not_found_and_not_made(place: StorePlace, name: str) -> None:
    store = place.open()
    with pytest.raises(TopicNotFound):
        store.topic(name)
    with pytest.raises(InvalidTopicName):
        store.create_topic(name)
    assert store.topics() == []


def test_what_was_given_when_a_topic_was_made_is_there_after_reopening(place: StorePlace) -> None:
    with place.open() as store:
        made = store.create_topic("orders", partitions=3, retention_ms=1000, **{"segment.bytes": "4096"})
        id_ = made.id
    for mode in ("r", "w"):
        topic = place.open(mode)["orders"]
        assert (topic.name, topic.id, topic.partitions) == ("orders", id_, 3)
        assert topic.settings == {"retention.ms": 1000, "segment.bytes": 4096}
        assert topic.partition(2).config.segment_bytes == 4096


def test_a_topic_is_made_once(place: StorePlace) -> None:
    store = place.open()
    first = store.create_topic("orders", partitions=2)
    with pytest.raises(TopicExists) as caught:
        store.create_topic("orders")
    assert isinstance(caught.value, FileExistsError)
    assert store.create_topic("orders", partitions=7, exist_ok=True) is first
    assert first.partitions == 2


@pytest.mark.parametrize("exist_ok", [False, True])
def test_names_that_differ_by_case_only_collide(place: StorePlace, exist_ok: bool) -> None:
    store = place.open()
    store.create_topic("Orders")
    with pytest.raises(TopicExists, match="only in case"):
        store.create_topic("orders", exist_ok=exist_ok)
    assert store.topics() == ["Orders"]


@for_each("partitions", [0, -1, 1.5, True, None, "3", 10**6])
def test_a_topic_has_a_sensible_number_of_partitions(place: StorePlace, partitions: object) -> None:
    store = place.open()
    with pytest.raises(InvalidConfig, match="partitions"):
        store.create_topic("orders", partitions=partitions)  # type: ignore[arg-type]
    assert store.topics() == []


def test_settings_take_units_as_on_the_command_line(place: StorePlace) -> None:
    store = place.open()
    made = store.create_topic("orders", retention_ms="7d", segment_bytes="64MiB", **{"segment.ms": "1h30m"})  # type: ignore[arg-type]
    assert made.settings == {"retention.ms": 604_800_000, "segment.bytes": 64 << 20, "segment.ms": 5_400_000}
    assert store.alter_topic("orders", retention_ms="-1").settings["retention.ms"] == -1
    with pytest.raises(InvalidConfig, match=r"retention.ms must be an integer, at least -1, not '7y'.*1h30m"):
        store.alter_topic("orders", retention_ms="7y")
    with pytest.raises(InvalidConfig, match="64KiB"):
        store.alter_topic("orders", retention_bytes="7d")


def test_creating_a_topic_again_names_the_way_to_allow_it(place: StorePlace) -> None:
    store = place.open()
    store.create_topic("orders")
    with pytest.raises(TopicExists, match="exist_ok=True"):
        store.create_topic("orders")


def test_a_mistyped_topic_gets_a_suggestion(place: StorePlace) -> None:
    store = place.open()
    store.create_topic("orders")
    store.create_topic("billing")
    with pytest.raises(TopicNotFound, match=r"did you mean 'orders'\?"):
        store.topic("ordres")
    with pytest.raises(TopicNotFound, match="its topics are billing, orders"):
        store.topic("zzz")


def test_wrong_settings_make_no_topic(place: StorePlace) -> None:
    store = place.open()
    with pytest.raises(InvalidConfig, match="retention"):
        store.create_topic("orders", retention_ms="soon")
    assert store.topics() == []
    assert place.raw().child("topics").children() == []


def test_a_damaged_topic_is_reported_and_the_others_go_on(place: StorePlace) -> None:
    with place.open() as store:
        store.create_topic("orders")
        store.create_topic("stock").append(b"one")
    orders(place).replace("topic.json", b"{}")
    store = place.open()
    with pytest.raises(CorruptFile, match=r"orders/topic\.json"):
        store.topic("orders")
    assert values(store["stock"].scan()) == [b"one"]


def test_a_damaged_topic_keeps_no_other_from_being_listed_and_looked_after(place: StorePlace) -> None:
    with place.open() as store:
        for name in ("a", "orders", "z"):
            store.create_topic(name, retention_ms=1).append_many([(b"old", None, (), 1000)] * 2)
    orders(place).replace("topic.json", b"{}")
    store = place.open()
    topics = iter(store)
    assert [next(topics).name, next(topics).name] == ["a", "z"]
    with pytest.raises(CorruptFile, match=r"orders/topic\.json"):
        next(topics)
    store.maintain()
    assert [values(store[name].scan()) for name in ("a", "z")] == [[], []]


def test_others_are_read_while_one_that_takes_anothers_place_is_damaged(place: StorePlace) -> None:
    with place.open() as store:
        store.create_topic("orders").append(b"one")
        taking = store.create_topic("taking").id
    topics = place.raw().child("topics")
    topics.rename("taking", f"{taking}.swap")
    topics.child(f"{taking}.swap").replace("topic.json", b"{}")
    reading = place.open("r")
    assert reading.topics() == ["orders"]
    assert values(reading["orders"].scan()) == [b"one"]
    with pytest.raises(CorruptFile, match=r"swap/topic\.json"):
        place.open()


def test_a_missing_topic_file_is_damage_not_absence(place: StorePlace) -> None:
    with place.open() as store:
        store.create_topic("orders")
    orders(place).remove("topic.json")
    with pytest.raises(CorruptFile, match="missing"):
        place.open("r").topic("orders")


def test_a_topic_in_a_directory_of_another_name_is_reported(place: StorePlace) -> None:
    with place.open() as store:
        store.create_topic("orders")
    place.raw().child("topics").rename("orders", "moved")
    with pytest.raises(CorruptFile, match="'orders'"):
        place.open("r").topic("moved")


def test_topic_files_are_json(file_place: FilePlace) -> None:
    topic = file_place.open().create_topic("orders", partitions=2, cleanup_policy="compact")
    found = json.loads((file_place.path / "topics/orders/topic.json").read_text())
    assert found["id"] == topic.id
    assert (found["name"], found["partitions"], found["settings"]) == ("orders", 2, {"cleanup.policy": "compact"})


# --- altering


def test_partitions_are_added_and_hold_records(place: StorePlace) -> None:
    store = place.open()
    topic = store.create_topic("orders", partitions=2)
    topic.append(b"old", partition=1)
    assert store.alter_topic("orders", partitions=4) is topic
    assert topic.partitions == 4
    topic.append(b"new", partition=3)
    store.close()
    assert values(place.open("r")["orders"].scan()) == [b"old", b"new"]


def test_settings_are_changed_one_by_one(place: StorePlace) -> None:
    store = place.open()
    store.create_topic("orders", retention_ms=1, segment_ms=2)
    assert store.alter_topic("orders", retention_ms=None, segment_bytes=3).settings == {
        "segment.ms": 2,
        "segment.bytes": 3,
    }
    assert place.open("r")["orders"].settings == {"segment.ms": 2, "segment.bytes": 3}


def test_a_log_that_is_open_keeps_its_settings_and_the_next_one_has_the_new_ones(place: StorePlace) -> None:
    store = place.open()
    log = store.create_topic("orders", segment_bytes=4000).partition(0)
    store.alter_topic("orders", segment_bytes=5000)
    assert store["orders"].partition(0) is log
    assert log.config.segment_bytes == 4000
    store.close()
    assert place.open()["orders"].partition(0).config.segment_bytes == 5000


def test_fewer_partitions_are_refused(place: StorePlace) -> None:
    store = place.open()
    store.create_topic("orders", partitions=3)
    with pytest.raises(InvalidConfig, match="only increase"):
        store.alter_topic("orders", partitions=2)
    assert store["orders"].partitions == 3


def test_a_wrong_change_changes_nothing(place: StorePlace) -> None:
    store = place.open()
    store.create_topic("orders")
    before = tree(orders(place))
    with pytest.raises(InvalidConfig):
        store.alter_topic("orders", partitions=5, retention_ms="soon")
    assert tree(orders(place)) == before


def test_what_is_not_there_cannot_be_altered_or_deleted(place: StorePlace) -> None:
    store = place.open()
    with pytest.raises(TopicNotFound):
        store.alter_topic("orders", partitions=2)
    with pytest.raises(TopicNotFound):
        store.delete_topic("orders")


# --- deleting


def test_a_deleted_topic_is_gone_with_its_files(place: StorePlace) -> None:
    store = place.open()
    topic = store.create_topic("orders", partitions=2)
    topic.append(b"one")
    store.delete_topic("orders")
    assert store.topics() == []
    assert place.raw().child("topics").children() == []
    with pytest.raises(TopicNotFound):
        topic.append(b"two")


def test_a_name_can_be_used_again_and_the_old_topic_stays_gone(place: StorePlace) -> None:
    store = place.open()
    old = store.create_topic("orders")
    old.append(b"old")
    store.delete_topic("orders")
    new = store.create_topic("orders")
    assert new.id != old.id
    assert values(new.scan()) == []
    with pytest.raises(TopicNotFound):
        old.append(b"late")


def test_a_topic_is_not_deleted_during_a_turn_of_somebody_else(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sawlog.store.directory.catalog._PATIENCE_S", 0.2)
    store, other = place.open(), place.open()
    store.create_topic("orders", partitions=2).append(b"ours", partition=0)
    theirs = other["orders"]
    theirs.append(b"theirs", partition=1)
    with theirs.partition(1)._hold(), pytest.raises(DirectoryLocked):
        store.delete_topic("orders")
    assert values(store["orders"].scan()) == [b"ours", b"theirs"]
    assert store["orders"].append(b"again", partition=0).offset == 1
    store.delete_topic("orders")
    assert store.topics() == []
    with pytest.raises(TopicNotFound):
        theirs.append(b"lost", partition=1)
    with pytest.raises(TopicNotFound):
        theirs.append(b"lost", partition=0)


def test_a_reader_learns_that_its_topic_was_deleted(place: StorePlace) -> None:
    store, other = place.open(), place.open()
    store.create_topic("orders").append(b"one")
    theirs = other["orders"]
    assert values(theirs.scan()) == [b"one"]
    store.delete_topic("orders")
    with pytest.raises(TopicNotFound):
        theirs.append(b"into the void")
    with pytest.raises(TopicNotFound):
        other.topic("orders")


def test_a_process_that_knew_an_earlier_topic_does_not_write_to_the_new_one(place: StorePlace) -> None:
    store, other = place.open(), place.open()
    store.create_topic("orders")
    theirs = other["orders"]
    theirs.partition(0)
    store.delete_topic("orders")
    store.create_topic("orders")
    with pytest.raises(TopicNotFound):
        theirs.append(b"into the void")
    assert other["orders"].id == store["orders"].id
    assert other["orders"].append(b"right").offset == 0
    assert store["orders"].append(b"right, too").offset == 1


# --- what survives a power cut


def calls_of(change: Callable[[DirectoryStore], object]) -> list[tuple[str, str]]:
    """The calls of a change that decide about its survival, in the order they were made."""
    directory = FaultyDirectory(MemoryDirectory())
    with DirectoryStore.open(directory, maintenance_interval_s=None) as store:
        store.create_topic("orders")
        directory.calls.clear()
        change(store)
        made = [(call.operation, call.name) for call in directory.calls]
    return [call for call in made if call[0] in ("rename", "replace", "sync", "remove_child")]


def test_a_new_topic_is_durable_when_it_is_given_out() -> None:
    calls = calls_of(lambda store: store.create_topic("stock", partitions=2))
    assert [operation for operation, _ in calls] == ["replace", "replace", "replace", "rename", "sync"]
    assert calls[2][1].endswith(".tmp/topic.json")
    assert calls[-1] == ("sync", "topics/")


def test_new_partitions_are_durable_before_they_count() -> None:
    calls = calls_of(lambda store: store.alter_topic("orders", partitions=2))
    assert calls[1:] == [
        ("rename", "topics/orders/partition-1.tmp"),
        ("sync", "topics/orders/"),
        ("replace", "topics/orders/topic.json"),
    ]


def test_a_topic_is_gone_durably_before_its_files_go() -> None:
    calls = calls_of(lambda store: store.delete_topic("orders"))
    assert calls[:3] == [("replace", "deleted.json"), ("rename", "topics/orders"), ("sync", "topics/")]
    assert [operation for operation, _ in calls[3:]] == ["remove_child"]


# --- others in the same directory


def test_changes_by_others_are_seen_when_one_asks(place: StorePlace) -> None:
    store, reader = place.open(), place.open("r")
    assert reader.topics() == []
    store.create_topic("orders", retention_ms=1)
    topic = reader["orders"]
    store.alter_topic("orders", partitions=3, retention_ms=2)
    store["orders"].append(b"one", partition=2)
    assert topic.partition(2).read(0).value == b"one"  # asking for a partition is asking
    assert reader["orders"] is topic
    assert topic.settings == {"retention.ms": 2}


def test_two_writers_share_a_store_and_its_partitions(place: StorePlace) -> None:
    store, other = place.open(), place.open()
    store.create_topic("orders").append(b"one")
    other.create_topic("stock").append(b"two")
    assert other["orders"].partition(0).append(b"three") == 1
    assert store["orders"].append(b"four").offset == 2
    store.close()
    assert values(other["orders"].scan()) == [b"one", b"three", b"four"]


def test_a_reader_changes_and_locks_nothing(place: StorePlace) -> None:
    with place.open() as store:
        store.create_topic("orders", partitions=2).append(b"one", partition=0)
    before = tree(place.raw())
    reader = place.open("r")
    topic = reader["orders"]
    assert values(topic.scan()) == [b"one"]
    assert topic.describe().records == 1
    for change in (
        lambda: reader.create_topic("stock"),
        lambda: reader.create_topic("orders", exist_ok=True),
        lambda: reader.alter_topic("orders", partitions=3),
        lambda: reader.delete_topic("orders"),
        lambda: topic.append(b"two"),
        lambda: topic.append_many([b"two"]),
        lambda: topic.trim({0: 1}),
        lambda: topic.writer(),
        lambda: reader.transaction(),
        lambda: reader.maintain(),
    ):
        with pytest.raises(ReadOnlyLog):
            change()
    reader.close()
    assert tree(place.raw()) == before


def test_leftovers_of_half_done_changes_are_removed_by_the_next_writer_only(place: StorePlace) -> None:
    with place.open() as store:
        store.create_topic("orders")
    topics = place.raw().child("topics")
    clean = tree(topics)
    topics.child("0b5c.tmp", create=True).replace("topic.json", b"half")
    topics.child("77aa.deleted", create=True).child("partition-0", create=True)
    topics.child("orders").child("partition-1", create=True)
    topics.child("orders").child("partition-2.tmp", create=True)
    left = tree(topics)
    with place.open("r") as reader:
        assert reader.topics() == ["orders"]
        assert reader["orders"].partitions == 1
    assert tree(topics) == left
    place.open()
    assert tree(topics) == clean


def test_strangers_directories_among_the_topics_are_left_alone(place: StorePlace) -> None:
    place.open().close()
    stranger = place.raw().child("topics").child("not a topic", create=True)
    stranger.replace("file", b"theirs")
    store = place.open()
    assert store.topics() == []
    assert stranger.read("file") == b"theirs"


# --- closing


def test_after_close_everything_says_so(place: StorePlace) -> None:
    store = place.open()
    topic = store.create_topic("orders")
    topic.append(b"one")
    log, writer = topic.partition(0), topic.writer()
    store.close()
    store.close()
    for call in (
        store.topics,
        lambda: store.topic("orders"),
        lambda: store.create_topic("stock"),
        lambda: store.transaction(),
        lambda: topic.append(b"two"),
        lambda: topic.scan(),
        lambda: topic.partition(0),
        lambda: log.append(b"two"),
        lambda: writer.append(b"two"),
    ):
        with pytest.raises(LogClosed):
            call()


def test_closing_writes_out_what_writers_hold(place: StorePlace) -> None:
    store = place.open()
    writer = store.create_topic("orders", partitions=3).writer()
    for number in range(30):
        writer.append(b"%d" % number, key=b"%d" % number)
    store.close()
    assert sorted(values(place.open("r")["orders"].scan())) == sorted(b"%d" % number for number in range(30))


def test_closing_lets_go_of_all_locks(place: StorePlace) -> None:
    store = place.open()
    store.create_topic("orders", partitions=2).append_many([b"a", b"b"])
    store.close()
    other = place.open()
    assert {number: log.offset for number in (0, 1) for log in [other["orders"].append(b"c", partition=number)]}


# --- threads


def test_threads_make_topics_and_write_to_them_at_once(memory_place: MemoryPlace) -> None:
    store = memory_place.open()
    store.create_topic("shared", partitions=3)
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            own = store.create_topic(f"own-{number}", partitions=2)
            for i in range(50):
                own.append(b"%d" % i)
                store["shared"].append(b"%d" % i, key=b"%d" % number)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(store.topics()) == 7
    assert all(topic.describe().records == (300 if topic.name == "shared" else 50) for topic in store)


def test_one_of_many_threads_makes_a_topic_and_the_others_are_told(memory_place: MemoryPlace) -> None:
    stores = [memory_place.open() for _ in range(4)]
    outcomes: list[str] = []

    def make(store: DirectoryStore) -> None:
        try:
            store.create_topic("orders")
            outcomes.append("made")
        except SawlogError as error:
            outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=make, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["TopicExists", "TopicExists", "TopicExists", "made"]
