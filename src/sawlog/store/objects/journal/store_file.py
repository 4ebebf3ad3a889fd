"""`sawlog.json`: the id and the parameters of a store.

A store is created once. `read_or_create` first makes sure that the bucket is safe and holds nothing else. Every later
process uses the parameters that it finds in the file.

The parameters are durations that all processes of a store must agree on. A writer believes an answer for `belief_s`
after the last proof. A maintainer deletes commit numbers `grace_s` after they fell behind a confirmed checkpoint.
Safety rests on the second being much longer than the first (ADR 25), so neither is an option of a process.
"""

from __future__ import annotations

import errno
import json
import uuid
from dataclasses import asdict, dataclass, fields

from ....errors import CorruptData, InvalidConfig, StoreNotFound, UnsafeStorage
from ..bucket import selftest
from ..bucket.bucket import Bucket
from ..state.commit import COMMITS, canonical
from .checkpoints import CHECKPOINTS

#: The object that marks a store and holds its parameters, and a copy of it for `sawlog repair`.
STORE, STORE_COPY = "sawlog.json", "sawlog.copy.json"
#: The kind of store in `sawlog.json`: that of a store in a directory has another name for its format.
_KIND, _FORMAT = "objects", 2


@dataclass(frozen=True, slots=True)
class StoreParameters:
    """Lifetimes of answers, commit numbers and unreferenced objects."""

    #: Time for which an answer is believed after the last proof that the next number was not collected.
    belief_s: float = 600.0
    #: Time for which a commit number stays taken after its commit fell behind a confirmed checkpoint, and for which an
    #: upload may wait for its commit.
    grace_s: float = 7 * 86_400.0
    #: Time for which an unreferenced object is kept, because a reader may have planned to read it.
    readers_s: float = 86_400.0
    #: Number of commits between checkpoints.
    checkpoint_every: int = 256

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise InvalidConfig(f"{each.name} must be a number above 0, not {value!r}")
        if self.grace_s < 2 * self.belief_s:
            raise InvalidConfig(f"grace_s ({self.grace_s}) must be at least twice belief_s ({self.belief_s})")


def read_or_create(bucket: Bucket, parameters: StoreParameters, *, create: bool) -> bytes:
    """Read `sawlog.json`. With `create`, create it if there is no store."""
    data = bucket.get(STORE)
    if data is None:
        _refuse_remains(bucket)
        if not create:
            raise StoreNotFound(errno.ENOENT, f"no store in {bucket.url}")
        _refuse_strangers(bucket)
        selftest.check(bucket)  # a server that ignores preconditions would lose commits
        bucket.create(STORE, new_store(parameters))
        data = bucket.get(STORE) or b""
        bucket.put(STORE_COPY, data)
    return data


def new_store(parameters: StoreParameters) -> bytes:
    """Return the content of `sawlog.json` for a store with a new id."""
    return canonical({"kind": _KIND, "format": _FORMAT, "id": str(uuid.uuid4()), **asdict(parameters)}) + b"\n"


def check_conditional(bucket: Bucket, data: bytes) -> None:
    """Raise `UnsafeStorage` if an existing object can be created again: the server may have been replaced since the
    store was created, or a proxy put in front of it. The bytes are the same, so the check is harmless. If the copy is
    missing, the first create restores it."""
    if bucket.create(STORE_COPY, data) and bucket.create(STORE_COPY, data):
        raise UnsafeStorage(
            errno.ENOTSUP,
            f"{bucket.url} is not safe for a store: {STORE_COPY} exists, and was created again. The server ignores "
            "conditional writes (If-None-Match), so that two writers would overwrite each other's commits; nothing was "
            "changed. Use other storage, or another version of this server; `sawlog store test` shows more",
        )


def identity_of(bucket: Bucket, data: bytes) -> tuple[str, StoreParameters]:
    """Return the id and the parameters of a store from its `sawlog.json`; missing parameters have their defaults."""
    try:
        stored = json.loads(data)
        kind, version, store_id = stored.get("kind"), stored["format"], str(stored["id"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidConfig(f"{bucket.url}/{STORE} is not the file of a store: {error}") from error
    if kind != _KIND:
        raise InvalidConfig(f"{bucket.url} is a store in a directory: open it by its path, without file://")
    if version != _FORMAT:
        raise InvalidConfig(f"{bucket.url} has format {version}; this version of sawlog supports {_FORMAT}")
    known = {each.name: stored[each.name] for each in fields(StoreParameters) if each.name in stored}
    return store_id, StoreParameters(**known)


def _refuse_remains(bucket: Bucket) -> None:
    """Refuse to treat a store that has lost its `sawlog.json` as a new one: its parameters would differ from those of
    the processes that use these commits."""
    found = next((each.key for folder in (COMMITS, CHECKPOINTS) for each in bucket.list(folder)), None)
    if found is not None and bucket.get(STORE) is None:  # otherwise another process is creating it at this moment
        raise CorruptData(
            f"{bucket.url} has {found}, but no {STORE}: it was deleted, or the storage has lost it. Bring it back "
            f"from a version or a copy of the bucket, or with `sawlog repair -d {bucket.url}`"
        )


def _refuse_strangers(bucket: Bucket) -> None:
    """Refuse to create a store among unrelated files, such as a log or the target of a mistyped path."""
    if not bucket.url.startswith("file://"):
        return  # a prefix in a bucket is chosen deliberately and may hold any number of objects
    found = [each.key for each in bucket.list("") if not each.key.startswith(selftest.FOLDER)]
    if found and bucket.get(STORE) is None:  # otherwise another process is creating it at this moment
        raise InvalidConfig(
            f"{bucket.url} is neither empty nor a store: it holds {', '.join(found[:5])}; choose an empty or a new "
            "directory"
        )
