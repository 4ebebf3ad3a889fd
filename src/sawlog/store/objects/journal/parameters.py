"""`Terms`: the times that all processes of a store must agree on. They are in `sawlog.json`, written once.

A writer believes an answer for `belief_s` after the last proof; a maintainer deletes the numbers of commits `grace_s`
after they were behind a confirmed checkpoint. What makes it safe is that the second is much longer than the first (ADR
25), so neither is an option of a process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from ....errors import InvalidConfig

#: The object that says that there is a store, and what its terms are; and a copy of it, for `sawlog repair`.
STORE, STORE_COPY = "sawlog.json", "sawlog.copy.json"


@dataclass(frozen=True, slots=True)
class Terms:
    """How long answers, numbers and objects last."""

    #: How long an answer is believed after the last proof that the next number was not collected.
    belief_s: float = 600.0
    #: How long the number of a commit stays taken after the commit is behind a confirmed checkpoint, and how long an
    #: upload may wait for its commit.
    grace_s: float = 7 * 86_400.0
    #: How long an object stays that no extent refers to any more: who has planned a read may still need it.
    readers_s: float = 86_400.0
    #: A checkpoint is made after this many commits.
    checkpoint_every: int = 256

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise InvalidConfig(f"{each.name} must be a number above 0, not {value!r}")
        if self.grace_s < 2 * self.belief_s:
            raise InvalidConfig(f"grace_s ({self.grace_s}) must be at least twice belief_s ({self.belief_s})")

    def as_fields(self) -> dict[str, float]:
        """As `sawlog.json` has them."""
        return asdict(self)

    @classmethod
    def of(cls, stored: Mapping[str, object]) -> Terms:
        """From the fields of `sawlog.json`; what is not there has its default."""
        found = {each.name: stored[each.name] for each in fields(cls) if each.name in stored}
        return cls(**found)  # type: ignore[arg-type] # checked by __post_init__
