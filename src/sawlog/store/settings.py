"""Settings of topics: Kafka's names where the meaning is Kafka's, our own otherwise.

On disk and on the command line the names have dots (`retention.ms`), in Python underscores (`retention_ms=`); both are
accepted everywhere. Values may be text, as on a command line. Only the given settings are stored, checked and
converted; the others have the default of `LogConfig`, also after an update that changes the default.

`SETTINGS` describes each setting. `TopicSettings` and `TopicChanges` list the same settings as keywords, for type
checkers and editors.

-1 means "none" where it does in Kafka: no limit, never. -2 means "as retention.*" for `local.retention.*`.

Settings configure a log (`LogConfig`), its maintenance (`MaintenanceConfig`) and the limits for clients of a broker
(`serving`); `sawlog.schema` declares the schema of values. Some of Kafka's settings are accepted and shown, because
programs set them, but have no effect: there is one replica, and `durability` decides when it is synced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, TypedDict

from ..batch.compression import CODECS
from ..config import MAX_SEGMENT_BYTES, Interval, LogConfig, MaintenanceConfig
from ..errors import InvalidConfig


class TopicSettings(TypedDict, total=False):
    """For `create_topic`."""

    cleanup_policy: Literal["delete", "compact", "compact,delete", "delete,compact", ""]
    retention_ms: int
    retention_bytes: int
    local_retention_ms: int
    local_retention_bytes: int
    segment_bytes: int
    segment_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    compression_type: Literal["producer", "none", "gzip", "snappy", "lz4", "zstd"]
    compression_level: int
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    durability: str | Interval
    max_record_bytes: int
    segment_overflow_bytes: int
    max_mapped_segments: int
    merge_bytes: int
    recompress_after_ms: int
    scrub_interval_ms: int
    sawlog_schema: str
    max_message_bytes: int
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    follower_replication_throttled_replicas: str
    leader_replication_throttled_replicas: str
    max_compaction_lag_ms: int
    message_downconversion_enable: bool
    message_format_version: str
    min_insync_replicas: int
    preallocate: bool
    remote_storage_enable: bool
    segment_jitter_ms: int
    unclean_leader_election_enable: bool


class TopicChanges(TypedDict, total=False):
    """For `alter_topic`: None resets a setting to its default."""

    cleanup_policy: Literal["delete", "compact", "compact,delete", "delete,compact", ""] | None
    retention_ms: int | None
    retention_bytes: int | None
    local_retention_ms: int | None
    local_retention_bytes: int | None
    segment_bytes: int | None
    segment_ms: int | None
    segment_index_bytes: int | None
    index_interval_bytes: int | None
    delete_retention_ms: int | None
    min_cleanable_dirty_ratio: float | None
    min_compaction_lag_ms: int | None
    compression_type: Literal["producer", "none", "gzip", "snappy", "lz4", "zstd"] | None
    compression_level: int | None
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] | None
    durability: str | Interval | None
    max_record_bytes: int | None
    segment_overflow_bytes: int | None
    max_mapped_segments: int | None
    merge_bytes: int | None
    recompress_after_ms: int | None
    scrub_interval_ms: int | None
    sawlog_schema: str | None
    max_message_bytes: int | None
    message_timestamp_before_max_ms: int | None
    message_timestamp_after_max_ms: int | None
    file_delete_delay_ms: int | None
    flush_messages: int | None
    flush_ms: int | None
    follower_replication_throttled_replicas: str | None
    leader_replication_throttled_replicas: str | None
    max_compaction_lag_ms: int | None
    message_downconversion_enable: bool | None
    message_format_version: str | None
    min_insync_replicas: int | None
    preallocate: bool | None
    remote_storage_enable: bool | None
    segment_jitter_ms: int | None
    unclean_leader_election_enable: bool | None


Value = int | float | str
#: Schema of the values of a topic: see `sawlog.schemas`.
SCHEMA = "sawlog.schema"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name, which field of which config it sets, how a value is parsed, and its description."""

    name: str
    field: str
    read: Callable[[str, object], Value]
    about: str
    #: Converts the stored value to the value in the config.
    convert: Callable[[Any], Any] = lambda value: value
    #: Purpose.
    part: Literal["log", "maintenance", "serving", "reading", "none"] = "log"
    #: Default of a setting that is in no config.
    default: Value | None = None

    @property
    def keyword(self) -> str:
        """Its name as a Python keyword."""
        return self.name.replace(".", "_")


def _whole(name: str, value: object, *, lowest: int, highest: int = 2**63 - 1) -> int:
    number = value
    if isinstance(value, str):
        try:
            number = int(value)
        except ValueError:
            number = value
    if isinstance(number, bool) or not isinstance(number, int) or not lowest <= number <= highest:
        bounds = f"at least {lowest}" if highest == 2**63 - 1 else f"from {lowest} to {highest}"
        raise InvalidConfig(f"{name} must be an integer, {bounds}, not {value!r}")
    return number


