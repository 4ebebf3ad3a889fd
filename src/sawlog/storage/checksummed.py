"""Small files with a checksum: how all of them are written and read.

A file has a body and, at its end, the CRC-32C of the body in eight hexadecimal digits. It is replaced as a whole
(`Directory.replace`), so it is either the old one or the new one; if any byte has changed, it is not believed.

What is around the digits depends on who else reads the file:

    LINE      crc32c 1c291ca3             text with a title: checkpoint, producers, upkeep, the note of a shared log
    FIELD       "crc32c": "1c291ca3"      JSON that any tool can read, one field per line: sawlog.json, topic.json,
              }                           intents and their notes, what a job remembers

Logs and stores of earlier versions have both, and version 0.2 can still read what is written today: so there are two
seals and one way to use them, and not one format.

Threads: any; all of it is values and functions.

Small files of a store: JSON that any tool can read, with a checksum as its last line.

```
{
  "id": "0b5c…",
  "partitions": 4,
  "crc32c": "1c291ca3"
}
```

The checksum covers every byte before its own line; see `sawlog.storage.checksummed`.
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
class Seal:
    """How a checksum is attached to a body: what is before and after its digits."""

    before: bytes
    after: bytes

    def put(self, body: bytes) -> bytes:
        """The body with its checksum."""
        return body + self.before + f"{crc32c(body):08x}".encode() + self.after

    def opened(self, data: bytes) -> bytes | None:
        """The body; None if any byte has changed."""
        body, _, mark = data.rpartition(self.before)
        return body if mark == f"{crc32c(body):08x}".encode() + self.after else None


LINE = Seal(b"crc32c ", b"\n")
FIELD = Seal(b'  "crc32c": "', b'"\n}\n')


@contextmanager
def parsing(what: str) -> Iterator[None]:
    """A block in which a body is taken apart: `CorruptFile`, if it cannot be."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CorruptFile(f"{what} does not parse: {error}") from error


@dataclass(frozen=True, slots=True)
class TitledFile:
    """Text that begins with a title and ends with its checksum on a line."""

    #: What it is called in messages.
    what: str
    title: str

    def encode(self, text: str) -> bytes:
        """The bytes of the file; the text follows the title immediately."""
        return LINE.put(f"{self.title}{text}".encode())

    def decode(self, data: bytes) -> bytes:
        """The text after the title; `CorruptFile` unless every byte is right."""
        body, title = LINE.opened(data), self.title.encode()
        if body is None or not body.startswith(title):
            raise CorruptFile(f"the checksum of {self.what} does not match")
        return body[len(title) :]

    def encode_fields(self, fields: Mapping[str, Any]) -> bytes:
        """The bytes of a file whose text is JSON, on one line."""
        return self.encode(f"\n{json.dumps(fields)}\n")

    def decode_fields(self, data: bytes) -> Any:
        """The JSON of such a file; `CorruptFile` unless every byte is right."""
        body = self.decode(data)
        with parsing(self.what):
            return parse_json(body)

    def find(self, directory: Directory, name: str) -> bytes | None:
        """The bytes of the file; None if there is none."""
        return directory.read(name) if directory.exists(name) else None


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
