"""Limits on the memory, connections and time that clients may use, and what happens when they exceed them.

```
limits.py         Limits: maximum frame size, number of connections, and why a connection is refused;
                  RateLimitedLog: a bounded number of log lines per reason
budget.py         MemoryBudget: bytes of all requests and responses in memory, and the queue of those that wait for room
frame_reader.py   FrameReader: frames from the bytes of one connection, with memory only for bytes received
send_queue.py     SendQueue: responses to one connection; WriteScheduler: shares the event loop between connections
monitor.py        ProgressTracker: timeouts of one connection, and socket options; ConnectionMonitor: checks every
                  connection periodically and drops slow or oversized ones
```

Everything here belongs to the event loop's thread. Nothing is done per record; the cost per request is a few additions.
"""

from __future__ import annotations

from .budget import MemoryBudget
from .frame_reader import FrameReader, InvalidFrameSize
from .limits import Limits, RateLimitedLog
from .monitor import ConnectionMonitor, ProgressTracker

__all__ = [
    "ConnectionMonitor",
    "FrameReader",
    "InvalidFrameSize",
    "Limits",
    "MemoryBudget",
    "ProgressTracker",
    "RateLimitedLog",
]
