"""Checkpoints: the state after a number of commits in one object, so that opening need not replay every commit.

```
checkpoints/<number>-<digest>     created once; deflated JSON: {"entries": [[name, value], ...], "number", "version"}
```

Every entry is on a line of its own, in canonical form. Its digest is computed from the raw line, and its value is
parsed on first use, so that a large checkpoint loads in a fraction of the time that parsing all of it takes. A
checkpoint without lines is valid as well and is parsed as a whole.

Once commits are collected, a checkpoint is the truth and no longer a copy of it. So it counts only when it is
*confirmed*: the next commit, possibly by another process, carries the same digest (R7 of ADR 25). Until then commits
are folded. A mismatch stops every process that sees it.
"""

from __future__ import annotations

import json
import zlib
from contextlib import suppress
from typing import Any, NamedTuple

from ...errors import CorruptData
from .bucket import Bucket
from .state import State, check_kinds
from .state.commit import REREADS, Collected, Unreadable, UpgradeRequired, canonical, commit_key, verified_commit
from .state.entries import Entries

CHECKPOINTS = "checkpoints/"
_VERSION = 2
#: The bytes before and after the lines.
_BEGIN, _END = b'{"entries":[\n', b"\n],"


class Checkpoint(NamedTuple):
    """A stored checkpoint, as described by its key."""

    number: int
    digest: str
    key: str


def listed(bucket: Bucket) -> list[Checkpoint]:
    """Return all checkpoints, newest first."""
    found = []
    for entry in bucket.list(CHECKPOINTS):
        number, _, digest = entry.key.removeprefix(CHECKPOINTS).partition("-")
        if not number.isdigit():
            raise CorruptData(f"{entry.key} is not the name of a checkpoint")
        found.append(Checkpoint(int(number), digest, entry.key))
    return sorted(found, reverse=True)


def is_confirmed(bucket: Bucket, checkpoint: Checkpoint) -> bool:
    """Return whether the next commit carries the digest of a checkpoint. False if there is no such commit yet. Raises
    `Collected` if that commit is collected, so that a newer checkpoint must exist, and `CorruptData` on a mismatch."""
    key = commit_key(checkpoint.number)
    following = bucket.get(key)
    if following is None:
        return False
    _, (commit, _) = verified_commit(bucket, key, following)
    if commit.digest != checkpoint.digest:
        raise CorruptData(
            f"{checkpoint.key} is not the state before {key}, which has the digest {commit.digest[:16]}...: a process "
            "has computed another state, and none may go on"
        )
    return True


def stored(bucket: Bucket, state: State) -> bool:
    """Store a state as a checkpoint unless it exists, and return whether it was stored."""
    rest = canonical({"number": state.number, "version": _VERSION})
    text = _BEGIN + b",\n".join(state.entries.lines()) + _END + rest[1:]
    return bucket.create(f"{CHECKPOINTS}{state.number:020}-{state.digest}", zlib.compress(text, 1))


def loaded(bucket: Bucket, checkpoint: Checkpoint) -> State:
    """Return the state in a checkpoint; a damaged one is read again. Raises `Collected` if it is gone."""
    for _ in range(REREADS):
        with suppress(CorruptData, UpgradeRequired):
            return _loaded(bucket, checkpoint)
    try:
        return _loaded(bucket, checkpoint)
    except CorruptData as error:
        raise Unreadable(str(error)) from error


def _loaded(bucket: Bucket, checkpoint: Checkpoint) -> State:
    data = bucket.get(checkpoint.key)
    if data is None:
        raise Collected(f"{checkpoint.key} is gone")
    try:
        entries = _entries(zlib.decompress(data), checkpoint)
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise CorruptData(f"{checkpoint.key} cannot be read: {error}") from error
    check_kinds(entries.kinds, checkpoint.key)
    state = State(entries, checkpoint.number)
    if state.digest != checkpoint.digest:
        raise CorruptData(f"{checkpoint.key}: its content has another digest than its name")
    return state


def _entries(text: bytes, checkpoint: Checkpoint) -> Entries:
    if not text.startswith(_BEGIN):
        parsed = json.loads(text)
        _check(parsed, checkpoint)
        return Entries((str(name), value) for name, value in parsed["entries"])
    lines, _, rest = text[len(_BEGIN) :].rpartition(_END)
    _check(json.loads(b"{" + rest), checkpoint)
    return Entries.of_lines(lines.split(b",\n") if lines else ())


def _check(parsed: Any, checkpoint: Checkpoint) -> None:
    """Raise unless this version can read the checkpoint and its number matches."""
    if parsed["version"] != _VERSION:
        raise UpgradeRequired(f"{checkpoint.key} has version {parsed['version']}; this sawlog knows {_VERSION}")
    if parsed["number"] != checkpoint.number:
        raise ValueError(f"it is of commit {parsed['number']}")
