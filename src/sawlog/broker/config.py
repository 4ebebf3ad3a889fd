"""The settings of a broker. The flags of `sawlog serve` and its TOML file set the same fields.

```toml
listen = "127.0.0.1:9092"
advertise = "logs.example:9092"
auto_create_topics = true
default_partitions = 4
```

Each setting has a type that defines its valid values, next to its annotation: `threads: Annotated[int, whole(1, 1024)]
= 8`. All are checked when a configuration is created, from whatever source, so that no error surfaces only when clients
are served.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from ..errors import InvalidConfig
from ..store import settings as topic_settings
from ..store.directory.topic_entry import MAX_PARTITIONS
from .security.acls import check_principal
from .security.credentials import MECHANISMS, OFFERED, PLAIN

# --- types of settings


#: Maximum length of an invalid value in a message.
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class SettingType:
    """The valid values of a setting."""

    #: Completes "must be" in a message.
    expected: str
    is_valid: Callable[[Any], bool] = lambda value: True
    #: Returns the setting for a valid value. Raises `ValueError` if it is invalid after all.
    convert: Callable[[Any], Any] = lambda value: value
    #: Parses the text of a command line, to be passed to `read`. Raises `ValueError` if it is invalid.
    parse: Callable[[str], Any] = str
    #: True if the value is the path of a file. In a configuration file, a relative path is relative to that file.
    is_file: bool = False

    def read(self, value: Any) -> Any:
        """Return the checked value. Raise `ValueError`, with a message if `expected` does not explain it."""
        if not self.is_valid(value):
            raise ValueError
        return self.convert(value)


def shown(value: object) -> str:
    """Format a value for a message: shortened, and even if it is a number that Python refuses to print."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of more than 4,000 digits"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _in_range(kinds: Any, lowest: float, highest: float) -> Callable[[Any], bool]:
    def is_valid(value: Any) -> bool:
        return isinstance(value, kinds) and not isinstance(value, bool) and lowest <= value <= highest

    return is_valid


def whole(lowest: int, highest: int) -> SettingType:
    return SettingType(f"an integer from {lowest} to {highest}", _in_range((int,), lowest, highest), parse=int)


def number(lowest: float, highest: float) -> SettingType:
    is_valid = _in_range((int, float), lowest, highest)
    return SettingType(f"a number from {lowest:g} to {highest:.0f}", is_valid, float, float)


