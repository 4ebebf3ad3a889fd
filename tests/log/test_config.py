"""Settings are checked where they are made, with the field's name in the message."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sawlog import Interval, LogConfig
from sawlog.config import MAX_SEGMENT_BYTES
from sawlog.errors import InvalidConfig, SawlogError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("segment_bytes", 0),
        ("segment_bytes", -1),
        ("segment_bytes", 2**31),
        ("segment_bytes", 1.5),
        ("segment_bytes", True),
        ("segment_bytes", "1GiB"),
        ("segment_bytes", None),
        ("segment_overflow_bytes", -1),
        ("segment_overflow_bytes", 0.5),
        ("segment_age_ms", 0),
        ("segment_age_ms", "7d"),
        ("max_index_bytes", 15),
        ("max_index_bytes", None),
        ("initial_offset", -1),
        ("initial_offset", 2**63),
        ("initial_offset", "0"),
        ("durability", "sometimes"),
        ("durability", 50),
        ("durability", []),
        ("timestamp_type", "never"),
        ("timestamp_type", 0),
        ("retention_ms", -1),
        ("retention_bytes", -1),
        ("max_mapped_segments", -1),
        ("max_mapped_segments", 1.0),
        ("index_interval_bytes", -1),
        ("max_record_bytes", 0),
        ("max_decompressed_bytes", 0),
        ("checkpoint_interval_ms", 0),
        ("producer_expiry_ms", 0),
    ],
)
def test_setting_that_cannot_work_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidConfig, match=field) as caught:
        LogConfig(**{field: value})
    assert isinstance(caught.value, ValueError)
    with pytest.raises(InvalidConfig, match=field):
        LogConfig().with_(**{field: value})


@pytest.mark.parametrize("compression", ["brotli", "", "GZIP", None, 1, b"gzip"])
def test_unknown_compression_is_refused(compression: Any) -> None:
    with pytest.raises(SawlogError) as caught:
        LogConfig(compression=compression)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("compression", "level"),
    [("gzip", 99), ("gzip", -5), ("zstd", 100), ("lz4", 1000), ("gzip", "9"), ("gzip", True), ("snappy", 3)],
)
def test_level_that_the_codec_does_not_take_is_refused(compression: str, level: Any) -> None:
    """Here, and not by every append."""
    with pytest.raises(InvalidConfig, match="level"):
        LogConfig(compression=compression, compression_level=level)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("segment_bytes", 1),
        ("segment_bytes", MAX_SEGMENT_BYTES),
        ("segment_overflow_bytes", 0),
        ("segment_overflow_bytes", None),
        ("segment_age_ms", None),
        ("segment_age_ms", 1),
        ("max_index_bytes", 16),
        ("initial_offset", 2**62 - 2**32),
        ("durability", Interval(1, 1)),
        ("durability", "os"),
        ("compression", "zstd"),
        ("compression_level", None),
        ("timestamp_type", "append"),
        ("retention_ms", 0),
        ("retention_bytes", 0),
        ("max_mapped_segments", None),
        ("max_mapped_segments", 0),
        ("index_interval_bytes", 0),
        ("max_record_bytes", 1),
        ("max_decompressed_bytes", 1024),
    ],
)
def test_values_at_the_border_are_taken(field: str, value: Any) -> None:
    assert getattr(LogConfig(**{field: value}), field) == value


def test_defaults_are_safe() -> None:
    config = LogConfig()
    assert config.durability == "always"
    assert config.retention_ms is None
    assert config.retention_bytes is None
    assert config.segment_bytes == 1 << 30
    assert config.compression == "none"
    assert Interval().ms <= 1000


def test_config_cannot_be_changed() -> None:
    config = LogConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.segment_bytes = 5  # type: ignore[misc]
    changed = config.with_(segment_bytes=5)
    assert (config.segment_bytes, changed.segment_bytes) == (1 << 30, 5)
    with pytest.raises(TypeError):
        config.with_(no_such_field=1)


@pytest.mark.parametrize(
    ("segment", "overflow", "expected"),
    [(1000, None, 500), (1000, 0, 0), (1000, 5000, 5000), (MAX_SEGMENT_BYTES, None, 0), (2**31 - 10, 100, 9)],
)
def test_overflow_is_half_a_segment_and_never_beyond_what_an_index_can_say(
    segment: int, overflow: int | None, expected: int
) -> None:
    assert LogConfig(segment_bytes=segment, segment_overflow_bytes=overflow).overflow_bytes == expected
