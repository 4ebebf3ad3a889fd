"""`-d`: a directory, or the address of a store on object storage."""

from __future__ import annotations

from pathlib import Path, PosixPath

import typer

from ..addresses import is_address


class Address(PosixPath):
    """An address such as s3://bucket/store where a command expects a directory. A `Path` would lose a slash; this one
    keeps its text, so that whoever opens it as a directory after all refuses it with a message."""

    #: The address; empty for a path that was derived from one.
    text: str = ""

    @classmethod
    def of(cls, text: str) -> Address:
        """From what was typed."""
        made = cls(text)
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text or super().__str__()

    def __fspath__(self) -> str:
        return str(self)


def as_place(text: str | Path) -> Path:
    """What was given for -d."""
    return Address.of(text) if isinstance(text, str) and is_address(text) else Path(text)


def as_directory(text: str | Path) -> Path:
    """The same for a command that needs files."""
    found = as_place(text)
    if isinstance(found, Address):
        raise typer.BadParameter(f"{found} is on object storage: this command needs a store in a directory")
    return found
