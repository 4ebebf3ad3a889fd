"""What happens to records that do not parse: they are raised, or copied to a topic or log that was chosen for them.

A copy has the key, the value, the timestamp and the headers of the record, and five headers more:

```
sawlog.error.topic       where it was read; missing if it was read from a log that is not part of a topic
sawlog.error.partition
sawlog.error.offset
sawlog.error.part        "value", "key" or "metadata": what does not parse
sawlog.error.reason      why
```

It is appended before the next record is returned, so a consumer never commits past a record whose copy is missing. What
is read again is copied again.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable

from ..batch.kernel import Record
from ..errors import DecodeFailed
from ..topics.base import Partition, Topic

_PREFIX = "sawlog.error."
#: Of a reason, this many bytes are kept: a serializer may quote the whole value.
_MOST_REASON_BYTES = 1000


class BadRecords:
    """Where the records of a view go that do not parse."""

    def __init__(self, sink: Callable[[], Topic | Partition] | None = None) -> None:
        #: Called when the first one is found: the topic may not exist before.
        self._find = sink
        self._sink: Topic | Partition | None = None

    def take(self, error: DecodeFailed) -> None:
        """Copy the record that the error carries; without a place for it, raise the error."""
        if self._find is None:
            raise error
        if self._sink is None:
            self._sink = self._find()
        record: Record = error.record
        timestamp = None if record.timestamp < 0 else record.timestamp
        self._sink.append(record.value, record.key, (*record.headers, *_headers(error)), timestamp)


def _headers(error: DecodeFailed) -> list[tuple[str, bytes]]:
    record = error.record
    place = [] if record.topic is None else [("topic", str(record.topic)), ("partition", str(record.partition))]
    reason = error.reason.encode(errors="replace")[:_MOST_REASON_BYTES].decode(errors="ignore")
    fields = [*place, ("offset", str(record.offset)), ("part", error.part), ("reason", reason)]
    return [(_PREFIX + name, text.encode()) for name, text in fields]
