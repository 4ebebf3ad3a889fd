"""Settings of topics: Kafka's names where the meaning is Kafka's, our own otherwise.

On disk and on the command line the names have dots (`retention.ms`), in Python underscores (`retention_ms=`); both are
accepted everywhere. Values may be text, as on a command line: `retention_ms="7d"`, `segment_bytes="64MiB"`. Only the
given settings are stored, checked and converted; the others have the default of `LogConfig`, also after an update that
changes the default.

`SETTINGS` describes each setting. `TopicSettings` and `TopicChanges` list the same settings as keywords, for type
checkers and editors.

-1 means "none" where it does in Kafka: no limit, never. -2 means "as retention.*" for `local.retention.*`.

Settings configure a log (`LogConfig`), its maintenance (`MaintenanceConfig`) and the limits for clients of a broker
(`serving`); `sawlog.schema` declares the schema of values. Some of Kafka's settings are accepted and shown, because
programs set them, but have no effect: there is one replica, and `durability` decides when it is synced.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, TypedDict

from ..batch.compression import CODECS
from ..config import MAX_SEGMENT_BYTES, Interval, LogConfig, MaintenanceConfig
from ..errors import InvalidConfig
from ..units import duration_ms, size_bytes


class TopicSettings(TypedDict, total=False):
    """For `create_topic`."""

    cleanup_policy: Literal["delete", "compact", "compact,delete", "delete,compact", ""]
    retention_ms: int | str
    retention_bytes: int | str
    local_retention_ms: int | str
    local_retention_bytes: int | str
    segment_bytes: int | str
    segment_ms: int | str
    segment_index_bytes: int | str
    index_interval_bytes: int | str
    delete_retention_ms: int | str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int | str
    compression_type: Literal["producer", "none", "gzip", "snappy", "lz4", "zstd"]
    compression_level: int
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    durability: str | Interval
    max_record_bytes: int | str
    segment_overflow_bytes: int | str
    max_mapped_segments: int
    merge_bytes: int | str
    recompress_after_ms: int | str
    scrub_interval_ms: int | str
    sawlog_schema: str
    max_message_bytes: int | str
    message_timestamp_before_max_ms: int | str
    message_timestamp_after_max_ms: int | str
    file_delete_delay_ms: int | str
    flush_messages: int
    flush_ms: int | str
    follower_replication_throttled_replicas: str
    leader_replication_throttled_replicas: str
    max_compaction_lag_ms: int | str
    message_downconversion_enable: bool
    message_format_version: str
    min_insync_replicas: int
    preallocate: bool
    remote_storage_enable: bool
    segment_jitter_ms: int | str
    unclean_leader_election_enable: bool


class TopicChanges(TypedDict, total=False):
    """For `alter_topic`: None resets a setting to its default."""

    cleanup_policy: Literal["delete", "compact", "compact,delete", "delete,compact", ""] | None
    retention_ms: int | str | None
    retention_bytes: int | str | None
    local_retention_ms: int | str | None
    local_retention_bytes: int | str | None
    segment_bytes: int | str | None
    segment_ms: int | str | None
    segment_index_bytes: int | str | None
    index_interval_bytes: int | str | None
    delete_retention_ms: int | str | None
    min_cleanable_dirty_ratio: float | None
    min_compaction_lag_ms: int | str | None
    compression_type: Literal["producer", "none", "gzip", "snappy", "lz4", "zstd"] | None
    compression_level: int | None
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] | None
    durability: str | Interval | None
    max_record_bytes: int | str | None
    segment_overflow_bytes: int | str | None
    max_mapped_segments: int | None
    merge_bytes: int | str | None
    recompress_after_ms: int | str | None
    scrub_interval_ms: int | str | None
    sawlog_schema: str | None
    max_message_bytes: int | str | None
    message_timestamp_before_max_ms: int | str | None
    message_timestamp_after_max_ms: int | str | None
    file_delete_delay_ms: int | str | None
    flush_messages: int | None
    flush_ms: int | str | None
    follower_replication_throttled_replicas: str | None
    leader_replication_throttled_replicas: str | None
    max_compaction_lag_ms: int | str | None
    message_downconversion_enable: bool | None
    message_format_version: str | None
    min_insync_replicas: int | None
    preallocate: bool | None
    remote_storage_enable: bool | None
    segment_jitter_ms: int | str | None
    unclean_leader_election_enable: bool | None


Value = int | float | str
_INTEGER = re.compile(r"\s*[+-]?\d+\s*")
#: Schema of the values of a topic: see `sawlog.schemas`.
SCHEMA = "sawlog.schema"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name, which field of which config it sets, how a value is parsed, and its description."""

    name: str
    #: Checks a value and returns it as it is stored.
    read: Callable[[str, object], Value]
    about: str
    #: Field of the config; empty if it sets none.
    field: str
    #: Purpose.
    part: Literal["log", "maintenance", "serving", "reading", "none"]
    #: Converts the stored value to the value in the config.
    convert: Callable[[Any], Any] = lambda value: value
    #: Default of a setting that is in no config.
    default: Value | None = None

    @property
    def keyword(self) -> str:
        """Its name as a Python keyword."""
        return self.name.replace(".", "_")


