"""A store as version 0.2 left it: what the present version has written, without what version 0.2 did not know.

    sawlog.json                 format 1
    checkpoint                  without the leader epoch and the checksum of their list
    leader-epoch-checkpoint     not there
    visible                     not there, and nothing is published
    groups/                     commits without a leader epoch

All batches are of epoch 0, as they are in a log that was never truncated or crashed.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from sawlog.log.files import checkpoint
from sawlog.log.files.names import CHECKPOINT, LEADER_EPOCHS, VISIBLE
from sawlog.storage import Directory, documents
from sawlog.storage.checked import LINE
from sawlog.testing.device import Folder
from sawlog.topics.store import Store


def downgrade(root: Directory, topic: str) -> None:
    """Turn a store that nobody has open, whether it was closed cleanly or not, into one of version 0.2. The commits of
    its groups have lost their epochs before: see `without_epochs`."""
    fields = documents.load(root, "sawlog.json")
    documents.store(root, "sawlog.json", {**fields, "format": 1})
    for folder in (root.child("groups"), *_partitions(root, topic)):
        _strip(folder)


def _partitions(root: Directory, topic: str) -> list[Directory]:
    found = root.child("topics").child(topic)
    return [found.child(name) for name in found.children()]


def _strip(folder: Directory) -> None:
    saved = checkpoint.load(folder)
    assert saved is not None
    assert not saved.leader_epoch, "batches of later epochs were no work of version 0.2"
    known = {name: value for name, value in asdict(saved).items() if name not in ("leader_epoch", "epochs_crc")}
    folder.replace(CHECKPOINT, LINE.put(f"sawlog checkpoint 1\n{json.dumps(known)}\n".encode()))
    folder.remove(LEADER_EPOCHS)
    folder.remove(VISIBLE)
    folder.sync()
    assert isinstance(folder, Folder)
    folder.numbers.clear()


def without_epochs(store: Store, group: str, *, beyond: int = 0) -> None:
    """The same offsets, committed as version 0.2 does, without an epoch; or later ones, which were read before a power
    cut has taken what was there."""
    with store.groups.offsets.turn() as turn:
        records = []
        for (topic, partition), each in sorted(turn.offsets(group).items()):
            fields = asdict(each) | {"offset": each.offset + beyond}
            del fields["leader_epoch"]
            records.append((json.dumps(fields).encode(), json.dumps(["offset", group, topic, partition]).encode()))
        if records:
            turn._log.append_many(records)
