"""How long a consumer that has found no records waits before it checks again."""

from __future__ import annotations

#: The first pause, and the longest; doubled while nothing comes.
_PAUSE_S, _PAUSE_MOST_S = 0.001, 0.05
#: Checking takes at most this fraction (one part in N) of the time, however many partitions there are.
_PATIENCE = 20


def pause_s(tries: int, cost_s: float) -> float:
    """How long to wait after that many checks without records, the last of which took that long."""
    return max(min(_PAUSE_S * (1 << min(tries, 10)), _PAUSE_MOST_S), cost_s * _PATIENCE)
