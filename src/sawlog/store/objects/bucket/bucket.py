"""`Bucket`: the few operations that the store needs of object storage, over `obstore`.

The only one that decides anything is `create`: it stores an object if there is none of that name. A request may also
fail without an answer, and may have been applied all the same: that is `Unanswered`, and the caller looks. failures.py
says what a failure means, connecting.py which options there are.

A bucket can be pickled, and is opened again in each process. A process that was forked from one that had used object
storage cannot use it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ....addresses import SCHEMES
from ....clock import Deadline
from ....errors import InvalidConfig, StorageError
from ....storage.forking import this_process
from .connecting import check_address, connect
from .failures import Unanswered, explained, failure_of

__all__ = ["SCHEMES", "Bucket", "Entry", "Unanswered", "is_url"]

#: Larger objects are uploaded in parts of this size. At 600 KB/s a part takes as long as a request may (`timeout`).
PART_BYTES = 16 << 20
#: Keys of one page of a listing.
_PAGE_KEYS = 1000
#: How long a create is repeated that meets others: the server says that it was not applied, and why does not matter.
_CONFLICTS_S, _FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 0.02, 0.5


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a listing."""

    key: str
    size_bytes: int
    modified: datetime


def is_url(place: object) -> bool:
    """Whether a place is an address of object storage and not a path."""
    return isinstance(place, str) and place.partition("://")[1] != "" and place.partition("://")[0] in SCHEMES


class Bucket:
    """The objects below one address, by their keys. Safe for threads."""

    def __init__(self, url: str, options: Mapping[str, str] | None = None, *, store: Any = None) -> None:
        if not is_url(url):
            raise InvalidConfig(f"{url!r} is not an address of object storage; use {'://, '.join(SCHEMES)}://")
        check_address(url)
        scheme, _, place = url.partition("://")
        self.url = f"{scheme}://{place.rstrip('/')}"
        self._options = dict(options or {})
        #: Opened in which process, and what it is.
        self._opened: tuple[int, Any] = (this_process(), store) if store is not None else (0, None)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.url.startswith("memory://"):
            raise InvalidConfig("a store in memory is only in its own process")
        return Bucket, (self.url, self._options)

    def __repr__(self) -> str:
        return f"<Bucket {self.url}>"

    @property
    def options(self) -> dict[str, str]:
        """The options that it was opened with."""
        return dict(self._options)

    def again(self) -> Bucket:
        """The same objects, with connections of its own."""
        return Bucket(self.url, self._options)

    @property
    def _store(self) -> Any:
        process, store = self._opened
        if process != this_process():
            if self.url.startswith("memory://") and store is not None:
                raise InvalidConfig("a store in memory is only in its own process")
            store = connect(self.url, self._options)
            self._opened = (this_process(), store)
        return store

    def create(self, key: str, data: bytes) -> bool:
        """Store an object if none of that name exists, and return whether it was stored. False proves that one exists,
        but not whose: the client library repeats requests, and the attempt that it repeats may have been applied.
        `Unanswered` if it is not known whether it was stored; another `StorageError` if it was not."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        store = self._store
        patience = Deadline(_CONFLICTS_S, first_pause_s=_FIRST_PAUSE_S, longest_pause_s=_LONGEST_PAUSE_S)
        is_repeated = False
        while True:
            try:
                store.put(key, data, mode="create", use_multipart=False)
                return True
            except (AlreadyExistsError, PreconditionError) as error:
                # obstore says "exists" of every 409, also of S3's "met another request": then nothing need exist.
                if not failure_of(error).is_conflict:
                    return False
                if not patience.retry():
                    raise self._failed("creating", key, error) from None
                is_repeated = True
            except Exception as error:
                failed = self._failed("creating", key, error)
                if is_repeated and not isinstance(failed, Unanswered):  # an earlier attempt may have been applied
                    failed = Unanswered(failed.errno, failed.strerror)
                raise failed from None

    def put(self, key: str, data: bytes) -> None:
        """Store an object under a name that nobody else uses; repeated, it stores the same.

        Up to `PART_BYTES` it is one request. A larger object is a multipart upload, which `obstore` aborts if a part
        fails. A process that is killed meanwhile leaves its parts in the bucket: hidden, and charged for. obstore can
        neither list nor remove them, so buckets need a lifecycle rule (docs/object-storage.md)."""
        store = self._store
        try:
            store.put(key, data, chunk_size=PART_BYTES)
        except Exception as error:
            raise self._failed("storing", key, error) from None

    def get(self, key: str) -> bytes | None:
        """The content of an object; None if there is none. That there is no bucket is an error: what is not there
        would look like a store without commits."""
        store = self._store
        try:
            return bytes(store.get(key).bytes())
        except FileNotFoundError as error:
            if failure_of(error).is_missing_bucket:
                raise self._failed("reading", key, error) from None
            return None
        except Exception as error:
            raise self._failed("reading", key, error) from None

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """The content of several objects, requested at the same time."""
        if len(keys) < 2:
            return [self.get(key) for key in keys]
        with ThreadPoolExecutor(len(keys), thread_name_prefix="sawlog-objects-get") as pool:
            return list(pool.map(self.get, keys))

    def get_range(self, key: str, start: int, size_bytes: int) -> bytes:
        """A part of an object."""
        store = self._store
        try:
            found = bytes(store.get_range(key, start=start, length=size_bytes))
        except Exception as error:
            raise self._failed("reading", key, error) from None
        if len(found) != size_bytes:
            raise StorageError(errno.EIO, f"{self.url}/{key} has {len(found)} bytes from {start} on, not {size_bytes}")
        return found

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        """The objects below a prefix, which ends with "/", in the order of their keys; those after `after` only."""
        assert prefix.endswith("/") or not prefix, prefix  # obstore's prefixes are folders
        store = self._store
        try:
            options = {"offset": after} if after else {}
            found: list[Entry] = []
            for page in store.list(prefix, chunk_size=_PAGE_KEYS, **options):
                found += [Entry(each["path"], each["size"], each["last_modified"]) for each in page]
        except Exception as error:
            raise self._failed("listing", prefix, error) from None
        # Not every kind of storage lists in order, nor leaves out what comes before.
        yield from sorted((each for each in found if each.key > after), key=lambda each: each.key)

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        store = self._store
        try:
            store.delete(key)
        except FileNotFoundError as error:
            if failure_of(error).is_missing_bucket:
                raise self._failed("deleting", key, error) from None
        except Exception as error:
            raise self._failed("deleting", key, error) from None

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove objects, those that are there, with few requests where the server can do it."""
        store, wanted = self._store, [*keys]
        try:
            store.delete(wanted)
        except Exception:  # one of them is gone, or the server takes them one by one only: that shows which
            for key in wanted:
                self.delete(key)

    def _failed(self, doing: str, key: str, error: Exception) -> StorageError:
        if isinstance(error, FileNotFoundError) and not failure_of(error).is_missing_bucket:
            # Of a write this is no answer: obstore does not tell whether an attempt before it was applied.
            kind = Unanswered if doing in ("creating", "storing") else StorageError
            return kind(errno.ENOENT, f"{self.url}: {doing} {key} failed: it does not exist")
        return explained(self.url, f"{doing} {key}", error)