def _whole(name: str, value: object, *, lowest: int, highest: int = 2**63 - 1) -> int:
    number, hint = value, ""
    if isinstance(value, str):
        parse: Callable[[str], int] = int
        if not _INTEGER.fullmatch(value):
            parse = duration_ms if name.endswith(".ms") else size_bytes if name.endswith(".bytes") else int
        try:
            number = parse(value)
        except ValueError as error:
            hint = "" if parse is int else f"; {error}"
    if isinstance(number, bool) or not isinstance(number, int) or not lowest <= number <= highest:
        bounds = f"at least {lowest}" if highest == 2**63 - 1 else f"from {lowest} to {highest}"
        raise InvalidConfig(f"{name} must be an integer, {bounds}, not {value!r}{hint}")
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


_FROM_0, _FROM_1 = partial(_whole, lowest=0), partial(_whole, lowest=1)
#: A limit of -1 is none; a local one of -2 is that of `retention.*`.
_OR_NONE, _LOCAL = partial(_whole, lowest=-1), partial(_whole, lowest=-2)
_TIMESTAMPS = {"CreateTime": "create", "LogAppendTime": "append"}
_TIMESTAMP_NAMES = {ours: name for name, ours in _TIMESTAMPS.items()}
_CONVERTED: dict[Any, Callable[[Any], Any]] = {
    _OR_NONE: lambda value: None if value < 0 else value,
    _LOCAL: lambda value: None if value < 0 else value,
    _durability: lambda value: value if value in ("always", "os") else _interval(value),
}


def _log(name: str, read: Callable[[str, object], Value], about: str, field: str = "", **given: Any) -> Setting:
    """Describe a setting that sets a field of `LogConfig`, by default the one of its own name."""
    if read in _CONVERTED:
        given["convert"] = _CONVERTED[read]
    return Setting(name, read, about, field or name.replace(".", "_"), **{"part": "log", **given})


_maintenance = partial(_log, part="maintenance")


def _served(name: str, about: str, default: int) -> Setting:
    """Describe a limit for clients of a broker."""
    return Setting(name, _FROM_0, about, "", "serving", default=default)


def _unused(name: str, read: Callable[[str, object], Value], default: Value) -> Setting:
    return Setting(name, read, "accepted from programs that set it; has no effect", "", "none", default=default)


