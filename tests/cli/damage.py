"""Finding a segment's file and damaging it."""

from __future__ import annotations

from pathlib import Path


def segment_of(data: Path, topic: str = "orders", partition: int = 0) -> Path:
    """The first segment file of a partition."""
    return min((data / "topics" / topic / f"partition-{partition}").glob("*.log"))


def flip_bit(file: Path, position: int, mask: int = 1) -> None:
    """Change one byte of a file."""
    content = bytearray(file.read_bytes())
    content[position] ^= mask
    file.write_bytes(content)
