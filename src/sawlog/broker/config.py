"""The settings of a broker: `sawlog serve`'s flags and its TOML file give the same fields.

```toml
listen = "127.0.0.1:9092"
advertise = "logs.example:9092"
auto_create_topics = true
default_partitions = 4
```
"""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..errors import InvalidConfig

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: object, *, default_port: int | None = None) -> Address:
        """From `HOST:PORT`, `[IPV6]:PORT` or, with a default port, `HOST`."""
        if not isinstance(text, str) or not text:
            raise InvalidConfig(f"an address must be HOST:PORT, not {text!r}")
        host, colon, port = text.rpartition(":")
        if not colon or text.endswith("]"):
            host, port = text, "" if default_port is None else str(default_port)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise InvalidConfig(f"an address must be HOST:PORT, not {text!r}")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Every setting of a broker, with its unit and default."""

    #: Where it listens. Port 0: any free one.
    listen: Address = Address("127.0.0.1", 9092)
    #: What clients are told to connect to; by default what it listens on.
    advertise: Address | None = None
    #: A listener that other machines can reach, without authentication, needs this.
    allow_anonymous: bool = False
    #: Where /metrics, /healthz and /readyz are served; None: nowhere.
    metrics: Address | None = None
    #: The id of this broker in Kafka's metadata.
    node_id: int = 1
    #: What clients are told as the id of the cluster; None: made of the store's id.
    cluster_id: str | None = None

    #: Whether a topic that a client asks for is created.
    auto_create_topics: bool = True
    #: The partitions of a topic that is created without a number.
    default_partitions: int = 1
    #: Settings of topics that are created here, under Kafka's names.
    topic_defaults: Mapping[str, str] | None = None

    #: The largest request.
    max_request_bytes: int = 100 * MIB
    #: Requests of one connection that are being answered; further ones wait in the socket.
    max_in_flight: int = 64
    #: The largest response to a fetch, whatever the client asks for.
    max_fetch_bytes: int = 55 * MIB
    #: Whether the records of a produced batch are parsed before it is stored; checksums and headers always are.
    check_records: bool = True
    #: Threads for what may wait for the disk.
    threads: int = 8
    #: How long a stop waits for requests that are being answered.
    stop_timeout_s: float = 10.0
    #: How often topics that other processes change are looked at.
    refresh_s: float = 1.0
    #: How often retention and compaction run; None: never.
    upkeep_interval_s: float | None = 60.0

    # Groups: `groups/settings.py` says what each is.
    group_min_session_timeout_ms: int = 100
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 0
    group_max_size: int = 10_000
    group_new_member_timeout_ms: int = 300_000
    group_empty_ms: int = 600_000
    offset_metadata_max_bytes: int = 4 * KIB
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000

    transaction_max_timeout_ms: int = 900_000
    #: A transactional id that was not used for this long is forgotten.
    transactional_id_expiration_ms: int = 604_800_000

    def __post_init__(self) -> None:
        for name, lowest in (
            ("default_partitions", 1),
            ("max_request_bytes", KIB),
            ("max_in_flight", 1),
            ("max_fetch_bytes", KIB),
            ("threads", 1),
            ("node_id", 0),
            ("group_min_session_timeout_ms", 1),
            ("group_max_size", 1),
            ("group_consumer_session_timeout_ms", 1),
            ("group_consumer_heartbeat_interval_ms", 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise InvalidConfig(f"{name} must be an integer, at least {lowest}, not {value!r}")
        if not (self.listen.is_loopback or self.allow_anonymous):
            raise InvalidConfig(
                f"{self.listen} can be reached from other machines, and nothing is authenticated: listen on 127.0.0.1, "
                "or say --allow-anonymous (allow_anonymous = true)"
            )


_ADDRESSES = {"listen", "advertise", "metrics"}
_NAMES = {each.name for each in fields(BrokerConfig)}


def changed(config: BrokerConfig, given: Mapping[str, Any]) -> BrokerConfig:
    """The config with some settings changed; addresses may be text. An unknown name is an error."""
    made: dict[str, Any] = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if name not in _NAMES:
            raise InvalidConfig(f"unknown setting {key!r}; use one of {', '.join(sorted(_NAMES))}")
        made[name] = Address.parse(value) if name in _ADDRESSES and isinstance(value, str) else value
    return replace(config, **made)


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a TOML file."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{path} is not TOML: {error}") from error


def from_text(name: str, text: str) -> Any:
    """The value of a setting that is given as text, as on a command line."""
    field = {each.name: each for each in fields(BrokerConfig)}.get(name.replace("-", "_"))
    if field is None:
        raise InvalidConfig(f"unknown setting {name!r}; use one of {', '.join(sorted(_NAMES))}")
    if field.name in _ADDRESSES or field.name == "cluster_id":
        return text
    if isinstance(field.default, bool):
        if text.lower() not in ("true", "false"):
            raise InvalidConfig(f"{name} must be true or false, not {text!r}")
        return text.lower() == "true"
    try:
        return int(text) if isinstance(field.default, int) else float(text)
    except ValueError as error:
        raise InvalidConfig(f"{name} must be a number, not {text!r}") from error
