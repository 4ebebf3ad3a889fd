"""Directories of other systems in hex: one field or record per line, with `#` comments."""

from __future__ import annotations

from pathlib import Path

from sawlog import interop
from sawlog.interop import ForeignLog, Kind


def bytes_of(drawing: str) -> bytes:
    """The bytes of a drawing."""
    return bytes.fromhex("".join(line.partition("#")[0] for line in drawing.splitlines()))


def lay(directory: Path, files: dict[str, bytes | str]) -> Path:
    """Write files; text is a drawing."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes_of(content) if isinstance(content, str) else content)
    return directory


def content_of(directory: Path) -> dict[str, bytes]:
    """All files below a directory."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def pairs(log: ForeignLog, start: int | None = None, end: int | None = None) -> list[tuple[int, bytes | None]]:
    """Offset and value of each record."""
    return [(record.offset, record.value) for record in log.scan(start, end)]


def kinds(log: ForeignLog) -> list[Kind]:
    """Return the findings, except those about unrelated files."""
    return [finding.kind for finding in log.report if finding.kind is not Kind.UNKNOWN_FILE]


def read_all(directory: Path, format: str) -> tuple[list[tuple[int, bytes | None]], list[Kind]]:
    """Return the records that `skip` reads, and the findings."""
    with interop.open(directory, format=format, damage="skip") as log:
        return pairs(log), kinds(log)