_ALL = (
    Setting(
        "cleanup.policy",
        _policy,
        "delete: drop old records by age and size; compact: keep the last record of each key; or both, or "
        "neither, if it is empty",
        "",
        "maintenance",
    ),
    _log("retention.ms", _OR_NONE, "drop segments whose newest record is older than this; -1: keep all"),
    _log("retention.bytes", _OR_NONE, "drop the oldest segments of a partition above this size; -1: keep all"),
    _log(
        "local.retention.ms",
        _LOCAL,
        "segments older than this are kept only in the replica, if it has them; -2: as retention.ms",
        default=-2,
    ),
    _log(
        "local.retention.bytes",
        _LOCAL,
        "the oldest segments above this size are kept only in the replica, if it has them; -2: as retention.bytes",
        default=-2,
    ),
    _log(
        "segment.bytes",
        partial(_whole, lowest=1, highest=MAX_SEGMENT_BYTES),
        "a segment is closed before it exceeds this size",
    ),
    _log("segment.ms", _FROM_1, "a segment is closed when its first record is this old", "segment_age_ms"),
    _log(
        "segment.index.bytes",
        partial(_whole, lowest=16),
        "a segment is closed when one of its indexes would exceed this size",
        "max_index_bytes",
    ),
    _log("index.interval.bytes", _FROM_0, "one index entry per this many bytes of log"),
    _maintenance("delete.retention.ms", _FROM_0, "how long compaction keeps tombstones"),
    _maintenance(
        "min.cleanable.dirty.ratio", _fraction, "compact when this share of the log is new", "min_dirty_ratio"
    ),
    _maintenance("min.compaction.lag.ms", _FROM_0, "do not compact records younger than this"),
    _log(
        "compression.type",
        partial(_choice, choices=("producer", *CODECS)),
        "the codec for batches that are built here; producer and none: unchanged",
        "compression",
        convert=lambda value: "none" if value == "producer" else value,
    ),
    _log(
        "compression.level",
        partial(_whole, lowest=-(2**31), highest=2**31 - 1),
        "the compression level of the codec",
    ),
    _log(
        "message.timestamp.type",
        partial(_choice, choices=tuple(_TIMESTAMPS)),
        "whether a record's timestamp is set by the producer or by the log",
        "timestamp_type",
        convert=_TIMESTAMPS.__getitem__,
    ),
    _log(
        "durability",
        _durability,
        "always: an append returns when it survives a power cut; interval:MS:BYTES: at most that much is lost; os",
    ),
    _log("max.record.bytes", _OR_NONE, "the maximum size of a record; -1: what fits into a segment"),
    _log(
        "segment.overflow.bytes",
        _OR_NONE,
        "by how much a streamed record may exceed segment.bytes; -1: half a segment",
    ),
    _log("max.mapped.segments", _OR_NONE, "the maximum number of sealed segments that stay mapped; -1: all"),
    _maintenance("merge.bytes", _FROM_0, "neighbouring sealed segments smaller than this are merged; 0: never"),
    _maintenance(
        "recompress.after.ms", _OR_NONE, "sealed segments older than this are recompressed with zstd; -1: never"
    ),
    _maintenance("scrub.interval.ms", _OR_NONE, "sealed segments are read and checked this often; -1: never"),
    Setting(
        SCHEMA,
        _schema,
        "what values are made of: an Avro record, a JSON Schema, or columns as in `id BIGINT, name STRING`",
        "",
        "reading",
        default="",
    ),
    _served("max.message.bytes", "the largest batch that a client of the broker may produce", 1_048_588),
    _served(
        "message.timestamp.before.max.ms",
        "a client of the broker may produce records that are this much older than now",
        2**63 - 1,
    ),
    _served(
        "message.timestamp.after.max.ms",
        "a client of the broker may produce records that are this far in the future",
        3_600_000,
    ),
    _unused("file.delete.delay.ms", _FROM_0, 60_000),
    _unused("flush.messages", _FROM_0, 2**63 - 1),
    _unused("flush.ms", _FROM_0, 2**63 - 1),
    _unused("follower.replication.throttled.replicas", _text, ""),
    _unused("leader.replication.throttled.replicas", _text, ""),
    _unused("max.compaction.lag.ms", _FROM_1, 2**63 - 1),
    _unused("message.downconversion.enable", _truth, "true"),
    _unused("message.format.version", _text, "3.0-IV1"),
    _unused("min.insync.replicas", _FROM_1, 1),
    _unused("preallocate", _truth, "false"),
    _unused("remote.storage.enable", _truth, "false"),
    _unused("segment.jitter.ms", _FROM_0, 0),
    _unused("unclean.leader.election.enable", _truth, "false"),
)
SETTINGS = {each.name: each for each in _ALL}
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
