"""What consumers put into the opaque bytes of JoinGroup and SyncGroup, each after an int16 with its version.

A broker passes these on unread. It, and tools that describe a group, look inside to say who has which partition.
"""

from __future__ import annotations

from ..schema import ALWAYS, INT32, STRING, array, binary, int32, string

VERSIONS = range(4)

SUBSCRIPTION = (
    array("topics").of(STRING),
    binary("user_data", nullable=ALWAYS, default=None),
    array("owned_partitions", since=1).of(
        string("topic"),
        array("partitions").of(INT32),
    ),
    int32("generation_id", since=2, default=-1),
    string("rack_id", since=3, nullable=ALWAYS, default=None),
)

ASSIGNMENT = (
    array("assigned_partitions").of(
        string("topic"),
        array("partitions").of(INT32),
    ),
    binary("user_data", nullable=ALWAYS, default=None),
)
