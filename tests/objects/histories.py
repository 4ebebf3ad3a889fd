"""Two histories of one store, with equal ids and keys but different records, as after `aws s3 sync` or a rollback."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sawlog.store.objects.bucket import Bucket
from sawlog.store.objects.cache import BlockCache
from sawlog.store.objects.extent_reader import ExtentReader
from sawlog.store.objects.store import ObjectStore


@contextmanager
def opened(bucket: Path, cache: Path | None = None, mode: str = "w") -> Iterator[ObjectStore]:
    """Open the store in a directory that serves as a bucket, with a block cache, which such a store normally does not
    have."""
    with ObjectStore.open(f"file://{bucket}", mode, maintenance_interval_s=None) as store:
        if cache is not None:
            give_cache(store, cache)
        yield store


def give_cache(store: ObjectStore, cache: Path) -> BlockCache:
    """Make a store read through a block cache, whatever its kind of bucket."""
    made = BlockCache(cache, store.id)
    store._session.extents = ExtentReader(store._session.bucket, made, store._session._journal.recent)
    return made


def values(store: ObjectStore, topic: str = "orders") -> list[bytes | None]:
    """Return the values of a topic, in order."""
    return [record.value for record in store.topic(topic).scan()]


def write(bucket: Path, label: bytes, count: int = 20, topic: str = "orders") -> list[bytes]:
    """Append records that name their history, one per commit, without a cache. All histories have the same sizes and
    timestamps, so that their records are in the same places."""
    made = [b"%s %04d" % (label, number) for number in range(count)]
    with opened(bucket) as store:
        for number, value in enumerate(made):
            store.topic(topic).append(value, key=b"k%d" % (number % 3), timestamp=1000 + number)
    return made


def copied(bucket: Path, to: Path) -> Path:
    """Copy a bucket, or put a copy back."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(bucket, to)
    return to


def objects(bucket: Path, kind: str) -> list[Path]:
    """Return the objects below a prefix that contain batches, in order."""
    return sorted(each for each in (bucket / kind).rglob("*") if each.is_file() and b"value" in each.read_bytes())


def replaced(bucket: Path, key: str, data: bytes) -> None:
    """Store other bytes under a key."""
    Bucket(f"file://{bucket}").put(key, data)
