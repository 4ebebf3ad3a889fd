"""`Entries`: the state of a store as a flat map from names to values, with a digest that follows every change.

The digest is the sum of the hashes of all entries, each as a line `["name",value]` of canonical JSON. So changing one
costs one hash, however many there are; and two processes that have come to the same entries, in whatever way, have the
same digest.

A state has a hundred thousand entries of which few are ever looked at. So a value may be kept as its text (`bytes`,
which JSON does not know), and is parsed when it is first asked for; and what was changed is hashed when the digest is
asked for, once, however often it was changed before. That cannot fail: what has no text is refused when it is put.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from .commit import canonical

_MODULUS = 1 << 256


class Entries:
    """Names and values that JSON can express. Values are never changed in place."""

    __slots__ = ("_all", "_kinds", "_pending", "_sum")

    def __init__(self, all_: Iterable[tuple[str, Any]] = ()) -> None:
        self._all: dict[str, Any] = {}
        #: The names of each kind, which is what is before the first slash: there are far more extents than all else.
        self._kinds: dict[str, set[str]] = {}
        #: The texts of those whose hashes are not in the sum so far.
        self._pending: dict[str, bytes] = {}
        self._sum = 0
        for name, value in all_:
            self.put(name, value)

    @classmethod
    def of_lines(cls, lines: Iterable[bytes]) -> Entries:
        """What `lines` has returned. Their digest is that of these bytes: nothing else is checked here."""
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
        """All entries, in the order of their names, as the digest sees them; no line has a line end in it."""
        for name in sorted(self._all):
            yield _line(name, self._text(name))

    @property
    def digest(self) -> str:
        """What two equal states have in common."""
        if self._pending:
            added = sum(_hash(name, text) for name, text in self._pending.items())
            self._sum = (self._sum + added) % _MODULUS
            self._pending.clear()
        return f"{self._sum:064x}"

    @property
    def kinds(self) -> set[str]:
        """The kinds of entries that there are."""
        return {kind for kind, names in self._kinds.items() if names}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, self.get(name)) for name in self._all)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name."""
        value = self._all.get(name, default)
        if type(value) is bytes:
            value = self._all[name] = json.loads(value)
        return value

    def held(self, name: str) -> Any:
        """The value of a name as it is kept, perhaps as its text, to be put back; None if there is no such name."""
        return self._all.get(name)

    def put(self, name: str, value: Any) -> None:
        """Set one, to a value or to its canonical text. `ValueError` or `TypeError` if JSON cannot express it."""
        text = value if type(value) is bytes else canonical(value)
        if name not in self._all:
            self._kinds.setdefault(name.partition("/")[0], set()).add(name)
        elif name not in self._pending:
            self._subtract(name)
        self._all[name] = value
        self._pending[name] = text

    def drop(self, name: str) -> None:
        """Remove one, if it is there."""
        if name not in self._all:
            return
        if name in self._pending:
            del self._pending[name]
        else:
            self._subtract(name)
        del self._all[name]
        self._kinds[name.partition("/")[0]].discard(name)

    def names(self, prefix: str) -> list[str]:
        """The names that begin so, in order."""
        kind, slash, _ = prefix.partition("/")
        names = self._kinds.get(kind, ()) if slash else self._all
        return sorted(name for name in names if name.startswith(prefix))

    def of_kind(self, kind: str) -> Collection[str]:
        """The names of one kind, in any order."""
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
