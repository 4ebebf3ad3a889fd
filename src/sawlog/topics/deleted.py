"""What is remembered of deleted topics: the leader epoch in which a topic of that name begins, should it be recreated.

```
deleted.json     {"epochs": {"orders": 1, "clicks": 4}}: see documents.py for the format
```

The library knows a topic by its id. Many clients of the network know it by its name only, and one that has read a topic
up to offset 50 would continue at 50 of the next topic of that name. So that one begins in a later epoch: then the
client's position is beyond the end of its epoch, and goes back to that end, which is the beginning (`Epochs`).

It is a help for clients, no record depends on it: a damaged file is logged and begun again. The names of the last
`_MOST` deletions are kept.

Threads: whoever holds the catalog's lock.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ..errors import CorruptFile, StorageFull
from ..log.files.epochs import MAX_EPOCH
from ..storage import Directory, documents
from .names import GONE

_MOST = 10_000
_logger = logging.getLogger("sawlog")


def first_epoch(root: Directory, name: str) -> int:
    """The leader epoch in which a new topic of this name begins."""
    return _load(root).get(name, 0)


def remember(root: Directory, name: str, last_epoch: int) -> None:
    """A topic is about to be deleted whose partitions have come to this epoch. Durable when it returns, unless the disk
    is full."""
    epochs = dict(_load(root))
    following = max(epochs.pop(name, 0), min(last_epoch + 1, MAX_EPOCH))
    kept = list(epochs.items())[-(_MOST - 1) :]
    try:
        documents.store(root, GONE, {"epochs": {**dict(kept), name: following}})
    except StorageFull as error:  # deleting a topic is how a disk gets room again
        _logger.error("the epoch of the deleted topic %s is not remembered: %s", name, error)


def _load(root: Directory) -> Mapping[str, int]:
    if not root.exists(GONE):
        return {}
    path = f"{root.path}/{GONE}"
    try:
        found = documents.field(documents.load(root, GONE), "epochs", dict, path)
        for name, epoch in found.items():
            if type(epoch) is not int or not 0 <= epoch <= MAX_EPOCH:
                raise CorruptFile(f"{path}: the epoch of {name!r} is {epoch!r}")
    except CorruptFile as error:
        _logger.error("the epochs of deleted topics are not known: %s", error)
        return {}
    return found
