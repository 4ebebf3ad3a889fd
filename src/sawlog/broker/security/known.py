"""The users that a running broker knows, in memory: looking one up takes the same time whether it exists or not.

A user that does not exist gets a credential that nothing matches, with a salt that is the same each time it is asked
for: who is answered cannot tell whether the name exists. Salt length and iterations are those of one of the users,
chosen by the name: those that few users have are met as rarely among names that do not exist.

Belongs to the event loop's thread.
"""

from __future__ import annotations

import hmac
import math
from collections import Counter
from collections.abc import Callable, Set
from typing import Final

from .scram import MAX_ITERATIONS, SALT_BYTES, SHA_512, Credential, Mechanism
from .users import Snapshot

#: What others see of a credential: the iterations and the length of the salt.
_Shape = tuple[int, int]
#: That of a new user.
_USUAL: Final[_Shape] = (MAX_ITERATIONS, SALT_BYTES)


class KnownUsers:
    """All users, as they were when they were last looked at."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._now = snapshot
        self._shapes = _shapes(snapshot)

    @property
    def version(self) -> int:
        """The version of the document."""
        return self._now.version

    @property
    def names(self) -> Set[str]:
        """All names."""
        return self._now.users.keys()

    def replace(self, snapshot: Snapshot) -> None:
        """Know these from now on. What is older than what is known is ignored: it was read before a change."""
        if snapshot.version > self._now.version:
            self._now, self._shapes = snapshot, _shapes(snapshot)

    def finder(self, mechanism: Mechanism) -> Callable[[str], Credential]:
        """Look up credentials of one mechanism."""
        return lambda name: self.find(name, mechanism)

    def find(self, name: str, mechanism: Mechanism) -> Credential:
        """The credential of a user, or one that nothing matches."""
        pretended = self._pretended(name, mechanism)  # always made: it must not take longer for one of the two
        return self._now.users.get(name, {}).get(mechanism.name, pretended)

    def strongest(self, name: str, mechanisms: tuple[Mechanism, ...]) -> tuple[Mechanism, Credential]:
        """For a check of a password: the first of these mechanisms for which the user has a credential."""
        known = self._now.users.get(name)
        for mechanism in mechanisms:
            if mechanism.name in (self._shapes if known is None else known):
                return mechanism, self.find(name, mechanism)
        return SHA_512, self._pretended(name, SHA_512)

    def _pretended(self, name: str, mechanism: Mechanism) -> Credential:
        def made(what: str) -> bytes:
            return hmac.digest(self._now.secret, f"{what}\0{mechanism.name}\0{name}".encode(), "sha512")

        def score(shape: _Shape) -> float:
            point = int.from_bytes(made(f"shape {shape[0]} {shape[1]}")[:6], "big") + 1
            return math.log(point / (1 << 48)) / shapes[shape]  # so that a new shape moves few names, to it alone

        shapes = self._shapes.get(mechanism.name) or {_USUAL: 1}
        iterations, length = max(sorted(shapes), key=score)
        size = mechanism.size_bytes
        salt = (made("salt") * (length // 64 + 1))[:length]
        return Credential(iterations, salt, made("stored key")[:size], made("server key")[:size])


def _shapes(snapshot: Snapshot) -> dict[str, Counter[_Shape]]:
    """For each mechanism how many of its users have which shape."""
    counts: dict[str, Counter[_Shape]] = {}
    for credentials in snapshot.users.values():
        for mechanism, each in credentials.items():
            counts.setdefault(mechanism, Counter())[each.iterations, len(each.salt)] += 1
    return counts
