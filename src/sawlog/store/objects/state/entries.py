"""`Entries`: the state of a store as a flat map from names to values, with an incremental digest.

The digest is the sum of the hashes of all entries, each as a line `["name",value]` of canonical JSON. So a change costs
one hash, however many entries there are, and two processes that arrive at the same entries in any order have the same
digest.

A state has a hundred thousand entries, of which few are ever read. So a value may be kept as its JSON text (`bytes`,
which JSON does not have) and is parsed on first use. Changed entries are hashed once, when the digest is next read.
That cannot fail: `put` refuses values that JSON cannot express.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from .commit import canonical

_MODULUS = 1 << 256


class Entries:
    """Names and JSON values. Values are never changed in place."""

    __slots__ = ("_all", "_kinds", "_pending", "_sum")

    def __init__(self, all_: Iterable[tuple[str, Any]] = ()) -> None:
        self._all: dict[str, Any] = {}
        #: The names of each kind, the part before the first slash: extents far outnumber everything else.
        self._kinds: dict[str, set[str]] = {}
        #: The texts of entries whose hashes are not in the sum yet.
        self._pending: dict[str, bytes] = {}
        self._sum = 0
        for name, value in all_:
            self.put(name, value)

    @classmethod
    def of_lines(cls, lines: Iterable[bytes]) -> Entries:
        """Create entries from the output of `lines`. The digest is that of these bytes; nothing else is checked."""
        made = cls()
        all_, kinds, sha256 = made._all, made._kinds, hashlib.sha256
        total = 0
        for line in lines:
            total += int.from_bytes(sha256(line).digest(), "big")
            start, _, text = line[2:-1].partition(b'",')
            name = json.loads(line)[0] if b"\\" in start else start.decode()
            kind = name.partition("/")[0]
            if kind not in kinds:
                kinds[kind] = set()
            kinds[kind].add(name)
            all_[name] = json.loads(line)[1] if b"\\" in start else text
        made._sum = total % _MODULUS
        return made

    def lines(self) -> Iterator[bytes]:
        """Yield all entries, ordered by name, as the digest sees them. No line contains a newline."""
        for name in sorted(self._all):
            yield _line(name, self._text(name))

    @property
    def digest(self) -> str:
        """The digest: equal for equal entries."""
        if self._pending:
            added = sum(_hash(name, text) for name, text in self._pending.items())
            self._sum = (self._sum + added) % _MODULUS
            self._pending.clear()
        return f"{self._sum:064x}"

    @property
    def kinds(self) -> set[str]:
        """The kinds of entries present."""
        return {kind for kind, names in self._kinds.items() if names}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, self.get(name)) for name in self._all)

    def get(self, name: str, default: Any = None) -> Any:
        value = self._all.get(name, default)
        if type(value) is bytes:
            value = self._all[name] = json.loads(value)
        return value

    def held(self, name: str) -> Any:
        """Return a value as it is kept, perhaps as text, for restoring it later; None if there is no such name."""
        return self._all.get(name)

    def put(self, name: str, value: Any) -> None:
        """Set an entry to a value or to its canonical text. Raises `ValueError` or `TypeError` if JSON cannot express
        it."""
        text = value if type(value) is bytes else canonical(value)
        if name not in self._all:
            self._kinds.setdefault(name.partition("/")[0], set()).add(name)
        elif name not in self._pending:
            self._subtract(name)
        self._all[name] = value
        self._pending[name] = text

    def drop(self, name: str) -> None:
        """Remove an entry, if it exists."""
        if name not in self._all:
            return
        if name in self._pending:
            del self._pending[name]
        else:
            self._subtract(name)
        del self._all[name]
        self._kinds[name.partition("/")[0]].discard(name)

    def names(self, prefix: str) -> list[str]:
        """Return the names with a prefix, sorted."""
        kind, slash, _ = prefix.partition("/")
        names = self._kinds.get(kind, ()) if slash else self._all
        return sorted(name for name in names if name.startswith(prefix))

    def of_kind(self, kind: str) -> Collection[str]:
        """Return the names of one kind, unordered."""
        return self._kinds.get(kind, ())

    def _subtract(self, name: str) -> None:
        self._sum = (self._sum - _hash(name, self._text(name))) % _MODULUS

    def _text(self, name: str) -> bytes:
        value = self._pending.get(name) or self._all[name]
        return value if type(value) is bytes else canonical(value)


def _line(name: str, text: bytes) -> bytes:
    return b"[%b,%b]" % (canonical(name), text)


def _hash(name: str, text: bytes) -> int:
    return int.from_bytes(hashlib.sha256(_line(name, text)).digest(), "big")
