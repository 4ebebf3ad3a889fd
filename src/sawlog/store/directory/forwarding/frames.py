"""Messages between a process that wants to write and the process that holds the partition.

```
u32  size of the head
u32  size of the body
head: a JSON object with the field "version"
body: encoded batches, or nothing
```

Integers are big endian. A connection carries one request at a time, and one answer for each:

    request                                                        answer
    append   topic, topic_id, partition, until_ns; body: batches   first, count: the offsets
    append_at  the same, and offset: the expected offset           the same
    prepare  id, parts                                             elsewhere: parts whose partitions are not held here
    place    id, parts                                             elsewhere

An answer can also be `{"error": [type, arguments]}`, an error of `sawlog.errors`, or `{"elsewhere": true}` for an
append. `until_ns` is the caller's deadline on the clock that all processes of a machine share: a process that was
stopped does not append a batch after its caller has given up.
"""

from __future__ import annotations

import errno
import json
import struct
from typing import Any

from .... import errors
from ....batch.text import parse_json
from ....clock import Deadline
from ....errors import SawlogError, StorageError
from ....storage.interface import Buffer
from ....storage.sockets import Channel
from ..transactions.completion import PeerLost, PeerRefused, PeerTimeout

VERSION = 1
#: Maximum size of a head and of a body. More batches than that are staged in a file.
_MOST_HEAD_BYTES, MOST_BODY_BYTES = 1 << 20, 16 << 20
_SIZES = struct.Struct(">II")

Head = dict[str, Any]


class Malformed(PeerLost):
    """The peer sent something other than a message of this version."""


def send(channel: Channel, head: Head, body: Buffer = b"", *, deadline: Deadline) -> None:
    """Send a message; `PeerLost` if the peer is gone."""
    encoded = json.dumps({"version": VERSION, **head}).encode()
    try:
        channel.send(_SIZES.pack(len(encoded), len(body)) + encoded, body, deadline=deadline)
    except StorageError as error:
        raise lost(error) from error


def receive(channel: Channel, deadline: Deadline) -> tuple[Head, bytearray]:
    """Receive a message; `PeerLost` if the peer is gone, `Malformed` if it sent something else."""
    try:
        head_bytes, body_bytes = _SIZES.unpack(channel.receive(_SIZES.size, deadline))
        if head_bytes > _MOST_HEAD_BYTES or body_bytes > MOST_BODY_BYTES:
            raise Malformed(f"a message of {head_bytes} and {body_bytes} bytes")
        encoded, body = channel.receive(head_bytes, deadline), channel.receive(body_bytes, deadline)
    except StorageError as error:
        raise lost(error) from error
    try:
        head = parse_json(bytes(encoded))
    except ValueError as error:
        raise Malformed(f"a message that does not parse: {error}") from error
    if not isinstance(head, dict) or head.get("version") != VERSION:
        raise Malformed(f"a message that is not of version {VERSION}")
    return head, body


def lost(error: StorageError) -> PeerLost:
    """Translate a connection error."""
    kinds: dict[int | None, type[PeerLost]] = {
        errno.ETIMEDOUT: PeerTimeout,
        errno.EACCES: PeerRefused,
        errno.EPERM: PeerRefused,
    }
    return kinds.get(error.errno, PeerLost)(str(error))


# --- errors


def encode_error(error: BaseException) -> Head:
    """Return an answer that raises this error on the other side."""
    made = error.__reduce__()
    arguments = made[1] if isinstance(made, tuple) else ()
    known = getattr(errors, type(error).__name__, None) is type(error)
    if known and all(isinstance(each, (str, int, type(None))) for each in arguments):
        return {"error": [type(error).__name__, list(arguments)]}
    return {"error": ["SawlogError", [f"{type(error).__name__}: {error}"]]}


def raise_error(head: Head) -> None:
    """Raise the error that an answer contains, if any."""
    if "error" not in head:
        return
    try:
        name, arguments = head["error"]
        kind = getattr(errors, name)
        made = kind(*arguments)
    except (TypeError, ValueError, AttributeError):
        made = None
    if not isinstance(made, SawlogError):
        made = SawlogError(f"the process that holds the partition reports {head['error']!r}")
    raise made
