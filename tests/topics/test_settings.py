"""Settings: Kafka's names, text or numbers, checked when they are given, and each of them does something."""

from __future__ import annotations

from typing import Any

import pytest

from sawlog import Interval, LogConfig
from sawlog.config import MaintenanceConfig
from sawlog.errors import InvalidConfig, SawlogError
from sawlog.store import settings

from ..looping import for_each

#: For every setting: a value other than the default, its stored form, and its place in the config.
EXAMPLES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "cleanup.policy": ("compact", "compact", {"compact": True, "delete": False}),
    "retention.ms": ("86400000", 86_400_000, {"retention_ms": 86_400_000}),
    "retention.bytes": (1000, 1000, {"retention_bytes": 1000}),
    "segment.bytes": ("1048576", 1 << 20, {"segment_bytes": 1 << 20}),
    "local.retention.ms": ("1000", 1000, {"local_retention_ms": 1000}),
    "local.retention.bytes": (4096, 4096, {"local_retention_bytes": 4096}),
    "segment.ms": (1000, 1000, {"segment_age_ms": 1000}),
    "segment.index.bytes": (4096, 4096, {"max_index_bytes": 4096}),
    "index.interval.bytes": (0, 0, {"index_interval_bytes": 0}),
    "delete.retention.ms": (5, 5, {"delete_retention_ms": 5}),
    "min.cleanable.dirty.ratio": ("0.25", 0.25, {"min_dirty_ratio": 0.25}),
    "min.compaction.lag.ms": (9, 9, {"min_compaction_lag_ms": 9}),
    "compression.type": ("zstd", "zstd", {"compression": "zstd"}),
    "message.timestamp.type": ("LogAppendTime", "LogAppendTime", {"timestamp_type": "append"}),
    "durability": ("interval:20:4096", "interval:20:4096", {"durability": Interval(20, 4096)}),
    "max.record.bytes": (100, 100, {"max_record_bytes": 100}),
    "segment.overflow.bytes": (100, 100, {"segment_overflow_bytes": 100}),
    "max.mapped.segments": ("0", 0, {"max_mapped_segments": 0}),
    "merge.bytes": (0, 0, {"merge_bytes": 0}),
    "recompress.after.ms": (7, 7, {"recompress_after_ms": 7}),
    "scrub.interval.ms": (7, 7, {"scrub_interval_ms": 7}),
}


def configured(kept: dict[str, settings.Value]) -> dict[str, Any]:
    """Both configs as one."""
    log, maintenance = settings.log_config(kept), settings.maintenance_config(kept)
    return {name: getattr(config, name) for config in (log, maintenance) for name in config.__dataclass_fields__}


DEFAULTS = configured({})


@for_each("name", EXAMPLES)
@for_each("spelled", ["dots", "underscores"])
def test_a_setting_is_kept_under_kafkas_name_and_reaches_the_log(name: str, spelled: str) -> None:
    given, kept, fields = EXAMPLES[name]
    assert settings.check({name if spelled == "dots" else name.replace(".", "_"): given}) == {name: kept}
    expected = {**DEFAULTS, **fields}
    assert expected != DEFAULTS
    assert configured({name: kept}) == expected


def test_every_setting_of_a_log_but_the_level_has_an_example_here() -> None:
    assert {*EXAMPLES, "compression.level"} == {
        name for name, setting in settings.SETTINGS.items() if setting.part in ("log", "maintenance")
    }


def test_what_a_broker_lets_clients_produce_has_defaults() -> None:
    assert settings.serving({}) == {
        "max.message.bytes": 1_048_588,
        "message.timestamp.before.max.ms": 2**63 - 1,
        "message.timestamp.after.max.ms": 3_600_000,
    }
    kept = settings.check({"max_message_bytes": "1000"})
    assert settings.serving(kept)["max.message.bytes"] == 1000
    assert configured(kept) == DEFAULTS


