"""The encoders of a log, kept because their buffers are warm."""

from __future__ import annotations

from ...batch.build import MAX_BATCH_BYTES, Encoder, Recipe
from ...batch.compression import codec_id
from ...config import LogConfig

#: How many are kept: as many as there are threads that append at the same time.
_KEPT = 8


class Encoders:
    """One for each caller at a time. Thread-safe, without a lock."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._free: list[Encoder] = []

    def take(self) -> Encoder:
        """Take one, to be given back."""
        try:
            return self._free.pop()
        except IndexError:
            return Encoder(self.recipe)

    def give_back(self, encoder: Encoder) -> None:
        """Give one back for the next caller."""
        if len(self._free) < _KEPT:
            self._free.append(encoder)


def recipe_of(config: LogConfig) -> Recipe:
    """How batches for a log with these settings are made."""
    codec = codec_id(config.compression)
    return Recipe(
        codec,
        config.compression_level,
        config.timestamp_type == "append",
        config.max_record_bytes or 0,
        # Before compression, a batch may be larger than a segment; its final size is checked when it is placed.
        MAX_BATCH_BYTES if codec else min(MAX_BATCH_BYTES, config.segment_bytes),
        config.max_decompressed_bytes,
    )