def _truth_of(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


#: A boolean. Nothing else is accepted: the string "no" would be true.
TRUTH = SettingType("true or false", lambda value: isinstance(value, bool), parse=_truth_of)


def text(longest: int, expected: str | None = None, *, is_file: bool = False) -> SettingType:
    """Printable text."""
    return SettingType(
        expected or f"a text of 1 to {longest} printable characters",
        lambda value: isinstance(value, str) and 1 <= len(value) <= longest and value.isprintable(),
        is_file=is_file,
    )


#: The path of a file.
FILE = text(4096, "the path of a file", is_file=True)


def choice(*words: str) -> SettingType:
    return SettingType(" or ".join(words), lambda value: isinstance(value, str) and value in words)


def several(*words: str) -> SettingType:
    """A list of distinct words; comma-separated on a command line."""

    def is_valid(value: Any) -> bool:
        if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
            return False
        return set(value) <= set(words) and len(set(value)) == len(value)

    def parse(text: str) -> list[str]:
        return [each.strip() for each in text.split(",")] if text else []

    return SettingType(f"a list of {', '.join(words)}", is_valid, tuple, parse)


def maybe(kind: SettingType) -> SettingType:
    """Another type, or None. A file and a command line cannot express None; they omit the setting."""
    return replace(
        kind,
        is_valid=lambda value: value is None or kind.is_valid(value),
        convert=lambda value: None if value is None else kind.convert(value),
    )


def listed(kind: SettingType, *, separator: str) -> SettingType:
    """A list of values of another type, joined by a separator on a command line."""

    return SettingType(
        f"a list, of which each is {kind.expected}",
        lambda value: isinstance(value, (list, tuple)),
        lambda value: tuple(kind.read(each) for each in value),
        lambda text: [kind.parse(each.strip()) for each in text.split(separator) if each.strip()],
    )


# --- the settings


#: Values of tls_client_auth.
CLIENT_AUTH = ("none", "requested", "required")
KIB, MIB = 1 << 10, 1 << 20
#: Maximum of most integer fields of Kafka's protocol.
_INT32 = 2**31 - 1
#: More than any machine has.
_LARGEST_BYTES = 1 << 50
_DAY_S, _CENTURY_MS = 86_400, 100 * 365 * 86_400_000
#: Characters that a host cannot contain: they come from URLs or typing errors.
_NOT_IN_HOSTS = frozenset(" /@[]")


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: object, *, default_port: int | None = None) -> Address:
        """Parse `HOST:PORT`, `[IPV6]:PORT` or, with a default port, `HOST`."""
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
        """True if only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_host(text: str) -> bool:
    """Return whether the text can be a host name or an IP address. The resolver fails on others with obscure errors."""
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return 1 <= len(text) <= 255 and text.isprintable() and not _NOT_IN_HOSTS & set(text)


def _read_address(value: Any) -> Address:
    return value if isinstance(value, Address) else Address.parse(value)


def _read_topic_settings(value: Any) -> dict[str, topic_settings.Value]:
    """Check topic settings as for a new topic."""
    if not isinstance(value, Mapping):
        raise ValueError
    for name, each in value.items():
        if isinstance(each, Mapping):  # TOML reads a.b = 1 as a table
            raise InvalidConfig(f'{name} is a table; a name with dots needs quotes, as in "retention.ms" = 1000')
    return topic_settings.check(value)


def _no_text(text: str) -> Any:
    raise InvalidConfig("it is a table, which only a file can give")


_ADDRESS = SettingType("HOST:PORT", convert=_read_address)
_TOPIC_SETTINGS = SettingType("a table of topic settings", convert=_read_topic_settings, parse=_no_text)
_Flag = Annotated[bool, TRUTH]
_MaybeFile = Annotated[str | None, maybe(FILE)]
_Listener = Annotated[Address, _ADDRESS]
_MaybeListener = Annotated[Address | None, maybe(_ADDRESS)]
_Ms = Annotated[int, whole(0, _INT32)]
_PositiveMs = Annotated[int, whole(1, _INT32)]
_LongMs = Annotated[int, whole(1, _CENTURY_MS)]


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Every setting of a broker, with its unit and default."""

    #: Listening address. Port 0 selects a free port.
    listen: _Listener = Address("127.0.0.1", 9092)
    #: Address that clients connect to; by default the listening address.
    advertise: _MaybeListener = None
    #: Required for a listener or metrics that other machines can reach without authentication.
    allow_anonymous: _Flag = False
    #: Certificate of the listener, with its chain, in PEM. None: connections are not encrypted.
    tls_certificate: _MaybeFile = None
    #: Private key; None: in the same file.
    tls_key: _MaybeFile = None
    #: File with the password of an encrypted key.
    tls_key_password_file: _MaybeFile = None
    #: CA that signs the certificates of clients.
    tls_client_ca: _MaybeFile = None
    #: Policy for certificates of clients. None: they are required if `tls_client_ca` is set.
    tls_client_auth: Annotated[str | None, maybe(choice(*CLIENT_AUTH))] = None
    #: Timeout of a TLS handshake.
    handshake_timeout_s: Annotated[float, number(0.001, _DAY_S)] = 5.0
    #: SASL mechanisms that clients may use. If any are set, clients must authenticate.
    sasl_mechanisms: Annotated[tuple[str, ...], several(*OFFERED)] = ()
    #: Timeout of authentication.
    authentication_timeout_s: Annotated[float, number(0.001, _DAY_S)] = 30.0
    #: Address of /metrics, /healthz and /readyz; None: they are not served.
    metrics: _MaybeListener = None
    #: Principals that may do everything, regardless of access control rules.
    super_users: Annotated[tuple[str, ...], listed(text(1024), separator=";")] = ()
    #: Open resources that no rule covers to every client, even if there are rules. Kafka's setting of that name.
    allow_everyone_if_no_acl_found: _Flag = False
    #: Id of this broker in Kafka's metadata. None: 1, or a free one if several brokers serve the store.
    node_id: Annotated[int | None, maybe(whole(0, _INT32))] = None
    #: Interval of heartbeats between brokers that serve the same store, and the age after which a silent broker is left
    #: out.
    broker_heartbeat_s: Annotated[float, number(0.01, _DAY_S)] = 3.0
    broker_expiry_s: Annotated[float, number(0.01, _DAY_S)] = 10.0
    #: Cluster id in Kafka's metadata; None: derived from the store's id.
    cluster_id: Annotated[str | None, maybe(text(255))] = None

    #: Create a missing topic when a client asks for it.
    auto_create_topics: _Flag = True
    #: Number of partitions of a topic created without one.
    default_partitions: Annotated[int, whole(1, MAX_PARTITIONS)] = 1
    #: Settings of topics created here, under Kafka's names.
    topic_defaults: Annotated[Mapping[str, topic_settings.Value] | None, maybe(_TOPIC_SETTINGS)] = None

    # Limits: docs/broker-limits.md says what happens when one is reached.
    #: Maximum size of a request.
    max_request_bytes: Annotated[int, whole(KIB, _INT32)] = 100 * MIB
    #: Maximum size of a request before authentication, on a listener that requires it.
    max_unauthenticated_request_bytes: Annotated[int, whole(KIB, _INT32)] = 64 * KIB
    #: Maximum number of connections, in total and per address. An idle connection takes about 4 KiB.
    max_connections: Annotated[int, whole(1, 1_000_000)] = 10_000
    max_connections_per_address: Annotated[int, whole(1, 1_000_000)] = 5_000
    #: Maximum number of requests in progress per connection; more wait in the socket.
    max_in_flight: Annotated[int, whole(1, 100_000)] = 64
    #: Maximum bytes of requests in progress and unread responses: per connection, above which it is not read from, and
    #: in total.
    max_connection_buffered_bytes: Annotated[int, whole(KIB, _LARGEST_BYTES)] = 64 * MIB
    max_buffered_bytes: Annotated[int, whole(KIB, _LARGEST_BYTES)] = 512 * MIB
    #: Maximum size of a fetch response, whatever the client asks for.
    max_fetch_bytes: Annotated[int, whole(KIB, _INT32)] = 55 * MIB
    #: Maximum size to which a produced batch is decompressed for checking.
    max_decompressed_bytes: Annotated[int, whole(KIB, _LARGEST_BYTES)] = 64 * MIB
    #: Timeouts of the first request, of each later one from its first byte to its last, and of an idle connection. A
    #: large request may take longer if it arrives at `min_frame_bytes_per_s`.
    first_frame_timeout_s: Annotated[float, number(0.001, _DAY_S)] = 10.0
    frame_timeout_s: Annotated[float, number(0.001, _DAY_S)] = 30.0
    min_frame_bytes_per_s: Annotated[int, whole(1, _INT32)] = 16 * KIB
    idle_timeout_s: Annotated[float, number(0.001, 365 * _DAY_S)] = 600.0
    #: Parse the records of a produced batch before it is stored. Checksums and headers are always checked.
    check_records: _Flag = True
    #: Threads for calls that may block on the disk.
    threads: Annotated[int, whole(1, 1024)] = 8
    #: Grace period of a stop for requests in progress.
    stop_timeout_s: Annotated[float, number(0, _DAY_S)] = 10.0
    #: Interval between checks for changes by other processes.
    refresh_s: Annotated[float, number(0.001, _DAY_S)] = 1.0
    #: Interval of retention and compaction; None: never.
    maintenance_interval_s: Annotated[float | None, maybe(number(0.001, 365 * _DAY_S))] = 60.0

    # Groups.
    #: Shortest and longest session timeout of a member.
    group_min_session_timeout_ms: _PositiveMs = 6_000
    group_max_session_timeout_ms: _PositiveMs = 1_800_000
    #: Time that the first members of a group wait for others. Kafka waits 3 s, which every test and every start of a
    #: single consumer pays for.
    group_initial_rebalance_delay_ms: _Ms = 0
    #: Maximum number of members.
    group_max_size: Annotated[int, whole(1, _INT32)] = 10_000
    #: Maximum time that a new member waits for its first generation. It sends no heartbeats meanwhile, so without a
    #: limit the group would wait for a client that has given up.
    group_new_member_timeout_ms: _PositiveMs = 300_000
    #: Lifetime of a group without members and offsets. Kafka calls it offsets.retention.check.interval.ms.
    group_empty_ms: _LongMs = 600_000
    #: Maximum length of the text committed with an offset.
    offset_metadata_max_bytes: Annotated[int, whole(0, _INT32)] = 4 * KIB
    #: Session timeout and heartbeat interval of members of the KIP-848 protocol.
    group_consumer_session_timeout_ms: _PositiveMs = 45_000
    group_consumer_heartbeat_interval_ms: _PositiveMs = 5_000

    #: Longest timeout of a transaction.
    transaction_max_timeout_ms: _PositiveMs = 900_000
    #: Time after which an unused transactional id is dropped.
    transactional_id_expiration_ms: _LongMs = 604_800_000

    def __post_init__(self) -> None:
        for name in _TYPES:
            object.__setattr__(self, name, checked(name, getattr(self, name)))
        _check_security(self)
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
    def client_auth(self) -> str:
        """The effective `tls_client_auth`. With `tls_client_ca`, the default is "required"."""
        return self.tls_client_auth or ("none" if self.tls_client_ca is None else "required")

    @property
    def has_access_control(self) -> bool:
        """True if clients may manage access control rules: a setting must show that they are wanted. On a broker where
        every client is anonymous, the first rule would lock out all of them."""
        is_authenticated = bool(self.sasl_mechanisms or self.tls_client_ca)
        return is_authenticated or bool(self.super_users) or self.allow_everyone_if_no_acl_found


