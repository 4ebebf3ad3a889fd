"""Small files of a store: JSON that any tool can read, with a checksum as its last line.

```
{
  "id": "0b5c…",
  "partitions": 4,
  "crc32c": "1c291ca3"
}
```

The checksum covers every byte before its own line; see `sawlog.storage.checked`.
"""

from __future__ import annotations

import errno
import json
from typing import Any, TypeVar

from ..batch.text import parse_json
from ..errors import CorruptFile
from .checked import FIELD, parsing
from .interface import Directory

#: The errors of a document that is not there.
MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
T = TypeVar("T")


def encode(fields: dict[str, Any]) -> bytes:
    """The bytes of a document, one field per line."""
    lines = (f"  {json.dumps(name)}: {json.dumps(value)},\n" for name, value in fields.items())
    return FIELD.put(("{\n" + "".join(lines)).encode())


def decode(data: bytes, path: str) -> dict[str, Any]:
    """The fields; `CorruptFile` if any byte has changed."""
    if FIELD.opened(data) is None:
        raise CorruptFile(f"{path}: its checksum does not match; restore it from a copy")
    with parsing(path):
        fields: dict[str, Any] = parse_json(data)
        del fields["crc32c"]
    return fields


def load(directory: Directory, name: str) -> dict[str, Any]:
    """Read a document."""
    return decode(directory.read(name), f"{directory.path}/{name}")


def store(directory: Directory, name: str, fields: dict[str, Any], *, durable: bool = True) -> None:
    """Replace a document atomically; durably unless it has no meaning after a power cut."""
    directory.replace(name, encode(fields), durable=durable)


def field(fields: dict[str, Any], name: str, kind: type[T], path: str) -> T:
    """One field of the right type, or `CorruptFile`."""
    value = fields.get(name)
    if type(value) is not kind:
        raise CorruptFile(f"{path}: {name} is {value!r}, expected {kind.__name__}")
    return value
