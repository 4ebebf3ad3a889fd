"""The names of a log's files. The state of a directory can be seen with `ls`, also after a crash.

```
00000000000000001234.log         batches; the number is the first offset that may be in it
00000000000000001234.index       sparse offsets, see index.py
00000000000000001234.timeindex   sparse times
00000000000000001234.txnindex    aborted transactions, see transactions.py
LOCK                             held by the writer; never deleted
checkpoint                       watermark, log start, clean-shutdown mark, see checkpoint.py
producers                        state of idempotent producers, see producers.py
maintenance                      state of maintenance, see maintenance_state.py
maintenance.LOCK                 held by the process whose maintenance is running, if processes take turns
wanted                           a writer waits for maintenance to end, see lock.py
visible                          where readers in other processes stop, see durability.py
leader-epoch-checkpoint          leader epochs, as Kafka writes them, see epochs.py
remote                           segments that are only in the replica, see remote.py
*.tmp                            being written; worthless after a crash
<base>-<end>.log.swap            finished, about to replace the segments with offsets from base to end
*.deleted                        discarded, about to be unlinked; an empty .log.deleted is a segment that was trimmed
                                 before there was space to record the new start
*.torn                           what recovery cut off the end of a segment, kept for inspection
*.quarantined                    damaged data that was replaced, kept for inspection
```

Anything else does not belong to the log and is ignored.
"""

from __future__ import annotations

import re

LOCK = "LOCK"
CHECKPOINT = "checkpoint"
PRODUCERS = "producers"
MAINTENANCE = "maintenance"
VISIBLE = "visible"
MAINTENANCE_LOCK = "maintenance.LOCK"
WANTED = "wanted"
LEADER_EPOCHS = "leader-epoch-checkpoint"
REMOTE = "remote"
#: A directory with this file is a store of topics, not a log.
STORE = "sawlog.json"
#: Directory of a store's topics, and prefix of the names of their partitions.
TOPICS, PARTITION = "topics", "partition-"
LOG, INDEX, TIME_INDEX, TXN_INDEX = ".log", ".index", ".timeindex", ".txnindex"
TMP, SWAP, DELETED, TORN, QUARANTINED = ".tmp", ".swap", ".deleted", ".torn", ".quarantined"

_SEGMENT = re.compile(r"([0-9]{20})\.log")
_SWAP = re.compile(r"([0-9]{20})-([0-9]{20})\.log\.swap")
_SEGMENT_FILES = re.compile(
    r"[0-9]{20}\.(log|index|timeindex|txnindex)(\.tmp|\.swap|\.deleted|\.torn(\.[0-9]+)?|\.quarantined(\.[0-9]+)?)?"
    r"|[0-9]{20}-[0-9]{20}\.log\.(tmp|swap|quarantined)"
)
_STATE_FILES = frozenset(
    each + suffix
    for each in (LOCK, CHECKPOINT, PRODUCERS, MAINTENANCE, MAINTENANCE_LOCK, VISIBLE, WANTED, LEADER_EPOCHS, REMOTE)
    for suffix in ("", TMP)
)


def file_name(base_offset: int, suffix: str = LOG) -> str:
    """The name of a segment's file; 20 digits, so that lexical order is log order."""
    return f"{base_offset:020d}{suffix}"


def segment_base(name: str) -> int | None:
    """The base offset if this is a segment's log file. Offsets of all logs are below 2**62: a file with a larger number
    does not belong to the log."""
    found = _SEGMENT.fullmatch(name)
    return int(found[1]) if found and int(found[1]) < 2**62 else None


def trimmed_base(name: str) -> int | None:
    """Return the base offset if this file is the rest of a segment that was trimmed on a full disk."""
    return segment_base(name.removesuffix(DELETED)) if name.endswith(DELETED) else None


def run_name(base_offset: int, end_offset: int, suffix: str) -> str:
    """The name of a file that replaces all segments with offsets from `base_offset` to `end_offset`."""
    return f"{base_offset:020d}-{end_offset:020d}{LOG}{suffix}"


def swap_range(name: str) -> tuple[int, int] | None:
    """The offsets of a file that is about to replace segments."""
    found = _SWAP.fullmatch(name)
    return (int(found[1]), int(found[2])) if found and int(found[1]) < int(found[2]) < 2**62 else None


def is_ours(name: str) -> bool:
    """Return True if the log owns this file and deletes it when it is removed."""
    return name in _STATE_FILES or _SEGMENT_FILES.fullmatch(name) is not None


def has_valid_offsets(name: str) -> bool:
    """Return True if the offsets in the name of a segment or a replacement are valid."""
    if name.endswith(LOG):
        return segment_base(name) is not None
    return not name.endswith(SWAP) or swap_range(name) is not None


def is_leftover(name: str) -> bool:
    """Return True for a file that a crash left behind and nothing needs."""
    return is_ours(name) and name.endswith((TMP, DELETED))
