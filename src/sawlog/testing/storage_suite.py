"""`StorageSuite`: tests for every implementation of `Storage`, to inherit; and what all suites share."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ReadBeyondEnd, StorageFull
from ..storage import Directory, Storage

#: Larger than a page and than any buffer of a storage, and not a multiple of either.
LARGE_BYTES = (3 << 20) + 17


@contextmanager
def refused(kind: type[BaseException]) -> Iterator[None]:
    """Fail unless the block raises this kind of error."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def pattern(size_bytes: int, seed: int = 0) -> bytes:
    """Return pseudo-random bytes, the same for the same seed."""
    return random.Random(seed).randbytes(size_bytes)


def _content(storage: Storage) -> bytes:
    return storage.read(0, storage.size)


class StorageSuite:
    """Guarantees of `Storage`: a sequence of bytes that grows at its end."""

    # --- appending and reading

    def test_new_storage_is_empty(self, directory: Directory) -> None:
        storage = directory.create("a")
        assert storage.name == "a"
        assert storage.size == 0
        assert storage.read(0, 0) == b""
        assert bytes(storage.view(0, 0)) == b""

    def test_empty_storage_refuses_to_read_a_byte(self, directory: Directory) -> None:
        storage = directory.create("a")
        with refused(ReadBeyondEnd):
            storage.read(0, 1)
        with refused(ReadBeyondEnd):
            storage.view(0, 1)
        assert storage.size == 0

    def test_append_returns_the_position_of_the_first_byte(self, directory: Directory) -> None:
        storage = directory.create("a")
        end = 0
        for i in range(100):
            data = pattern(i, i)
            assert storage.append(data) == end
            end += i
            assert storage.size == end
        assert _content(storage) == b"".join(pattern(i, i) for i in range(100))

    def test_every_kind_of_buffer_is_accepted(self, directory: Directory) -> None:
        storage = directory.create("a")
        for data in (b"one", bytearray(b"two"), memoryview(b"three"), memoryview(bytearray(b"xfourx"))[1:5]):
            storage.append(data)
        assert _content(storage) == b"onetwothreefour"

    def test_appended_bytes_do_not_change_with_the_callers_buffer(self, directory: Directory) -> None:
        storage = directory.create("a")
        data = bytearray(b"before")
        storage.append(data)
        data[:] = b"after!"
        assert _content(storage) == b"before"

    def test_appending_nothing_changes_nothing(self, directory: Directory) -> None:
        storage = directory.create("a")
        storage.append(b"abc")
        assert storage.append(b"") == 3
        assert _content(storage) == b"abc"

    def test_any_part_can_be_read_exactly(self, directory: Directory) -> None:
        storage = directory.create("a")
        data = pattern(64)
        for start in range(0, 64, 7):
            storage.append(data[start : start + 7])
        for start in range(65):
            for size in range(65 - start):
                assert storage.read(start, size) == data[start : start + size]
                assert bytes(storage.view(start, size)) == data[start : start + size]

    def test_read_beyond_the_end_is_refused_even_in_part(self, directory: Directory) -> None:
        """A short result would look like data."""
        storage = directory.create("a")
        storage.append(pattern(10))
        for position, size in ((0, 11), (9, 2), (10, 1), (11, 1), (1000, 1)):
            with refused(ReadBeyondEnd):
                storage.read(position, size)
            with refused(ReadBeyondEnd):
                storage.view(position, size)

    def test_large_content_is_kept(self, directory: Directory) -> None:
        storage = directory.create("a")
        data = pattern(LARGE_BYTES)
        storage.append(data)
        storage.append(b"tail")
        assert storage.size == LARGE_BYTES + 4
        assert bytes(storage.view(0, storage.size)) == data + b"tail"
        assert storage.read(LARGE_BYTES - 2, 6) == data[-2:] + b"tail"

    def test_appended_bytes_can_be_read_immediately(self, directory: Directory) -> None:
        storage = directory.create("a")
        end = 0
        for i in range(200):
            data = pattern(10_000 + i, i)
            storage.append(data)
            assert storage.view(end, len(data)) == data
            assert storage.read(end, len(data)) == data
            end += len(data)

    def test_any_sequence_of_operations_matches_a_bytearray(self, directory: Directory) -> None:
        chance = random.Random(1)
        storage, model = directory.create("a"), bytearray()
        for step in range(400):
            what = chance.randrange(6)
            if what <= 1:
                data = pattern(chance.randrange(9_000), step)
                assert storage.append(data) == len(model)
                model += data
            elif what == 2 and model:
                position = chance.randrange(len(model))
                data = pattern(min(61, len(model) - position), step)
                storage.write_at(position, data)
                model[position : position + len(data)] = data
            elif what == 3 and step % 5 == 0:
                size = chance.randrange(len(model) + 1)
                storage.truncate(size)
                del model[size:]
            elif what == 4 and step % 7 == 0:
                storage.close()
                storage = directory.open("a")
            else:
                position = chance.randrange(len(model) + 1)
                size = chance.randrange(len(model) - position + 1)
                assert storage.view(position, size) == model[position : position + size]
                assert storage.read(position, size) == model[position : position + size]
            assert storage.size == len(model)
        assert _content(storage) == model

    # --- overwriting and cutting

    def test_write_at_replaces_bytes_and_keeps_the_size(self, directory: Directory) -> None:
        """The header of a batch is filled in after its body was appended."""
        storage = directory.create("a")
        storage.append(bytes(8) + b"body")
        storage.write_at(0, b"header!!")
        assert storage.size == 12
        assert _content(storage) == b"header!!body"
        assert storage.append(b"next") == 12
        assert _content(storage) == b"header!!bodynext"

    def test_truncate_keeps_the_bytes_before_the_cut_only(self, directory: Directory) -> None:
        storage = directory.create("a")
        storage.append(b"first record")
        storage.append(b"second record")
        storage.truncate(12)
        assert storage.size == 12
        assert _content(storage) == b"first record"
        with refused(ReadBeyondEnd):
            storage.read(12, 1)

    def test_append_after_truncate_starts_at_the_cut(self, directory: Directory) -> None:
        storage = directory.create("a")
        storage.append(pattern(100))
        for size in (60, 60, 10, 0):
            storage.truncate(size)
            assert storage.append(b"new") == size
            assert _content(storage) == pattern(100)[:size] + b"new"

    def test_truncate_of_a_large_storage_drops_bytes_that_were_read_before(self, directory: Directory) -> None:
        """Also if a storage keeps a mapping of its old content."""
        storage = directory.create("a")
        data = pattern(LARGE_BYTES)
        storage.append(data)
        assert storage.view(0, LARGE_BYTES) == data
        storage.truncate(5_000)
        with refused(ReadBeyondEnd):
            storage.view(4_999, 2)
        storage.append(b"z" * 6_000)
        assert storage.view(0, 11_000) == data[:5_000] + b"z" * 6_000

    # --- views

    def test_view_is_read_only(self, directory: Directory) -> None:
        storage = directory.create("a")
        storage.append(b"abc")
        assert storage.view(0, 3).readonly

    def test_view_stays_valid_when_the_storage_changes(self, directory: Directory) -> None:
        """Growth, a truncation above it, closing and deletion do not change a view that is held."""
        for size in (100, LARGE_BYTES):
            storage = directory.create("a")
            data = pattern(size)
            storage.append(data)
            views = [storage.view(10, 80), storage.view(size - 50, 50)]
            storage.append(pattern(LARGE_BYTES, 1))
            views.append(storage.view(10, 80))
            storage.truncate(size)
            storage.append(b"other bytes in the same place")
            views.append(storage.view(10, 80))
            storage.close()
            storage = directory.open("a")
            views.append(storage.view(10, 80))
            storage.remove()
            assert [bytes(view) for view in views] == [data[10:90], data[-50:], *[data[10:90]] * 3]

    # --- space

    def test_claimed_space_is_not_content(self, directory: Directory) -> None:
        """Neither size nor bytes change, appends start where they would have, and the room need not be used."""
        storage = directory.create("a")
        for size_bytes in (0, 1, 100_000):
            storage.claim(size_bytes)
            assert storage.size == directory.size("a") == 0
        assert storage.append(b"abc") == 0
        storage.claim(100_000)
        assert _content(storage) == b"abc"
        storage.release()
        assert (_content(storage), directory.size("a")) == (b"abc", 3)
        storage.claim(10)
        assert storage.append(pattern(LARGE_BYTES)) == 3
        storage.close()
        assert _content(directory.open("a")) == b"abc" + pattern(LARGE_BYTES)

    def test_claiming_more_than_the_free_space_changes_nothing(self, directory: Directory) -> None:
        """More than any disk has: a storage with a limit raises `StorageFull`."""
        storage = directory.create("a")
        storage.append(b"abc")
        try:
            storage.claim(1 << 60)
        except StorageFull:
            pass
        storage.release()
        assert storage.append(b"def") == 3
        assert _content(storage) == b"abcdef"

    # --- handles

    def test_refresh_learns_what_another_handle_has_appended(self, directory: Directory) -> None:
        storage = directory.create("a")
        storage.append(b"one")
        other = directory.open("a")
        other.append(b" two")
        storage.refresh()
        assert _content(storage) == b"one two"
        assert storage.append(b" three") == 7
        assert _content(directory.open("a")) == b"one two three"

    def test_content_survives_close_and_open(self, directory: Directory) -> None:
        storage = directory.create("a")
        storage.append(b"first ")
        storage.close()
        storage = directory.open("a")
        assert storage.size == 6
        assert storage.append(b"second") == 6
        storage.sync()
        storage.close()
        assert _content(directory.open("a")) == b"first second"

    def test_close_can_be_repeated(self, directory: Directory) -> None:
        storage = directory.create("a")
        storage.close()
        storage.close()

    def test_remove_deletes_the_name(self, directory: Directory) -> None:
        storage = directory.create("a")
        storage.append(b"abc")
        storage.remove()
        assert not directory.exists("a")
        assert directory.create("a").size == 0

    def test_sync_and_forget_do_not_change_the_content(self, directory: Directory) -> None:
        storage = directory.create("a")
        data = pattern(LARGE_BYTES)
        storage.append(data)
        for each in (storage, directory.open_sealed("a")):
            view = each.view(0, LARGE_BYTES)
            each.forget(0, LARGE_BYTES)
            each.forget(100, 50)
            each.sync()
            assert view == data
            assert each.read(0, LARGE_BYTES) == data

    def test_shared_storage_follows_its_writer(self, directory: Directory) -> None:
        writer = directory.create("a")
        writer.append(b"one")
        reader = directory.open_shared("a")
        assert _content(reader) == b"one"
        writer.append(b"two")
        assert reader.size == 6
        assert reader.read(0, 6) == b"onetwo"
        assert bytes(reader.view(2, 4)) == b"etwo"
        writer.truncate(4)
        assert reader.size == 4
        writer.append(b"!!")
        assert bytes(reader.view(0, 6)) == b"onet!!"
        with refused(ReadBeyondEnd):
            reader.view(0, 7)

    def test_sealed_storage_has_the_same_bytes(self, directory: Directory) -> None:
        for i, size in enumerate((0, 1, 100, LARGE_BYTES)):
            data = pattern(size, i)
            storage = directory.create(f"a{i}")
            storage.append(data)
            storage.close()
            sealed = directory.open_sealed(f"a{i}")
            assert sealed.size == size
            assert sealed.read(0, size) == data
            assert sealed.view(0, size) == data
            with refused(ReadBeyondEnd):
                sealed.view(size, 1)
            with refused(ReadBeyondEnd):
                sealed.read(0, size + 1)
            sealed.close()
            sealed.close()
