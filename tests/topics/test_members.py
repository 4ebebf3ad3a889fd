"""The files that say who is a member and who owns what: alive, dead, silent, fenced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sawlog import clock as clock_module
from sawlog.errors import InvalidConfig
from sawlog.storage import Directory, FileDirectory, MemoryDirectory
from sawlog.store.directory.members import Members, forget_group, give_up, group_directory, groups_with_members
from sawlog.store.names import check_group_name

from ..looping import for_each

SHARE = ("orders", 3)


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(clock_module, "time", made)
    return made


@pytest.fixture
def root(medium: str, tmp_path: Path) -> Iterator[Directory]:
    made: Directory = FileDirectory(tmp_path) if medium == "files" else MemoryDirectory()
    yield made
    made.close()


@pytest.fixture
def group(root: Directory) -> Iterator[Members]:
    made = Members(group_directory(root, "billing", create=True))
    yield made
    made.directory.close()


def silence(group: Members, clock: Clock, seconds: float) -> None:
    """Look at the group often while time passes."""
    for _ in range(int(seconds * 4)):
        clock.now += 0.25
        group.look()


def test_a_member_is_seen_with_what_it_says(group: Members) -> None:
    joined = group.join("worker 7", ["orders", "totals"], 10_000)
    (seen,) = group.look().values()
    assert (seen.id, seen.name, seen.topics) == (joined.id, "worker 7", ("orders", "totals"))
    assert seen.session_timeout_ms == 10_000
    assert "process" in seen.process


def test_a_member_that_left_is_not_seen_and_leaves_no_file(group: Members) -> None:
    group.join("", ["orders"], 10_000).leave()
    assert group.look() == {}
    assert group.directory.names() == []


def test_a_member_whose_lock_is_free_is_dead_and_its_file_goes(group: Members) -> None:
    """Leave the file and its note without a lock, as the kernel does after a death."""
    joined = group.join("", ["orders"], 10_000)
    other = group.join("", ["orders"], 10_000)
    joined._held.release()
    assert group.look().keys() == {other.id}
    assert group.directory.names() == [f"member-{other.id}"]


def test_a_file_without_a_note_is_no_member_yet(group: Members) -> None:
    held = group.directory.lock("member-joining", alone=False)
    assert group.look() == {}
    assert group.directory.names() == ["member-joining"]
    held.release()


def test_a_beating_member_is_never_silent(group: Members, clock: Clock) -> None:
    joined = group.join("", ["orders"], 1000)
    for _ in range(20):
        clock.now += 0.25
        joined.beat()
        (seen,) = group.look().values()
        assert not group.is_silent(seen)


def test_a_member_is_silent_after_its_own_session_timeout(group: Members, clock: Clock) -> None:
    joined = group.join("quick", ["orders"], 1000), group.join("slow", ["orders"], 5000)
    group.look()
    silence(group, clock, 0.75)
    assert not any(group.is_silent(each) for each in group.look().values())
    silence(group, clock, 0.25)
    assert [each.name for each in group.look().values() if group.is_silent(each)] == ["quick"]
    del joined


def test_time_without_polling_does_not_count(group: Members, clock: Clock) -> None:
    """The observer may have been stopped itself, together with the observed member."""
    joined = group.join("", ["orders"], 5000)
    group.look()
    clock.now += 3600
    (seen,) = group.look().values()
    assert not group.is_silent(seen)
    silence(group, clock, 4)
    assert group.is_silent(seen)
    del joined


def test_a_fenced_member_is_not_current_and_owns_nothing(group: Members, clock: Clock) -> None:
    joined = group.join("", ["orders"], 1000)
    held = group.take(SHARE, joined.id)
    assert held is not None
    assert joined.current
    assert held.current
    group.look()
    silence(group, clock, 1)
    (seen,) = group.look().values()
    assert group.fence(seen)
    assert not joined.current
    assert not held.current
    assert group.look() == {}
    assert group.owners() == {}
    joined.beat()  # as its background would
    joined.leave()
    give_up(held)
    assert group.look() == {}
    assert group.directory.names() == []


def test_a_member_that_comes_back_in_time_is_not_fenced(group: Members, clock: Clock) -> None:
    joined = group.join("", ["orders"], 1000)
    (seen,) = group.look().values()
    silence(group, clock, 1)
    joined.beat()
    assert not group.fence(seen)
    assert joined.current


def test_the_partitions_of_others_survive_a_fencing(group: Members, clock: Clock) -> None:
    gone, other = group.join("", ["orders"], 1000), group.join("", ["orders"], 100_000)
    lost, kept = group.take(("orders", 0), gone.id), group.take(("orders", 1), other.id)
    assert lost is not None
    assert kept is not None
    assert group.fence(group.look()[gone.id])
    assert group.owners() == {("orders", 1): other.id}
    assert kept.current
    assert not lost.current


def test_a_partition_has_one_owner(group: Members) -> None:
    held = group.take(SHARE, "one")
    assert held is not None
    assert group.take(SHARE, "two") is None
    assert group.owners() == {SHARE: "one"}
    give_up(held)
    assert group.owners() == {}
    again = group.take(SHARE, "two")
    assert again is not None
    assert group.owners() == {SHARE: "two"}
    give_up(again)


def test_a_fenced_partition_can_be_taken_while_the_old_lock_is_held(group: Members) -> None:
    stopped = group.join("", ["orders"], 1)
    old = group.take(SHARE, stopped.id)
    assert group.fence(group.look()[stopped.id])
    new = group.take(SHARE, "two")
    assert old is not None
    assert new is not None
    assert new.current
    assert not old.current
    give_up(old)
    assert new.current
    assert group.owners() == {SHARE: "two"}
    give_up(new)


def test_the_longest_topic_has_an_owner_as_well(group: Members) -> None:
    long, other = ("t" * 249, 12345), ("t" * 248 + "u", 12345)
    held = group.take(long, "one")
    assert held is not None
    assert group.take(other, "two") is not None
    assert group.owners() == {long: "one", other: "two"}


def test_looking_without_touching_goes_by_the_time_in_the_note(group: Members, clock: Clock) -> None:
    joined = group.join("", ["orders"], 1000)
    names = group.directory.names()
    assert group.glance().keys() == {joined.id}
    clock.now += 2
    assert group.glance() == {}
    assert group.directory.names() == names


@for_each("name", ["billing", ".", "..", "a/b", "ä ö", "%2E", "x.tmp", "-"])
def test_any_text_can_be_a_groups_name(root: Directory, name: str) -> None:
    assert check_group_name(name) == name
    members = Members(group_directory(root, name, create=True))
    members.join("", ["orders"], 1000)
    members.directory.close()
    assert groups_with_members(root) == [name]
    forget_group(root, name)
    assert groups_with_members(root) == []


@for_each("name", ["", "x" * 201, "ä" * 67, None, 7])
def test_a_name_that_no_directory_can_have_is_refused(name: object) -> None:
    with pytest.raises(InvalidConfig):
        check_group_name(name)


def test_a_store_without_members_has_no_groups(root: Directory) -> None:
    assert groups_with_members(root) == []
    forget_group(root, "billing")
