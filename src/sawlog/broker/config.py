"""The settings of a broker: `sawlog serve`'s flags and its TOML file give the same fields.

```toml
listen = "127.0.0.1:9092"
advertise = "logs.example:9092"
auto_create_topics = true
default_partitions = 4
```

Each setting has a type, and beside it its kind: which values it may have. All are checked when a config is made,
however it was given, so that nothing wrong is found only when clients are served.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from ..errors import InvalidConfig
from ..store import settings as topic_settings
from ..store.directory.topic_entry import MAX_PARTITIONS
from .kinds import Choice, File, Listed, Maybe, Number, Several, Text, Truth, Whole, kinds_of, shown
from .security import mechanisms
from .security.acls import check_principal

KIB, MIB = 1 << 10, 1 << 20
#: The largest integer of most fields of Kafka's protocol.
_INT32 = 2**31 - 1
#: More than a machine has.
_LARGEST_BYTES = 1 << 50
_DAY_S, _CENTURY_MS = 86_400, 100 * 365 * 86_400_000
#: Not in a host: what would come of a URL, or of a typing error.
_NOT_IN_HOSTS = frozenset(" /@[]")


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: object, *, default_port: int | None = None) -> Address:
        """From `HOST:PORT`, `[IPV6]:PORT` or, with a default port, `HOST`."""
        if not isinstance(text, str) or not text:
            raise InvalidConfig(f"an address must be HOST:PORT, not {shown(text)}")
        host, colon, port = text.rpartition(":")
        if not colon or text.endswith("]"):
            host, port = text, "" if default_port is None else str(default_port)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        is_number = port.isascii() and port.isdigit() and len(port) <= 5
        if not _is_host(host) or not is_number or int(port) > 65535:
            raise InvalidConfig(f"an address must be HOST:PORT, not {shown(text)}")
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


def _is_host(text: str) -> bool:
    """Whether it can be a name or an IP address; the resolver would fail on others in ways of its own."""
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return 1 <= len(text) <= 255 and text.isprintable() and not _NOT_IN_HOSTS & set(text)


class _Place:
    """An address, or its text."""

    expected = "HOST:PORT"

    def read(self, value: Any) -> Address:
        return value if isinstance(value, Address) else Address.parse(value)

    def parse(self, text: str) -> str:
        return text


class _TopicSettings:
    """Settings of topics, checked as those of a topic that is created."""

    expected = "a table of topic settings"

    def read(self, value: Any) -> dict[str, topic_settings.Value]:
        if not isinstance(value, Mapping):
            raise ValueError
        for name, each in value.items():
            if isinstance(each, Mapping):  # TOML reads a.b = 1 as a table
                raise InvalidConfig(f'{name} is a table; a name with dots needs quotes, as in "retention.ms" = 1000')
        return topic_settings.check(value)

    def parse(self, text: str) -> Any:
        raise InvalidConfig("it is a table, which only a file can give")


_Flag = Annotated[bool, Truth()]
_MaybeFile = Annotated[str | None, Maybe(File())]
_Listener = Annotated[Address, _Place()]
_MaybeListener = Annotated[Address | None, Maybe(_Place())]
_Ms = Annotated[int, Whole(0, _INT32)]
_PositiveMs = Annotated[int, Whole(1, _INT32)]
_LongMs = Annotated[int, Whole(1, _CENTURY_MS)]


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Every setting of a broker, with its unit and default."""

    #: Where it listens. Port 0: any free one.
    listen: _Listener = Address("127.0.0.1", 9092)
    #: What clients are told to connect to; by default what it listens on.
    advertise: _MaybeListener = None
    #: A listener or metrics that other machines can reach, without authentication, need this.
    allow_anonymous: _Flag = False
    #: The certificate that the listener shows, with its chain, in PEM; None: connections are not encrypted.
    tls_certificate: _MaybeFile = None
    #: Its key; None: in the same file.
    tls_key: _MaybeFile = None
    #: The password of the key, if it is encrypted.
    tls_key_password_file: _MaybeFile = None
    #: Who signs the certificates of clients.
    tls_client_ca: _MaybeFile = None
    #: Whether clients need a certificate; None: if there is a `tls_client_ca` they do.
    tls_client_auth: Annotated[str | None, Maybe(Choice(mechanisms.CLIENT_AUTH))] = None
    #: How long a TLS handshake may take.
    handshake_timeout_s: Annotated[float, Number(0.001, _DAY_S)] = 5.0
    #: How clients may authenticate; if there is one, they have to.
    sasl_mechanisms: Annotated[tuple[str, ...], Several(mechanisms.OFFERED)] = ()
    #: How long a connection may take to authenticate.
    authentication_timeout_s: Annotated[float, Number(0.001, _DAY_S)] = 30.0
    #: Where /metrics, /healthz and /readyz are served; None: nowhere.
    metrics: _MaybeListener = None
    #: Principals that may do everything, whatever the access control rules say.
    super_users: Annotated[tuple[str, ...], Listed(Text(1024), separator=";")] = ()
    #: Whether everybody may use what no rule names, though there are rules; Kafka's setting of that name.
    allow_everyone_if_no_acl_found: _Flag = False
    #: The id of this broker in Kafka's metadata; None: 1, or for a store that several brokers serve one that is free.
    node_id: Annotated[int | None, Maybe(Whole(0, _INT32))] = None
    #: How often a broker tells the others that serve the same store that it is there, and when one that does not is
    #: left out.
    broker_heartbeat_s: Annotated[float, Number(0.01, _DAY_S)] = 3.0
    broker_expiry_s: Annotated[float, Number(0.01, _DAY_S)] = 10.0
    #: What clients are told as the id of the cluster; None: made of the store's id.
    cluster_id: Annotated[str | None, Maybe(Text(255))] = None

    #: Whether a topic that a client asks for is created.
    auto_create_topics: _Flag = True
    #: The partitions of a topic that is created without a number.
    default_partitions: Annotated[int, Whole(1, MAX_PARTITIONS)] = 1
    #: Settings of topics that are created here, under Kafka's names.
    topic_defaults: Annotated[Mapping[str, topic_settings.Value] | None, Maybe(_TopicSettings())] = None

    # Limits: docs/broker-limits.md says what happens when one is reached.
    #: The largest request.
    max_request_bytes: Annotated[int, Whole(KIB, _INT32)] = 100 * MIB
    #: The largest request of a client that has not authenticated itself, on a listener that asks for it.
    max_unauthenticated_request_bytes: Annotated[int, Whole(KIB, _INT32)] = 64 * KIB
    #: Open connections, in total and of one address. A connection without a request takes about 4 KiB.
    max_connections: Annotated[int, Whole(1, 1_000_000)] = 10_000
    max_connections_per_address: Annotated[int, Whole(1, 1_000_000)] = 5_000
    #: Requests of one connection that are being answered; further ones wait in the socket.
    max_in_flight: Annotated[int, Whole(1, 100_000)] = 64
    #: Requests that are not answered and responses that are not taken: of one connection, above which it is not read
    #: from, and of all together.
    max_connection_buffered_bytes: Annotated[int, Whole(KIB, _LARGEST_BYTES)] = 64 * MIB
    max_buffered_bytes: Annotated[int, Whole(KIB, _LARGEST_BYTES)] = 512 * MIB
    #: The largest response to a fetch, whatever the client asks for.
    max_fetch_bytes: Annotated[int, Whole(KIB, _INT32)] = 55 * MIB
    #: No produced batch is decompressed to more than this to be checked.
    max_decompressed_bytes: Annotated[int, Whole(KIB, _LARGEST_BYTES)] = 64 * MIB
    #: How long a client may take for its first request, for each further one from its first byte to its last, and for
    #: nothing at all. A large request may take longer if it comes at `min_frame_bytes_per_s`.
    first_frame_timeout_s: Annotated[float, Number(0.001, _DAY_S)] = 10.0
    frame_timeout_s: Annotated[float, Number(0.001, _DAY_S)] = 30.0
    min_frame_bytes_per_s: Annotated[int, Whole(1, _INT32)] = 16 * KIB
    idle_timeout_s: Annotated[float, Number(0.001, 365 * _DAY_S)] = 600.0
    #: Whether the records of a produced batch are parsed before it is stored; checksums and headers always are.
    check_records: _Flag = True
    #: Threads for what may wait for the disk.
    threads: Annotated[int, Whole(1, 1024)] = 8
    #: How long a stop waits for requests that are being answered.
    stop_timeout_s: Annotated[float, Number(0, _DAY_S)] = 10.0
    #: How often topics that other processes change are looked at.
    refresh_s: Annotated[float, Number(0.001, _DAY_S)] = 1.0
    #: How often retention and compaction run; None: never.
    upkeep_interval_s: Annotated[float | None, Maybe(Number(0.001, 365 * _DAY_S))] = 60.0

    # Groups: `groups/settings.py` says what each is.
    group_min_session_timeout_ms: _PositiveMs = 6_000
    group_max_session_timeout_ms: _PositiveMs = 1_800_000
    group_initial_rebalance_delay_ms: _Ms = 0
    group_max_size: Annotated[int, Whole(1, _INT32)] = 10_000
    group_new_member_timeout_ms: _PositiveMs = 300_000
    group_empty_ms: _LongMs = 600_000
    offset_metadata_max_bytes: Annotated[int, Whole(0, _INT32)] = 4 * KIB
    group_consumer_session_timeout_ms: _PositiveMs = 45_000
    group_consumer_heartbeat_interval_ms: _PositiveMs = 5_000

    transaction_max_timeout_ms: _PositiveMs = 900_000
    #: A transactional id that was not used for this long is forgotten.
    transactional_id_expiration_ms: _LongMs = 604_800_000

    def __post_init__(self) -> None:
        for name in _KINDS:
            object.__setattr__(self, name, checked(name, getattr(self, name)))
        mechanisms.check(self)
        for lower, upper in (
            ("group_min_session_timeout_ms", "group_max_session_timeout_ms"),
            ("group_consumer_heartbeat_interval_ms", "group_consumer_session_timeout_ms"),
            ("broker_heartbeat_s", "broker_expiry_s"),
        ):
            if getattr(self, lower) > getattr(self, upper):
                raise InvalidConfig(
                    f"{lower} must be at most {upper}, which is {getattr(self, upper)}, not {getattr(self, lower)}"
                )
        for principal in self.super_users:
            check_principal(principal)

    @property
    def has_access_control(self) -> bool:
        """Whether clients may manage access control rules: a setting shows that they are wanted. On a broker where
        every client is anonymous, the first rule would lock out all of them."""
        is_authenticated = bool(self.sasl_mechanisms or self.tls_client_ca)
        return is_authenticated or bool(self.super_users) or self.allow_everyone_if_no_acl_found


