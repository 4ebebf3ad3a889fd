"""Small metadata files that end with a checksum.

Each file is a body followed by the CRC-32C of the body in eight hexadecimal digits. A file is always replaced as a
whole (`Directory.replace`), so a reader finds the old or the new version; if any byte has changed, reading raises
`CorruptFile`. There are two layouts:

    LINE      crc32c 1c291ca3             text with a title (`TitledFile`): checkpoint, producers, maintenance, the
                                          note of a shared log
    FIELD       "crc32c": "1c291ca3"      JSON that any tool can read (`load`, `store`), one field per line:
              }                           sawlog.json, topic.json, transaction intents, job state

For example, a document of a store:

```
{
  "id": "0b5c…",
  "partitions": 4,
  "crc32c": "1c291ca3"
}
```

The checksum covers every byte before its own line. Thread-safe: nothing here has state.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from ..batch.checksum import crc32c
from ..batch.text import parse_json
from ..errors import CorruptFile
from .interface import Directory


@dataclass(frozen=True, slots=True)
class ChecksumTrailer:
    """A layout: the bytes before and after the digits of the checksum."""

    before: bytes
    after: bytes

    def append_to(self, body: bytes) -> bytes:
        """Return the body followed by its checksum."""
        return body + self.before + f"{crc32c(body):08x}".encode() + self.after

    def strip_from(self, data: bytes) -> bytes | None:
        """Return the body, or None if the checksum does not match."""
        body, _, trailer = data.rpartition(self.before)
        return body if trailer == f"{crc32c(body):08x}".encode() + self.after else None


LINE = ChecksumTrailer(b"crc32c ", b"\n")
FIELD = ChecksumTrailer(b'  "crc32c": "', b'"\n}\n')


@contextmanager
def parsing(what: str) -> Iterator[None]:
    """Turn the errors of parsing code in this block into `CorruptFile`."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CorruptFile(f"{what} does not parse: {error}") from error


@dataclass(frozen=True, slots=True)
class TitledFile:
    """Text that begins with a title and ends with a checksum line."""

    #: Name of the file in error messages.
    what: str
    title: str

    def encode(self, text: str) -> bytes:
        """Return the bytes of the file; the text follows the title immediately."""
        return LINE.append_to(f"{self.title}{text}".encode())

    def decode(self, data: bytes) -> bytes:
        """Return the text after the title; raise `CorruptFile` if the title or the checksum is wrong."""
        body, title = LINE.strip_from(data), self.title.encode()
        if body is None or not body.startswith(title):
            raise CorruptFile(f"the checksum of {self.what} does not match")
        return body[len(title) :]

    def encode_fields(self, fields: Mapping[str, Any]) -> bytes:
        """Return the bytes of a file whose text is one line of JSON."""
        return self.encode(f"\n{json.dumps(fields)}\n")

    def decode_fields(self, data: bytes) -> Any:
        """Return the parsed JSON of a file made by `encode_fields`; raise `CorruptFile` if it is damaged."""
        body = self.decode(data)
        with parsing(self.what):
            return parse_json(body)

    def find(self, directory: Directory, name: str) -> bytes | None:
        """Return the bytes of the file; None if it is missing."""
        return directory.read(name) if directory.exists(name) else None


#: Error numbers of a missing document.
MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
T = TypeVar("T")


def encode(fields: dict[str, Any]) -> bytes:
    """Return the bytes of a document, one field per line."""
    lines = (f"  {json.dumps(name)}: {json.dumps(value)},\n" for name, value in fields.items())
    return FIELD.append_to(("{\n" + "".join(lines)).encode())


def decode(data: bytes, path: str) -> dict[str, Any]:
    """Return the fields of a document; raise `CorruptFile` if any byte has changed."""
    if FIELD.strip_from(data) is None:
        raise CorruptFile(f"{path}: its checksum does not match; restore it from a copy")
    with parsing(path):
        fields: dict[str, Any] = parse_json(data)
        del fields["crc32c"]
    return fields


def load(directory: Directory, name: str) -> dict[str, Any]:
    """Read a document."""
    return decode(directory.read(name), f"{directory.path}/{name}")


def store(directory: Directory, name: str, fields: dict[str, Any], *, durable: bool = True) -> None:
    """Replace a document atomically. Pass `durable=False` for one that has no meaning after a power cut."""
    directory.replace(name, encode(fields), durable=durable)


def field(fields: dict[str, Any], name: str, kind: type[T], path: str) -> T:
    """Return a field after checking its type; raise `CorruptFile` if it is missing or has another type."""
    value = fields.get(name)
    if type(value) is not kind:
        raise CorruptFile(f"{path}: {name} is {value!r}, expected {kind.__name__}")
    return value