@for_each("name", [name for name, each in settings.SETTINGS.items() if each.part == "none"])
def test_a_setting_without_effect_is_kept_as_it_is(name: str) -> None:
    kept = settings.check({name: str(settings.default_of(name))})
    assert kept == {name: settings.default_of(name)}
    assert configured(kept) == DEFAULTS


@for_each("name", [name for name in settings.SETTINGS if name != "compression.level"])  # has a codec
def test_the_default_of_a_setting_is_a_value_that_it_accepts(name: str) -> None:
    default = settings.default_of(name)
    assert configured(settings.check({name: default})) == DEFAULTS


def test_a_level_belongs_to_its_codec() -> None:
    kept = settings.check({"compression.level": "9", "compression.type": "zstd"})
    assert configured(kept) == {**DEFAULTS, "compression": "zstd", "compression_level": 9}
    with pytest.raises(SawlogError):
        settings.check({"compression.level": 1000, "compression.type": "zstd"})


def test_without_settings_the_defaults_hold() -> None:
    assert settings.log_config({}) == LogConfig()
    assert settings.maintenance_config({}) == MaintenanceConfig()


@for_each(
    "name",
    [
        "retention.ms",
        "retention.bytes",
        "recompress.after.ms",
        "scrub.interval.ms",
        "max.mapped.segments",
        "segment.overflow.bytes",
        "max.record.bytes",
    ],
)
def test_minus_one_means_none(name: str) -> None:
    field = next(iter(EXAMPLES[name][2]))
    assert configured(settings.check({name: "-1"}))[field] is None


@for_each(
    ("name", "value"),
    [
        ("cleanup.policy", "shred"),
        ("cleanup.policy", ","),
        ("cleanup.policy", 1),
        ("retention.ms", "soon"),
        ("retention.ms", -2),
        ("retention.ms", 1.5),
        ("retention.ms", True),
        ("retention.ms", 2**63),
        ("segment.bytes", 0),
        ("segment.bytes", 2**31),
        ("segment.ms", 0),
        ("min.cleanable.dirty.ratio", 1.1),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "half"),
        ("compression.type", "rar"),
        ("compression.type", ["zstd"]),
        ("message.timestamp.type", "create"),
        ("durability", "sometimes"),
        ("durability", "interval:0:1"),
        ("durability", "interval:5"),
        ("max.record.bytes", 0),
    ],
)
def test_wrong_values_are_refused_with_the_settings_name(name: str, value: object) -> None:
    with pytest.raises(InvalidConfig, match=rf"{name}|{name.replace('.', '_')}"):
        settings.check({name: value})


def test_unknown_settings_are_refused_with_the_ones_there_are() -> None:
    with pytest.raises(InvalidConfig, match=r"retention\.hours.*retention\.ms"):
        settings.check({"retention.hours": 1})


@for_each(
    ("given", "kept"),
    [("delete , compact", "delete,compact"), ("compact,delete", "compact,delete"), ("delete", "delete"), ("", "")],
)
def test_policies_have_one_spelling(given: str, kept: str) -> None:
    assert settings.check({"cleanup.policy": given}) == {"cleanup.policy": kept}


def test_without_a_policy_nothing_is_dropped_whatever_the_retention() -> None:
    config = settings.maintenance_config({"cleanup.policy": "", "retention.ms": 1})
    assert (config.compact, config.delete) == (False, False)


def test_an_interval_may_be_given_as_what_it_is() -> None:
    assert settings.check({"durability": Interval(5, 6)}) == {"durability": "interval:5:6"}


def test_producer_means_that_batches_are_stored_as_they_come() -> None:
    assert settings.log_config(settings.check({"compression.type": "producer"})).compression == "none"


def test_none_takes_a_setting_back_to_its_default() -> None:
    before = settings.check({"retention.ms": 1, "segment.ms": 2})
    assert settings.changed(before, {"retention_ms": None, "segment.bytes": 3}) == {"segment.ms": 2, "segment.bytes": 3}