_KINDS = kinds_of(BrokerConfig)


def checked(name: str, value: object) -> Any:
    """The value of a setting, as the config keeps it; `InvalidConfig` if it is wrong."""
    kind = _KINDS[name_of(name)]
    try:
        return kind.read(value)
    except InvalidConfig as error:
        raise InvalidConfig(f"{name}: {error}") from error
    except ValueError as error:
        raise InvalidConfig(f"{name} must be {kind.expected}, not {shown(value)}") from error


def name_of(key: str) -> str:
    """The name of a setting, which may also be written with hyphens. An unknown one is an error."""
    name = key.replace("-", "_")
    if name not in _KINDS:
        raise InvalidConfig(f"unknown setting {shown(key)}; use one of {', '.join(sorted(_KINDS))}")
    return name


def changed(config: BrokerConfig, given: Mapping[str, Any]) -> BrokerConfig:
    """The config with some settings changed; addresses may be text. An unknown name is an error."""
    return replace(config, **{name_of(key): value for key, value in given.items()})


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, each checked. An error names the file."""
    import tomllib  # not before: most brokers have no such file

    try:
        with path.open("rb") as file:
            given = tomllib.load(file)
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number that is too long, tables too deep
        raise InvalidConfig(f"{path} is not TOML: {error}") from error
    try:
        return {name_of(key): _placed(path, name_of(key), checked(key, value)) for key, value in given.items()}
    except InvalidConfig as error:
        raise InvalidConfig(f"{path}: {error}") from error


def _placed(config: Path, name: str, value: Any) -> Any:
    """The value of a setting of a config file; a relative path is relative to that file."""
    is_path = isinstance(getattr(_KINDS[name], "kind", None), File)
    return str(config.parent / value) if is_path else value


def from_text(name: str, text: str) -> Any:
    """The value of a setting that is given as text, as on a command line."""
    kind = _KINDS[name_of(name)]
    try:
        value = kind.parse(text)
    except InvalidConfig as error:
        raise InvalidConfig(f"{name}: {error}") from error
    except ValueError as error:
        raise InvalidConfig(f"{name} must be {kind.expected}, not {shown(text)}") from error
    return checked(name, value)