def _fraction(name: str, value: object) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= 1:
        raise InvalidConfig(f"{name} must be a number from 0 to 1, not {value!r}")
    return number


def _choice(name: str, value: object, *, choices: tuple[str, ...]) -> str:
    if value not in choices or not isinstance(value, str):
        raise InvalidConfig(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return value


def _policy(name: str, value: object) -> str:
    parts = dict.fromkeys(part.strip() for part in value.split(",")) if isinstance(value, str) and value else {}
    if not isinstance(value, str) or parts.keys() - {"compact", "delete"}:
        raise InvalidConfig(f"{name} must be delete, compact, compact,delete or empty, not {value!r}")
    return ",".join(parts)  # in the given order, as Kafka returns it


def _durability(name: str, value: object) -> str:
    if isinstance(value, Interval):
        value = f"interval:{value.ms}:{value.bytes}"
    if value in ("always", "os"):
        return str(value)
    try:
        _interval(str(value))
    except ValueError as error:
        raise InvalidConfig(
            f"{name} must be always, os, or interval:MS:BYTES such as interval:50:8388608, not {value!r}"
        ) from error
    return str(value)


def _interval(text: str) -> Interval:
    kind, ms, size_bytes = text.split(":")
    if kind != "interval":
        raise ValueError(f"{kind!r} is not interval")
    return Interval(int(ms), int(size_bytes))


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidConfig(f"{name} must be a str, not {value!r}")
    return value


def _schema(name: str, value: object) -> str:
    text = _text(name, value).strip()
    if not text:  # none, which is the default
        return text
    from .. import schemas  # not before: most topics declare none

    try:
        schemas.parse(text)
    except InvalidConfig as error:
        raise InvalidConfig(f"{name}: {error}") from error
    return text


def _truth(name: str, value: object) -> str:
    text = str(value).lower() if isinstance(value, (str, bool)) else ""
    if text not in ("true", "false"):
        raise InvalidConfig(f"{name} must be true or false, not {value!r}")
    return text


def _none_if_negative(value: int) -> int | None:
    return None if value < 0 else value


_FROM_0, _FROM_1, _OR_NONE = partial(_whole, lowest=0), partial(_whole, lowest=1), partial(_whole, lowest=-1)
_COMPRESSIONS = ("producer", *CODECS)
_TIMESTAMPS = {"CreateTime": "create", "LogAppendTime": "append"}
_TIMESTAMP_NAMES = {ours: name for name, ours in _TIMESTAMPS.items()}

SETTINGS: dict[str, Setting] = {
    each.name: each
    for each in (
        Setting(
            "cleanup.policy",
            "",
            _policy,
            "delete: drop old records by age and size; compact: keep the last record of each key; or both, or "
            "neither, if it is empty",
            part="maintenance",
        ),
        Setting(
            "retention.ms",
            "retention_ms",
            _OR_NONE,
            "drop segments whose newest record is older than this; -1: keep all",
            _none_if_negative,
        ),
        Setting(
            "retention.bytes",
            "retention_bytes",
            _OR_NONE,
            "drop the oldest segments of a partition above this size; -1: keep all",
            _none_if_negative,
        ),
        Setting(
            "local.retention.ms",
            "local_retention_ms",
            partial(_whole, lowest=-2),
            "segments older than this are kept only in the replica, if it has them; -2: as retention.ms",
            _none_if_negative,
            default=-2,
        ),
        Setting(
            "local.retention.bytes",
            "local_retention_bytes",
            partial(_whole, lowest=-2),
            "the oldest segments above this size are kept only in the replica, if it has them; -2: as retention.bytes",
            _none_if_negative,
            default=-2,
        ),
        Setting(
            "segment.bytes",
            "segment_bytes",
            partial(_whole, lowest=1, highest=MAX_SEGMENT_BYTES),
            "a segment is closed before it exceeds this size",
        ),
        Setting("segment.ms", "segment_age_ms", _FROM_1, "a segment is closed when its first record is this old"),
        Setting(
            "segment.index.bytes",
            "max_index_bytes",
            partial(_whole, lowest=16),
            "a segment is closed when one of its indexes would exceed this size",
        ),
        Setting("index.interval.bytes", "index_interval_bytes", _FROM_0, "one index entry per this many bytes of log"),
        Setting(
            "delete.retention.ms",
            "delete_retention_ms",
            _FROM_0,
            "how long compaction keeps tombstones",
            part="maintenance",
        ),
        Setting(
            "min.cleanable.dirty.ratio",
            "min_dirty_ratio",
            _fraction,
            "compact when this share of the log is new",
            part="maintenance",
        ),
        Setting(
            "min.compaction.lag.ms",
            "min_compaction_lag_ms",
            _FROM_0,
            "do not compact records younger than this",
            part="maintenance",
        ),
        Setting(
            "compression.type",
            "compression",
            partial(_choice, choices=_COMPRESSIONS),
            "the codec for batches that are built here; producer and none: unchanged",
            lambda value: "none" if value == "producer" else value,
        ),
        Setting(
            "compression.level",
            "compression_level",
            partial(_whole, lowest=-(2**31), highest=2**31 - 1),
            "the compression level of the codec",
        ),
        Setting(
            "message.timestamp.type",
            "timestamp_type",
            partial(_choice, choices=tuple(_TIMESTAMPS)),
            "whether a record's timestamp is set by the producer or by the log",
            _TIMESTAMPS.__getitem__,
        ),
        Setting(
            "durability",
            "durability",
            _durability,
            "always: an append returns when it survives a power cut; interval:MS:BYTES: at most that much is lost; os",
            lambda value: value if value in ("always", "os") else _interval(value),
        ),
        Setting(
            "max.record.bytes",
            "max_record_bytes",
            partial(_whole, lowest=-1),
            "the maximum size of a record; -1: what fits into a segment",
            _none_if_negative,
        ),
        Setting(
            "segment.overflow.bytes",
            "segment_overflow_bytes",
            _OR_NONE,
            "by how much a streamed record may exceed segment.bytes; -1: half a segment",
            _none_if_negative,
        ),
        Setting(
            "max.mapped.segments",
            "max_mapped_segments",
            _OR_NONE,
            "the maximum number of sealed segments that stay mapped; -1: all",
            _none_if_negative,
        ),
        Setting(
            "merge.bytes",
            "merge_bytes",
            _FROM_0,
            "neighbouring sealed segments smaller than this are merged; 0: never",
            part="maintenance",
        ),
        Setting(
            "recompress.after.ms",
            "recompress_after_ms",
            _OR_NONE,
            "sealed segments older than this are recompressed with zstd; -1: never",
            _none_if_negative,
            part="maintenance",
        ),
        Setting(
            "scrub.interval.ms",
            "scrub_interval_ms",
            _OR_NONE,
            "sealed segments are read and checked this often; -1: never",
            _none_if_negative,
            part="maintenance",
        ),
        Setting(
            SCHEMA,
            "",
            _schema,
            "what values are made of: an Avro record, a JSON Schema, or columns as in `id BIGINT, name STRING`",
            part="reading",
            default="",
        ),
        Setting(
            "max.message.bytes",
            "",
            _FROM_0,
            "the largest batch that a client of the broker may produce",
            part="serving",
            default=1_048_588,
        ),
        Setting(
            "message.timestamp.before.max.ms",
            "",
            _FROM_0,
            "a client of the broker may produce records that are this much older than now",
            part="serving",
            default=2**63 - 1,
        ),
        Setting(
            "message.timestamp.after.max.ms",
            "",
            _FROM_0,
            "a client of the broker may produce records that are this far in the future",
            part="serving",
            default=3_600_000,
        ),
        *(
            Setting(name, "", read, "accepted from programs that set it; has no effect", part="none", default=default)
            for name, read, default in (
                ("file.delete.delay.ms", _FROM_0, 60_000),
                ("flush.messages", _FROM_0, 2**63 - 1),
                ("flush.ms", _FROM_0, 2**63 - 1),
                ("follower.replication.throttled.replicas", _text, ""),
                ("leader.replication.throttled.replicas", _text, ""),
                ("max.compaction.lag.ms", _FROM_1, 2**63 - 1),
                ("message.downconversion.enable", _truth, "true"),
                ("message.format.version", _text, "3.0-IV1"),
                ("min.insync.replicas", _FROM_1, 1),
                ("preallocate", _truth, "false"),
                ("remote.storage.enable", _truth, "false"),
                ("segment.jitter.ms", _FROM_0, 0),
                ("unclean.leader.election.enable", _truth, "false"),
            )
        ),
    )
}
#: All values of settings that have few, or examples.
_FEW: dict[Any, tuple[str, ...]] = {
    _policy: ("delete", "compact", "compact,delete"),
    _truth: ("true", "false"),
    _durability: ("always", "os", "interval:50:8388608"),
}
_BY_KEYWORD = {each.keyword: each for each in SETTINGS.values()}


def check(given: Mapping[str, object]) -> dict[str, Value]:
    """Check settings, given under either kind of name, and return them under Kafka's names."""
    checked = {}
    for name, value in given.items():
        setting = _find(name)
        checked[setting.name] = setting.read(setting.name, value)
    log_config(checked)
    maintenance_config(checked)
    _check_tiering(checked)
    return dict(sorted(checked.items()))


def _check_tiering(settings: Mapping[str, Value]) -> None:
    """Refuse to keep fewer records locally than in the replica for a compacted topic: the replica is not compacted."""
    for name in ("local.retention.ms", "local.retention.bytes"):
        if int(settings.get(name, -2)) == -2:
            continue
        if is_compacted(settings):
            raise InvalidConfig(
                f"{name} cannot be set for a topic with cleanup.policy=compact: records that compaction removes would "
                "stay in the replica"
            )
        whole = name.removeprefix("local.")
        if int(settings[name]) == -1 and int(settings.get(whole, -1)) != -1:
            raise InvalidConfig(f"{name} must be at most {whole} ({settings[whole]}), not -1, which is no limit")


def changed(settings: Mapping[str, Value], changes: Mapping[str, object]) -> dict[str, Value]:
    """Return the settings with some changed; None resets one to its default."""
    dropped = {_find(name).name for name, value in changes.items() if value is None}
    kept = {name: value for name, value in settings.items() if name not in dropped}
    made = check({**kept, **{_find(name).name: value for name, value in changes.items() if value is not None}})
    if settings.get(SCHEMA) and made.get(SCHEMA):
        _check_evolution(str(settings[SCHEMA]), str(made[SCHEMA]))
    return made


def _check_evolution(earlier: str, later: str) -> None:
    """Refuse a schema that cannot read the existing records."""
    from .. import schemas
    from ..schemas.types import incompatibilities

    reasons = list(incompatibilities(schemas.parse(earlier), schemas.parse(later)))
    if reasons:
        raise InvalidConfig(
            f"{SCHEMA}: values of the current schema could not be read with the new one: {'; '.join(reasons)}. "
            "To replace it anyway, reset the setting first"
        )


def log_config(settings: Mapping[str, Value]) -> LogConfig:
    """Return the configuration of the logs of a topic."""
    return LogConfig(**_fields(settings, "log"))


def maintenance_config(settings: Mapping[str, Value]) -> MaintenanceConfig:
    """Return the configuration of the maintenance of a topic."""
    policy = str(settings.get("cleanup.policy", "delete"))
    return MaintenanceConfig(
        compact="compact" in policy,
        delete="delete" in policy,
        **_fields({name: value for name, value in settings.items() if name != "cleanup.policy"}, "maintenance"),
    )


def serving(settings: Mapping[str, Value]) -> dict[str, Any]:
    """Return the limits for clients of a broker, defaults included."""
    return {
        name: settings.get(name, setting.default) for name, setting in SETTINGS.items() if setting.part == "serving"
    }


def default_of(name: str) -> Value:
    """Return the default of a setting, in the form in which it is given."""
    setting = _find(name)
    if setting.name == "cleanup.policy":
        return "delete"
    if setting.default is not None:
        return setting.default
    config = MaintenanceConfig(compact=False, delete=True) if setting.part == "maintenance" else LogConfig()
    value: Any = getattr(config, setting.field)
    if value is None:
        return -1
    if isinstance(value, Interval):
        return f"interval:{value.ms}:{value.bytes}"
    if setting.name == "compression.type":
        return "producer"
    found: Value = _TIMESTAMP_NAMES[value] if setting.name == "message.timestamp.type" else value
    return found


def values_of(name: str) -> tuple[str, ...]:
    """Return values of a setting for completion: all of them if they are few, otherwise the default."""
    read = _find(name).read
    if read in _FEW:
        return _FEW[read]
    if isinstance(read, partial) and "choices" in read.keywords:
        return tuple(read.keywords["choices"])
    default = str(default_of(name))
    return (default,) if default else ()


def _fields(settings: Mapping[str, Value], part: str) -> dict[str, Any]:
    chosen = {_find(name): value for name, value in settings.items() if _find(name).part == part}
    return {setting.field: setting.convert(value) for setting, value in chosen.items()}


def is_compacted(settings: Mapping[str, Value]) -> bool:
    """Return whether only the last record of each key is kept, so that every record needs a key."""
    return "compact" in str(settings.get("cleanup.policy", ""))


def _find(name: str) -> Setting:
    found = SETTINGS.get(name) or _BY_KEYWORD.get(name)
    if found is None:
        near = get_close_matches(name, [*SETTINGS, *_BY_KEYWORD], n=1) or [
            each for each in SETTINGS if each.startswith(name)
        ]
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(SETTINGS)}"
        raise InvalidConfig(f"unknown setting {name!r}; {hint}")
    return found