_WITH_CERTIFICATE = ("tls_key", "tls_key_password_file", "tls_client_ca", "tls_client_auth")


def _check_security(config: BrokerConfig) -> None:
    """Raise `InvalidConfig` if settings contradict each other, or would silently admit unauthenticated clients from
    other machines."""
    if config.tls_certificate is None:
        for name in _WITH_CERTIFICATE:
            if getattr(config, name) is not None:
                raise InvalidConfig(f"{name} needs tls_certificate: the listener does not use TLS")
        if PLAIN in config.sasl_mechanisms:
            raise InvalidConfig(
                "sasl_mechanisms: PLAIN sends passwords in clear text, so it needs TLS (tls_certificate); "
                f"use {' or '.join(sorted(MECHANISMS))} without it"
            )
    if config.client_auth != "none" and config.tls_client_ca is None:
        raise InvalidConfig(f'tls_client_auth = "{config.tls_client_auth}" needs tls_client_ca, who signs certificates')
    if config.client_auth == "none" and config.tls_client_ca is not None:
        raise InvalidConfig('tls_client_ca is not used with tls_client_auth = "none"')
    _check_reach(config)


def _check_reach(config: BrokerConfig) -> None:
    is_known = bool(config.sasl_mechanisms) or config.client_auth == "required"
    for reached, authenticated in ((config.listen, is_known), (config.metrics, False)):
        if reached is not None and not (reached.is_loopback or authenticated or config.allow_anonymous):
            raise InvalidConfig(
                f"{reached} can be reached from other machines, and nothing is authenticated there: use 127.0.0.1, "
                + ("" if reached is config.metrics else "set sasl_mechanisms or tls_client_ca, ")
                + "or say --allow-anonymous (allow_anonymous = true)"
            )


