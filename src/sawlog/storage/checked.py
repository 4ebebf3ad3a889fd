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
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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
