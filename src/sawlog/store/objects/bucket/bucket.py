"""`Bucket`: the operations that the store needs from object storage, implemented with `obstore`.

All decisions rest on `create`, which stores an object only if its key is free. A request can also fail without an
answer and may still have been applied. That is `Unanswered`, and the caller looks the object up. connecting.py
classifies failures and lists the options.

A bucket can be pickled and reconnects in each process. A process forked from one that has already used object storage
cannot use it.
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
from .connecting import Unanswered, check_address, connect, explained, failure_of

__all__ = ["SCHEMES", "Bucket", "Entry", "Unanswered", "is_url"]

#: Larger objects are uploaded in parts of this size. At 600 KB/s a part takes as long as a request may (`timeout`).
PART_BYTES = 16 << 20
#: Keys of one page of a listing.
_PAGE_KEYS = 1000
#: Backoff of a create that the server rejected because of a concurrent request for the key. It was not applied.
_CONFLICTS_S, _FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 0.02, 0.5


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a listing."""

    key: str
    size_bytes: int
    modified: datetime


def is_url(address: object) -> bool:
    """Return whether an address points to object storage rather than to a file."""
    return isinstance(address, str) and address.partition("://")[1] != "" and address.partition("://")[0] in SCHEMES


class Bucket:
    """The objects below one address, by key. Thread-safe."""

    def __init__(self, url: str, options: Mapping[str, str] | None = None, *, store: Any = None) -> None:
        if not is_url(url):
            raise InvalidConfig(f"{url!r} is not an address of object storage; use {'://, '.join(SCHEMES)}://")
        check_address(url)
        scheme, _, place = url.partition("://")
        self.url = f"{scheme}://{place.rstrip('/')}"
        self._options = dict(options or {})
        #: The process that opened the `obstore` client, and the client.
        self._opened: tuple[int, Any] = (this_process(), store) if store is not None else (0, None)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.url.startswith("memory://"):
            raise InvalidConfig("a store in memory is only in its own process")
        return Bucket, (self.url, self._options)

    def __repr__(self) -> str:
        return f"<Bucket {self.url}>"

    @property
    def options(self) -> dict[str, str]:
        """The options that the bucket was opened with."""
        return dict(self._options)

    def again(self) -> Bucket:
        """Return a bucket with the same address and options, and its own connections."""
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
        """Store an object if its key is free, and return whether it was stored.

        False proves that an object exists, but not who created it: the client library retries requests, and the first
        attempt may have been applied. Raises `Unanswered` if the outcome is unknown, and another `StorageError` if
        nothing was stored.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        store = self._store
        patience = Deadline(_CONFLICTS_S, first_pause_s=_FIRST_PAUSE_S, longest_pause_s=_LONGEST_PAUSE_S)
        is_repeated = False
        while True:
            try:
                store.put(key, data, mode="create", use_multipart=False)
                return True
            except (AlreadyExistsError, PreconditionError) as error:
                # obstore reports every 409 as "exists", including S3's "conflicting request", after which the key may
                # be free.
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
        """Store an object under a key that no other writer uses. Idempotent.

        An object of up to `PART_BYTES` is one request. A larger one is a multipart upload, which `obstore` aborts if a
        part fails. A process that is killed during the upload leaves its parts in the bucket, invisible but billed.
        obstore can neither list nor remove them, so buckets need a lifecycle rule (docs/object-storage.md).
        """
        store = self._store
        try:
            store.put(key, data, chunk_size=PART_BYTES)
        except Exception as error:
            raise self._failed("storing", key, error) from None

    def get(self, key: str) -> bytes | None:
        """Return the content of an object, or None if it does not exist. A missing bucket is an error, because it would
        look like a store without commits."""
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
        """Return the content of several objects, requested in parallel."""
        if len(keys) < 2:
            return [self.get(key) for key in keys]
        with ThreadPoolExecutor(len(keys), thread_name_prefix="sawlog-objects-get") as pool:
            return list(pool.map(self.get, keys))

    def get_range(self, key: str, start: int, size_bytes: int) -> bytes:
        """Return a byte range of an object."""
        store = self._store
        try:
            found = bytes(store.get_range(key, start=start, length=size_bytes))
        except Exception as error:
            raise self._failed("reading", key, error) from None
        if len(found) != size_bytes:
            raise StorageError(errno.EIO, f"{self.url}/{key} has {len(found)} bytes from {start} on, not {size_bytes}")
        return found

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        """Yield the objects below a prefix, which ends with "/", ordered by key; only keys greater than `after`."""
        assert prefix.endswith("/") or not prefix, prefix  # obstore's prefixes are folders
        store = self._store
        try:
            options = {"offset": after} if after else {}
            found: list[Entry] = []
            for page in store.list(prefix, chunk_size=_PAGE_KEYS, **options):
                found += [Entry(each["path"], each["size"], each["last_modified"]) for each in page]
        except Exception as error:
            raise self._failed("listing", prefix, error) from None
        # Not every backend lists in key order or honours the offset.
        yield from sorted((each for each in found if each.key > after), key=lambda each: each.key)

    def delete(self, key: str) -> None:
        """Delete an object, if it exists."""
        store = self._store
        try:
            store.delete(key)
        except FileNotFoundError as error:
            if failure_of(error).is_missing_bucket:
                raise self._failed("deleting", key, error) from None
        except Exception as error:
            raise self._failed("deleting", key, error) from None

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects that exist, with bulk requests where the server supports them."""
        store, wanted = self._store, [*keys]
        try:
            store.delete(wanted)
        except Exception:  # one is missing, or there are no bulk deletes: delete one at a time to find out
            for key in wanted:
                self.delete(key)

    def _failed(self, doing: str, key: str, error: Exception) -> StorageError:
        if isinstance(error, FileNotFoundError) and not failure_of(error).is_missing_bucket:
            # For a write this is not final: obstore does not say whether an earlier attempt was applied.
            kind = Unanswered if doing in ("creating", "storing") else StorageError
            return kind(errno.ENOENT, f"{self.url}: {doing} {key} failed: it does not exist")
        return explained(self.url, f"{doing} {key}", error)