#: The type of each setting. One without a type is an error at import, so that no setting is left unchecked.
_TYPES: Mapping[str, SettingType] = {
    name: get_args(hint)[1] for name, hint in get_type_hints(BrokerConfig, include_extras=True).items()
}


def checked(name: str, value: object, types: Mapping[str, SettingType] = _TYPES) -> Any:
    """Return the checked value of a setting. Raise `InvalidConfig` if it is invalid."""
    kind = types[name_of(name, types)]
    try:
        return kind.read(value)
    except InvalidConfig as error:
        raise InvalidConfig(f"{name}: {error}") from error
    except ValueError as error:
        raise InvalidConfig(f"{name} must be {kind.expected}, not {shown(value)}") from error


def name_of(key: str, types: Mapping[str, SettingType] = _TYPES) -> str:
    """Return the name of a setting, which may also be spelled with hyphens. An unknown name is an error."""
    name = key.replace("-", "_")
    if name not in types:
        raise InvalidConfig(f"unknown setting {shown(key)}; use one of {', '.join(sorted(types))}")
    return name


def changed(config: BrokerConfig, given: Mapping[str, Any]) -> BrokerConfig:
    """Return the configuration with some settings changed; addresses may be text. An unknown name is an error."""
    return replace(config, **{name_of(key): value for key, value in given.items()})


def read_toml(
    path: Path, types: Mapping[str, SettingType] = _TYPES, *, misplaced: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Read and check the settings of a TOML file; relative paths are relative to it. An error names the file.
    `misplaced` has settings that do not belong into the file, with the reason; then no error quotes its text."""
    import tomllib  # imported late: most brokers have no such file

    try:
        with path.open("rb") as file:
            given = tomllib.load(file)
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number too long, tables too deep
        raise InvalidConfig(f"{path} is not TOML" + ("" if misplaced else f": {error}")) from None
    try:
        for key, reason in (misplaced or {}).items():
            if key in given:
                raise InvalidConfig(reason)
        found = {name_of(key, types): checked(key, value, types) for key, value in given.items()}
    except InvalidConfig as error:
        raise InvalidConfig(f"{path}: {error}") from error
    return {name: str(path.parent / value) if types[name].is_file else value for name, value in found.items()}


def from_text(name: str, text: str) -> Any:
    """Parse a setting given as text, as on a command line."""
    kind = _TYPES[name_of(name)]
    try:
        value = kind.parse(text)
    except InvalidConfig as error:
        raise InvalidConfig(f"{name}: {error}") from error
    except ValueError as error:
        raise InvalidConfig(f"{name} must be {kind.expected}, not {shown(text)}") from error
    return checked(name, value)
