"""`DirectorySuite`: tests for every implementation of `Directory`, to inherit."""

from __future__ import annotations

import errno
import threading
import time
import unittest
from collections.abc import Callable

from ..errors import DirectoryLocked, StorageError
from ..storage import Directory, Published
from .storage_suite import LARGE_BYTES, pattern, refused


def _publishing(directory: Directory, name: str) -> Published:
    """Return a handle for storing; skip the test if the directory cannot publish."""
    if not hasattr(directory, "published"):
        raise unittest.SkipTest("this directory has no `published`: the log uses `replace` and `read` instead")
    made = directory.published(name, create=True)
    if made is None:
        raise unittest.SkipTest("nothing can be published here: readers see every complete batch")
    return made


def _reading(directory: Directory, name: str) -> Published:
    """Return a handle for loading numbers that were published."""
    found = directory.published(name)
    assert found is not None, f"{name} was published, but is not found"
    return found


class DirectorySuite:
    """Guarantees of `Directory`: storages are created, found, replaced and deleted by name."""

    # --- names

    def test_new_directory_is_empty(self, directory: Directory) -> None:
        assert directory.names() == []
        assert directory.path

    def test_names_are_sorted(self, directory: Directory) -> None:
        made = [f"{number:020d}.log" for number in (5, 40, 3, 1000, 0)]
        for name in made:
            directory.create(name).close()
        assert directory.names() == sorted(made)

    def test_a_name_is_created_once(self, directory: Directory) -> None:
        directory.create("a").append(b"abc")
        with refused(StorageError):
            directory.create("a")
        assert directory.read("a") == b"abc"

    def test_a_missing_file_is_reported_as_missing(self, directory: Directory) -> None:
        assert not directory.exists("a")
        assert directory.identity("a") is None
        for call in (directory.open, directory.open_shared, directory.open_sealed, directory.read, directory.size):
            try:
                call("a")
            except StorageError as error:
                assert error.errno == errno.ENOENT
            else:
                raise AssertionError(f"{call.__name__} found a missing file")
        with refused(StorageError):
            directory.rename("a", "b")
        assert directory.names() == []

    def test_a_directory_reports_size_and_content_of_a_storage(self, directory: Directory) -> None:
        storage = directory.create("a")
        assert directory.exists("a")
        assert directory.size("a") == 0
        storage.append(b"abc")
        assert directory.size("a") == 3
        assert directory.read("a") == b"abc"
        storage.truncate(1)
        assert directory.size("a") == 1
        assert directory.read("a") == b"a"

    def test_storages_are_separate(self, directory: Directory) -> None:
        one, two = directory.create("a"), directory.create("b")
        one.append(b"one")
        two.append(b"two!")
        one.truncate(1)
        two.append(b"more")
        assert (directory.read("a"), directory.read("b")) == (b"o", b"two!more")

    # --- replacing, renaming, deleting

    def test_replace_creates_or_replaces_the_content(self, directory: Directory) -> None:
        """For small files that are rewritten as a whole; no other file is left."""
        for data in (b"first", bytearray(b"second, longer"), memoryview(b"3"), b"", pattern(LARGE_BYTES)):
            directory.replace("a", data)
            assert directory.read("a") == bytes(data)
            assert directory.size("a") == len(data)
            assert directory.names() == ["a"]

    def test_replace_does_not_affect_open_handles(self, directory: Directory) -> None:
        """Open handles read the old content to the end, never a mixture."""
        directory.replace("a", b"old content")
        held = directory.open_sealed("a")
        view = held.view(0, 11)
        directory.replace("a", b"new")
        assert bytes(view) == b"old content"
        assert held.read(0, 11) == b"old content"
        assert directory.read("a") == b"new"

    def test_identity_tells_a_replaced_file_from_a_changed_one(self, directory: Directory) -> None:
        storage = directory.create("a")
        first = directory.identity("a")
        assert first is not None
        storage.append(b"abc")
        storage.truncate(1)
        assert directory.identity("a") == first
        directory.replace("b", b"other")
        assert directory.identity("b") != first
        directory.rename("b", "a")
        assert directory.identity("a") not in (first, None)
        assert directory.identity("b") is None
        second = directory.identity("a")
        directory.replace("a", b"again")
        assert directory.identity("a") != second

    def test_rename_replaces_the_target(self, directory: Directory) -> None:
        """The old name no longer exists, the new one has the content; users of the overwritten one keep it."""
        directory.replace("a", b"new")
        directory.replace("b", b"overwritten")
        held = directory.open_sealed("b")
        directory.rename("a", "b")
        directory.sync()
        assert directory.names() == ["b"]
        assert directory.read("b") == b"new"
        assert held.read(0, 11) == b"overwritten"

    def test_a_handle_survives_a_rename(self, directory: Directory) -> None:
        storage = directory.create("a")
        storage.append(b"abc")
        directory.rename("a", "b")
        storage.append(b"def")
        assert storage.read(0, 6) == b"abcdef"
        assert directory.read("b") == b"abcdef"

    def test_remove_deletes_a_name_if_it_exists(self, directory: Directory) -> None:
        """A second removal is not an error; views that are held stay valid."""
        directory.create("a").append(b"abc")
        view = directory.open_sealed("a").view(0, 3)
        directory.remove("a")
        directory.remove("a")
        directory.remove("never there")
        directory.sync()
        assert not directory.exists("a")
        assert directory.names() == []
        assert bytes(view) == b"abc"

    def test_dispose_keeps_a_directory_that_is_not_empty(self, directory: Directory) -> None:
        directory.replace("stranger", b"mine")
        directory.dispose()
        assert directory.read("stranger") == b"mine"

    # --- locks

    def test_lock_has_one_holder(self, directory: Directory) -> None:
        """A second owner gets an error with the path immediately; after a release, the next one gets the lock."""
        first = directory.lock("LOCK")
        assert first.held
        for _ in range(2):
            try:
                directory.lock("LOCK")
            except DirectoryLocked as error:
                assert error.path == directory.path
            else:
                raise AssertionError("two holders of one lock")
        first.release()
        second = directory.lock("LOCK")
        assert [first.held, second.held] == [False, True]
        second.release()

    def test_a_lock_can_be_released_twice(self, directory: Directory) -> None:
        first = directory.lock("LOCK")
        first.release()
        second = directory.lock("LOCK")
        first.release()
        assert second.held
        with refused(DirectoryLocked):
            directory.lock("LOCK")
        second.release()

    def test_a_lock_does_not_block_reading_and_writing(self, directory: Directory) -> None:
        held = directory.lock("LOCK")
        directory.replace("a", b"abc")
        assert directory.read("a") == b"abc"
        held.release()

    def test_locks_of_single_names_do_not_exclude_each_other(self, directory: Directory) -> None:
        one, other = directory.lock("one", alone=False), directory.lock("other", alone=False)
        with refused(DirectoryLocked):
            directory.lock("one", alone=False)
        assert [one.current, other.current] == [True, True]
        one.release()
        directory.lock("one", alone=False).release()
        other.release()

    def test_the_next_lock_holder_finds_the_note_of_the_previous_one(self, directory: Directory) -> None:
        first = directory.lock("LOCK")
        assert first.found == b""
        first.leave(b"position 12")
        first.leave(b"at 7")
        assert directory.read("LOCK").endswith(b"\nat 7")
        first.release()
        second = directory.lock("LOCK")
        assert second.found == b"at 7"
        second.release()

    def test_a_lock_whose_file_was_replaced_is_not_current(self, directory: Directory) -> None:
        old = directory.lock("member", alone=False)
        directory.remove("member")
        assert old.held
        assert not old.current
        directory.replace("member", b"")
        assert not old.current
        old.release()

    def test_the_stamp_changes_with_the_names(self, directory: Directory) -> None:
        """The stamp may be None, which means unknown, but it never stays the same after a change."""
        directory.replace("a", b"1")
        time.sleep(0.1)
        before = directory.stamp()
        assert directory.stamp() == before
        changes: list[Callable[[], None]] = [
            lambda: directory.create("b").close(),
            lambda: directory.rename("b", "c"),
            lambda: directory.replace("a", b"2"),
            lambda: directory.remove("c"),
        ]
        for change in changes:
            change()
            after = directory.stamp()
            assert after is None or after != before
            time.sleep(0.1)
            before = directory.stamp()

    # --- numbers for other processes

    def test_unpublished_numbers_are_not_found(self, directory: Directory) -> None:
        """Opening for reading creates nothing."""
        _publishing(directory, "other").close()
        assert directory.published("a") is None
        assert not directory.exists("a")
        made = _publishing(directory, "a")
        assert made.load() is None
        assert directory.exists("a")
        made.close()

    def test_readers_load_the_numbers_published_last(self, directory: Directory) -> None:
        """In the storing process and through every other handle; the numbers may decrease."""
        writer = _publishing(directory, "a")
        writer.store(0, 0)
        reader = _reading(directory, "a")
        for numbers in ((1, 0), (2, 0), (2, 1), (1 << 62, 7), (1, (1 << 31) - 1), (0, 0), ((1 << 63) - 1, 3)):
            writer.store(*numbers)
            late = _reading(directory, "a")
            assert [each.load() for each in (writer, reader, late)] == [numbers] * 3
            late.close()
        reader.close()
        writer.close()

    def test_publishing_the_same_numbers_again_changes_nothing(self, directory: Directory) -> None:
        writer = _publishing(directory, "a")
        for _ in range(5):
            writer.store(12, 3)
            assert _reading(directory, "a").load() == (12, 3)
        writer.store(13, 3)
        assert _reading(directory, "a").load() == (13, 3)
        writer.close()

    def test_published_numbers_survive_the_closing_of_the_handle(self, directory: Directory) -> None:
        writer = _publishing(directory, "a")
        writer.store(12, 3)
        writer.close()
        writer.close()
        assert _reading(directory, "a").load() == (12, 3)
        again = _publishing(directory, "a")
        assert again.load() == (12, 3)
        again.store(13, 4)
        again.close()
        assert _reading(directory, "a").load() == (13, 4)

    def test_numbers_published_under_two_names_are_separate(self, directory: Directory) -> None:
        one, two = _publishing(directory, "a"), _publishing(directory, "b")
        one.store(1, 2)
        two.store(3, 4)
        one.store(5, 6)
        assert (_reading(directory, "a").load(), _reading(directory, "b").load()) == ((5, 6), (3, 4))
        one.close()
        two.close()

    def test_removing_a_name_removes_its_published_numbers(self, directory: Directory) -> None:
        """A new log of the same name must not be read up to where the old one ended."""
        writer = _publishing(directory, "a")
        writer.store(12, 3)
        writer.close()
        directory.remove("a")
        assert directory.published("a") is None
        again = _publishing(directory, "a")
        assert again.load() is None
        again.store(1, 0)
        assert _reading(directory, "a").load() == (1, 0)
        again.close()

    def test_both_published_numbers_change_atomically(self, directory: Directory) -> None:
        """No reader loads one old and one new number, or no numbers, or numbers that decrease."""
        writer = _publishing(directory, "a")
        writer.store(0, 0)
        ended = threading.Event()

        def store() -> None:
            for number in range(1, 20_001):
                writer.store(number, number)
            ended.set()

        thread = threading.Thread(target=store)
        reader, latest, loads = _reading(directory, "a"), 0, 0
        thread.start()
        while not ended.is_set() or not loads:
            found = reader.load()
            assert found is not None, "the numbers were gone for a moment"
            assert found[0] == found[1] >= latest, f"{found} after {latest}"
            latest, loads = found[0], loads + 1
        thread.join()
        assert reader.load() == (20_000, 20_000)
        reader.close()
        writer.close()

    # --- directories below

    def test_a_child_is_a_separate_directory(self, directory: Directory) -> None:
        made = directory.child("below", create=True)
        made.replace("a", b"abc")
        directory.replace("a", b"x")
        assert directory.children() == ["below"]
        assert directory.names() == ["a"]
        again = directory.child("below")
        assert again.path == f"{directory.path}/below"
        assert again.read("a") == b"abc"
        made.close()
        again.close()

    def test_a_missing_child_is_reported_as_missing(self, directory: Directory) -> None:
        with refused(StorageError):
            directory.child("below")
        directory.child("below", create=True).close()
        directory.child("below", create=True).close()
        assert directory.children() == ["below"]

    def test_a_child_can_be_renamed_and_deleted_with_its_content(self, directory: Directory) -> None:
        made = directory.child("old", create=True)
        made.child("deep", create=True).close()
        made.replace("a", b"abc")
        made.close()
        directory.rename("old", "new")
        assert directory.children() == ["new"]
        found = directory.child("new")
        assert (found.names(), found.children()) == (["a"], ["deep"])
        found.close()
        directory.remove_child("new")
        directory.remove_child("new")
        assert directory.children() == []

    def test_a_file_can_have_a_second_name_in_another_directory(self, directory: Directory) -> None:
        """Both names refer to the same bytes until the last one is removed; linking never replaces a file."""
        if not hasattr(directory, "link"):
            raise unittest.SkipTest("files have one name here: what could be linked is copied")
        left, right = directory.child("left", create=True), directory.child("right", create=True)
        left.replace("a", b"abc")
        right.replace("taken", b"old")
        with refused(StorageError):
            left.link("a", right, "taken")
        with refused(StorageError):
            left.link("missing", right, "b")
        left.link("a", right, "b")
        left.remove("a")
        right.rename("b", "taken")
        assert (left.names(), right.names(), right.read("taken")) == ([], ["taken"], b"abc")
        left.close()
        right.close()

    def test_files_and_directories_move_between_directories(self, directory: Directory) -> None:
        left, right = directory.child("left", create=True), directory.child("right", create=True)
        left.replace("a", b"abc")
        right.replace("b", b"old")
        left.child("deep", create=True).close()
        left.move("a", right, "b")
        left.move("deep", right, "deeper")
        assert (left.names(), left.children()) == ([], [])
        assert (right.read("b"), right.children()) == (b"abc", ["deeper"])
        left.close()
        right.close()
