"""What a broker gives to its clients at most, and what happens when they want more.

```
limits.py     Limits: how large a frame may be, how many connections there may be, who is refused and why
budget.py     Budget: the bytes of all requests and responses together; who waits until there is room
intake.py     Intake: frames out of the bytes of one connection, with memory only for what has really come
outbox.py     Outbox: responses on their way to one connection; Turns: all connections take turns with that
pace.py       Pace: how long one connection may take for what
peers.py      what the system knows of the other end
watch.py      Watch: looks at every connection once in a while, and drops those that take too long or too much
notices.py    Notices: lines for the log, not more than somebody can read
```

All of it belongs to the event loop's thread. Nothing here is done per record; what is done per request is adding up a
few numbers.
"""

from __future__ import annotations

from .budget import Budget
from .intake import Intake, Oversized
from .limits import Limits, Notices
from .pace import Pace
from .watch import Watch

__all__ = ["Budget", "Intake", "Limits", "Notices", "Oversized", "Pace", "Watch"]
