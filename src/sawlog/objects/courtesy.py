"""`Courtesy`: how long a writer pauses after a commit, so that others can make theirs.

Whoever has lost a race has to read the commit that has won before it can try again: two requests, while the winner
needs one. So a process that commits all the time would win every race, and others would wait for as long as it goes on.
A pause of about one request between two commits gives them a turn.

The pause follows what a create takes on this bucket, without a fixed limit that a slow bucket would exceed: the
quickest of the last few creates, so that a single one that took long costs nothing. Whoever has seen no commit of
others for a while pauses only after many commits without a break: others may be there who have never got a turn. How
long is up to chance: with the same pauses every time those others would come too late every time.
"""

from __future__ import annotations

import random
from collections import deque

#: Others are there if a commit of theirs was seen in this time, or in the time of so many creates.
_COMPANY_S, _COMPANY_CREATES = 2.0, 50
#: Without others there is a pause after so many commits.
_ALONE = 32
#: How many creates are remembered.
_REMEMBERED = 8


class Courtesy:
    """One writer's. Not safe for threads."""

    def __init__(self) -> None:
        #: When another process's commit was last seen.
        self._others_s: float | None = None
        self._creates_s: deque[float] = deque(maxlen=_REMEMBERED)
        #: Our commits one after the other without a pause, and when the last one was answered.
        self._commits = 0
        self._last_s = 0.0

    def saw_others(self, now_s: float) -> None:
        """Somebody else's commit was read."""
        self._others_s = now_s

    def created(self, sent_s: float, now_s: float) -> None:
        """One of our commits was created, with a request that was sent then."""
        if sent_s - self._last_s >= 2 * self._quickest_s():
            self._commits = 0  # others had a turn
        self._creates_s.append(now_s - sent_s)
        self._last_s = now_s
        self._commits += 1

    def pause_s(self, now_s: float) -> float:
        """How long to pause now; 0 if others need no turn."""
        quickest_s = self._quickest_s()
        company_s = max(_COMPANY_S, _COMPANY_CREATES * quickest_s)
        if self._others_s is not None and now_s - self._others_s <= company_s:
            return quickest_s * random.uniform(1.0, 2.0)
        if self._commits < _ALONE:
            return 0.0
        self._commits = 0
        return quickest_s * random.uniform(1.0, 3.0)

    def _quickest_s(self) -> float:
        return min(self._creates_s, default=0.0)
