"""Connections to a Kafka cluster through kafka-python: requests, leaders and coordinators, retries and errors.

kafka-python keeps the sockets, negotiates versions, encrypts, authenticates and encodes messages. `Cluster` sends its
requests to the right broker, retries what may be repeated, and raises sawlog's errors. Batches are sent and received
as raw bytes, because sawlog encodes, compresses and checks them itself.

`Access` is the encryption and authentication of a client, from the file of `-b FILE.toml`:

```toml
broker = "logs.example:9092"
tls_ca = "ca.pem"                   # signer of the broker's certificate; or tls = true: the system's authorities
user = "ann"
password_file = "ann.password"      # without it, the command line asks
mechanism = "SCRAM-SHA-512"
tls_certificate = "ann.pem"         # if the broker requires client certificates
tls_key = "ann.key"
```

Relative paths are relative to the file. The password has its own file, so that this one may be shared.
"""

from __future__ import annotations

import logging
import socket
import ssl
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from .. import errors
from ..clock import Deadline
from ..errors import (
    AuthenticationFailed,
    BrokerError,
    BrokerRefused,
    BrokerTimeout,
    BrokerUnavailable,
    InvalidConfig,
    MissingPackage,
    SawlogError,
    TopicNotFound,
)
from ..store.base import TopicPartition
from .config import FILE, TRUTH, Address, SettingType, choice, read_toml, text
from .security.credentials import OFFERED, PLAIN
from .security.tls import load_authorities, load_chain, read_password
from .wire import ErrorCode

with warnings.catch_warnings():  # kafka-python reads its schemas with a function that Python 3.11 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    try:
        from kafka import errors as kafka_errors
        from kafka.net.manager import KafkaConnectionManager
        from kafka.net.selector import NetworkSelector
        from kafka.protocol import admin as admin  # noqa: PLC0414  for `remote`
        from kafka.protocol import consumer as consumer  # noqa: PLC0414  for `remote`
        from kafka.protocol import producer as producer  # noqa: PLC0414  for `remote`
        from kafka.protocol.api_message import ApiMessage
        from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
        from kafka.protocol.sasl import SaslHandshakeRequest
    except ImportError as error:
        raise MissingPackage(
            "-b HOST:PORT needs kafka-python 3: run pip install '.[cli]' in a clone of sawlog"
        ) from error

    class ConsumerGroupDescribeRequest(ApiMessage, load_json=__package__):  # type: ignore[call-arg, misc]
        """Describes groups of the new consumer protocol (KIP-848), which kafka-python lacks."""

    class ConsumerGroupDescribeResponse(ApiMessage, load_json=__package__):  # type: ignore[call-arg, misc]
        """The response to it."""


T = TypeVar("T")

#: Times with a special meaning in ListOffsets.
LATEST, EARLIEST = -1, -2
#: Pause between attempts; it doubles up to the second value.
_PAUSE_S, _MAX_PAUSE_S = 0.05, 1.0
#: Largest accepted response. The size of a fetch is limited in its request.
_MAX_RESPONSE_BYTES = 1 << 30

#: Error codes that correspond to one of sawlog's errors.
_ERRORS: Final[dict[int, type[SawlogError]]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: errors.TopicNotFound,
    ErrorCode.UNKNOWN_TOPIC_ID: errors.TopicNotFound,
    ErrorCode.TOPIC_ALREADY_EXISTS: errors.TopicExists,
    ErrorCode.INVALID_TOPIC_EXCEPTION: errors.InvalidTopicName,
    ErrorCode.INVALID_CONFIG: errors.InvalidConfig,
    ErrorCode.INVALID_PARTITIONS: errors.InvalidConfig,
    ErrorCode.INVALID_REPLICATION_FACTOR: errors.InvalidConfig,
    ErrorCode.INVALID_GROUP_ID: errors.InvalidConfig,
    ErrorCode.CORRUPT_MESSAGE: errors.CorruptBatch,
    ErrorCode.MESSAGE_TOO_LARGE: errors.RecordTooLarge,
    ErrorCode.RECORD_LIST_TOO_LARGE: errors.RecordTooLarge,
    ErrorCode.INVALID_RECORD: errors.InvalidRecord,
    ErrorCode.INVALID_TIMESTAMP: errors.InvalidRecord,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: errors.UnsupportedCompression,
    ErrorCode.GROUP_ID_NOT_FOUND: errors.GroupNotFound,
    ErrorCode.NON_EMPTY_GROUP: errors.GroupActive,
    ErrorCode.UNKNOWN_MEMBER_ID: errors.GroupActive,
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: errors.GroupActive,
}

#: Codes that are retried with fresh metadata. An unknown topic is reported at once.
_RETRIED: Final = {
    *(ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REPLICA_NOT_AVAILABLE),
    *(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR),
    *(ErrorCode.NOT_CONTROLLER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH),
    *(ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.UNSTABLE_OFFSET_COMMIT),
}

_NAMES: Final = {each.value: each.name for each in ErrorCode}


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise the error for a code: with the broker's message if it sent one, otherwise with `what` failed."""
    if code == ErrorCode.NONE:
        return
    name = _NAMES.get(code, f"error {code}")
    text = message or f"{what}: {name.lower().replace('_', ' ')}"
    kind = _ERRORS.get(code)
    raise BrokerRefused(f"{text} ({name})", code=code, name=name) if kind is None else kind(text)


def message(kind: Any, **fields: Any) -> Any:
    """Build a message of kafka-python with nested structures from dictionaries."""
    for name, value in fields.items():
        field = kind.fields.get(name)
        if field is not None and field.is_struct_array() and value is not None:
            fields[name] = [message(field.data_class, **each) for each in value]
    return kind(**fields)


# --- access


_TYPES: Final[dict[str, SettingType]] = {
    "broker": text(1024),
    "tls": TRUTH,
    "tls_ca": FILE,
    "tls_certificate": FILE,
    "tls_key": FILE,
    "tls_key_password_file": FILE,
    "user": text(255),
    "password_file": FILE,
    "mechanism": choice(*OFFERED),
}
_MISPLACED: Final = {"password": "a password belongs into a file of its own: password_file"}
_TLS: Final = ("tls_ca", "tls_certificate", "tls_key", "tls_key_password_file")
_DEFAULT: Final = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True)
class Login:
    """A user and a password. Neither `repr` nor messages show the password."""

    user: str
    password: str = field(repr=False)
    mechanism: str = _DEFAULT


@dataclass(frozen=True, slots=True)
class Access:
    """TLS and login of a connection; without `tls` it is not encrypted."""

    tls: ssl.SSLContext | None = None
    login: Login | None = None

    def __post_init__(self) -> None:
        if self.login is not None and self.login.mechanism == PLAIN and self.tls is None:
            raise AuthenticationFailed("PLAIN sends the password in clear text, so it needs TLS")

    def kafka_settings(self) -> dict[str, Any]:
        """Return the settings of kafka-python."""
        transport, login = "PLAINTEXT" if self.tls is None else "SSL", self.login
        if login is None:
            return {"security_protocol": transport, "ssl_context": self.tls}
        # kafka-python does not escape a user's name for SCRAM
        user = login.user if login.mechanism == PLAIN else login.user.replace("=", "=3D").replace(",", "=2C")
        return {
            "security_protocol": f"SASL_{transport}",
            "ssl_context": self.tls,
            "sasl_mechanism": login.mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": login.password,
        }


def encrypted(
    ca: str | None = None, certificate: str | None = None, key: str | None = None, key_password_file: str | None = None
) -> ssl.SSLContext:
    """Return a TLS context that checks the broker's certificate and name, with a client certificate if one is given."""
    if ca is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load_authorities(context, ca, "tls_ca")
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        load_chain(context, certificate, key, key_password_file)
    return context


def read_access(path: Path, ask: Callable[[str], str]) -> tuple[str, Access]:
    """Return the address and the access that a file describes. `ask` is called with the user if a password is needed
    and no file contains it."""
    given = read_toml(path, _TYPES, misplaced=_MISPLACED)
    try:
        if "broker" not in given:
            raise InvalidConfig('it does not say where the broker is: broker = "HOST:PORT"')
        return given["broker"], _access(given, ask)
    except InvalidConfig as error:
        raise InvalidConfig(f"{path}: {error}") from error


def _access(given: dict[str, Any], ask: Callable[[str], str]) -> Access:
    tls, wanted = None, any(name in given for name in _TLS)
    if given.get("tls", wanted):
        tls = encrypted(*(given.get(name) for name in _TLS))
    elif wanted:
        raise InvalidConfig("tls = false, but there are settings of TLS")
    user, mechanism = given.get("user"), given.get("mechanism")
    if user is None:
        if "password_file" in given or mechanism is not None:
            raise InvalidConfig("password_file and mechanism need a user")
        return Access(tls)
    if mechanism == PLAIN and tls is None:
        raise InvalidConfig("PLAIN sends the password in clear text, so it needs TLS")
    file = given.get("password_file")
    password = ask(user) if file is None else read_password(Path(file))
    return Access(tls, Login(user, password, mechanism or _DEFAULT))


# --- the cluster


class Cluster:
    """The brokers of a cluster. Every method blocks and may be called from any thread."""

    def __init__(self, bootstrap: Sequence[Address], *, client_id: str, timeout_s: float, access: Access) -> None:
        """Connect to the first address that answers; raise the first failure if none does."""
        logging.getLogger("kafka").addHandler(logging.NullHandler())  # failures are raised; stderr is the command's
        #: The bootstrap addresses, for messages.
        self.name = ",".join(map(str, bootstrap))
        self.timeout_s = timeout_s
        self._access = access
        self._leaders: dict[TopicPartition, int] = {}
        self._coordinators: dict[str, int] = {}
        self._controller = -1
        self._net = NetworkSelector(client_id=client_id)
        self._manager = KafkaConnectionManager(
            self._net,
            bootstrap_servers=[str(each) for each in bootstrap],
            client_id=client_id,
            client_software_name="sawlog",
            request_timeout_ms=timeout_s * 1000,
            reconnect_backoff_max_ms=1000,
            receive_message_max_bytes=_MAX_RESPONSE_BYTES,
            **access.kafka_settings(),
        )
        self._net.start()
        try:
            self._connect(bootstrap)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections. Idempotent."""
        if not self._manager.closed:
            self._net.run(self._manager.close)
            self._net.close()

    # --- the first connection

    def _connect(self, bootstrap: Sequence[Address]) -> None:
        failure: BrokerError | None = None
        nodes = {(each.host, each.port): each.node_id for each in self._manager.cluster.bootstrap_brokers()}
        for address in bootstrap:
            try:
                self._probe(address)
                self._net.run(self._greet, nodes[address.host, address.port])
            except BrokerError as error:
                failure = failure or error
            except Exception as error:
                failure = failure or self._explained(error, address)
            else:
                return
        assert failure is not None, "a cluster has at least one address"
        raise failure

    def _probe(self, address: Address) -> None:
        """Connect and close again. kafka-python would retry for ever, and leaks the socket if a connection fails."""
        tls, timeout_s = self._access.tls, self.timeout_s
        try:
            with socket.create_connection((address.host, address.port), timeout_s) as plain:
                if tls is not None:
                    tls.wrap_socket(plain, server_hostname=address.host).close()
        except ssl.SSLCertVerificationError as error:
            refused = f"the certificate of {address} is refused: {error.verify_message}"
            raise AuthenticationFailed(refused) from error
        except ssl.SSLError as error:
            raise BrokerUnavailable(f"no TLS with {address}: {error.reason or error}") from error
        except TimeoutError as error:
            raise BrokerTimeout(f"no broker answers at {address} within {timeout_s:g} s") from error
        except OSError as error:
            raise BrokerUnavailable(f"no broker at {address}: {error.strerror or error}") from error

    async def _greet(self, node: str) -> None:
        """Connect, authenticate and learn the brokers of the cluster."""
        timeout_ms = self.timeout_s * 1000
        connection = self._manager.get_connection(node, timeout_ms, refresh_metadata_on_err=False)
        await self._manager.wait_for(connection.init_future, timeout_ms)  # a TLS handshake has no time limit of its own
        self._learn(await connection.send_request(MetadataRequest(topics=[])))
        connection.close()

    def _explained(self, error: Exception, address: Address) -> BrokerError:
        """Return the reason why a broker that accepted a connection did not answer."""
        login = self._access.login
        # kafka-python raises ValueError if the broker cannot prove that it knows the user's secret
        if login is not None and isinstance(error, (kafka_errors.SaslAuthenticationFailedError, ValueError)):
            return AuthenticationFailed(f"{address} does not accept {login.user!r} and the password")
        unsupported = (kafka_errors.UnsupportedSaslMechanismError, kafka_errors.IllegalSaslStateError)
        if login is not None and isinstance(error, unsupported):
            offered = self._mechanisms(address)
            return AuthenticationFailed(
                f"{address} does not offer {login.mechanism}" + (offered and f", but {offered}")
            )
        if isinstance(error, (kafka_errors.KafkaTimeoutError, kafka_errors.RequestTimedOutError)):
            return BrokerTimeout(f"{address} did not answer within {self.timeout_s:g} s")
        if isinstance(error, kafka_errors.KafkaConnectionError):
            return BrokerUnavailable(f"{address} has closed the connection: it may want TLS, a user or a certificate")
        return BrokerUnavailable(f"what listens on {address} is not a Kafka broker: {error}")

    def _mechanisms(self, address: Address) -> str:
        """Return the SASL mechanisms that the broker offers, which kafka-python does not pass on; "" if unknown."""
        bare = KafkaConnectionManager(
            self._net, bootstrap_servers=[str(address)], **Access(self._access.tls).kafka_settings()
        )

        async def ask() -> Any:
            connection = bare.get_connection("bootstrap-0", self.timeout_s * 1000, refresh_metadata_on_err=False)
            return await connection.send_request(SaslHandshakeRequest(mechanism="", max_version=1))

        try:
            return ", ".join(self._net.run(ask).mechanisms)
        except kafka_errors.KafkaError:
            return ""
        finally:
            self._net.run(bare.close)

    # --- requests

    def supports(self, kind: type[ApiMessage]) -> bool:
        """Return whether the cluster knows this request."""
        try:
            self._manager.broker_version_data.api_version(kind)
        except kafka_errors.IncompatibleBrokerVersion:
            return False
        return True

    def call(self, kind: Any, node: int | None = None, *, wait_s: float = 0.0, **fields: Any) -> Any:
        """Send a request to a broker, by default to any, and return the response. `wait_s` is the time that the broker
        may take on purpose."""
        request = message(kind, **fields)
        timeout_s = self.timeout_s + wait_s

        async def exchange() -> Any:
            chosen = self._manager.least_loaded_node() if node is None else node
            connection = self._manager.get_connection(chosen, refresh_metadata_on_err=False)
            await self._manager.wait_for(connection.init_future, timeout_s * 1000)
            return await connection.send_request(request, request_timeout_ms=timeout_s * 1000)

        name = request.name.removesuffix("Request")
        try:
            return self._net.run(exchange)
        except kafka_errors.IncompatibleBrokerVersion as error:
            code = ErrorCode.UNSUPPORTED_VERSION
            raise BrokerRefused(
                f"the broker at {self.name} offers no version of {name} that kafka-python knows",
                code=code,
                name=code.name,
            ) from error
        except (kafka_errors.KafkaTimeoutError, kafka_errors.RequestTimedOutError) as error:
            raise BrokerTimeout(f"{self.name} did not answer {name} within {timeout_s:g} s") from error
        except kafka_errors.KafkaError as error:
            raise BrokerUnavailable(f"the connection to {self.name} failed: {error}") from error

    def retry(self, attempt: Callable[[], T], *, topics: Iterable[str] = (), once: bool = False) -> T:
        """Call `attempt` until it succeeds or the time is over: again after a change of leader, and after a lost
        connection unless it may run only `once`."""
        deadline = Deadline(self.timeout_s, first_pause_s=_PAUSE_S, longest_pause_s=_MAX_PAUSE_S)
        while True:
            try:
                return attempt()
            except (BrokerRefused, BrokerUnavailable) as error:
                if once if isinstance(error, BrokerUnavailable) else error.code not in _RETRIED:
                    raise
                deadline.pause(or_raise=error)
            stale = set(topics)
            self._leaders = {place: node for place, node in self._leaders.items() if place[0] not in stale}
            self._coordinators.clear()
            self._controller = -1

    # --- who does what

    def metadata(self, topics: Iterable[str] | None) -> Any:
        """Return the metadata of some topics, or of all. Creates none."""
        named = None if topics is None else [{"name": name} for name in topics]
        found = self.call(MetadataRequest, topics=named, allow_auto_topic_creation=False)
        self._learn(found)
        return found

    def _learn(self, metadata: Any) -> None:
        self._manager.cluster.update_metadata(metadata)
        self._controller = metadata.controller_id
        for topic in metadata.topics:
            for part in topic.partitions:
                self._leaders[topic.name, part.partition_index] = part.leader_id

    def brokers(self) -> list[int]:
        return sorted(each.node_id for each in self.metadata(()).brokers)

    def controller(self) -> int | None:
        """Return the broker that changes topics, or None if any may."""
        if self._controller < 0:
            self.metadata(())
        return None if self._controller < 0 else self._controller

    def leader(self, place: TopicPartition) -> int:
        """Return the leader of a partition; `TopicNotFound`."""
        found = self._leaders.get(place, -1)
        if found < 0:
            [topic] = self.metadata([place[0]]).topics
            check(topic.error_code, f"the topic {place[0]!r} at {self.name}")
            if place not in self._leaders:
                last = len(topic.partitions) - 1
                raise TopicNotFound(f"the topic {place[0]!r} has partitions 0 to {last}, not {place[1]}")
            found = self._leaders[place]
            check(ErrorCode.LEADER_NOT_AVAILABLE if found < 0 else 0, f"partition {place[1]} of {place[0]!r}")
        return found

    def ask_leaders(
        self, places: Iterable[TopicPartition], ask: Callable[[int, list[TopicPartition]], dict[TopicPartition, T]]
    ) -> dict[TopicPartition, T]:
        """Call `ask` with each leader and the partitions that it leads, and return all answers."""

        def attempt() -> dict[TopicPartition, T]:
            led: defaultdict[int, list[TopicPartition]] = defaultdict(list)
            for place in places:
                led[self.leader(place)].append(place)
            return {place: answer for leader, some in led.items() for place, answer in ask(leader, some).items()}

        return self.retry(attempt, topics={topic for topic, _ in places})

    def coordinator(self, group: str) -> int:
        if group not in self._coordinators:
            found = self.call(FindCoordinatorRequest, key=group, coordinator_keys=[group], key_type=0)
            [one] = found.coordinators or [found]  # below version 4 the response itself names the coordinator
            check(one.error_code, f"the coordinator of the group {group!r}", one.error_message)
            self._coordinators[group] = one.node_id
        return self._coordinators[group]

    def list_offsets(
        self, places: Sequence[TopicPartition], timestamp: int, *, committed: bool = False
    ) -> dict[TopicPartition, Any]:
        """Return `offset` and `leader_epoch` of each partition at a time, `LATEST` or `EARLIEST`; -1 if no record is
        that new. The latest committed offset is that of the first open transaction."""

        def ask(leader: int, led: list[TopicPartition]) -> dict[TopicPartition, Any]:
            wanted = by_topic(led, lambda place: {"partition_index": place[1], "timestamp": timestamp})
            topics = [{"name": name, "partitions": parts} for name, parts in wanted.items()]
            answer = self.call(consumer.ListOffsetsRequest, leader, isolation_level=int(committed), topics=topics)
            found = {(topic.name, part.partition_index): part for topic in answer.topics for part in topic.partitions}
            for (topic, number), part in found.items():
                check(part.error_code, f"partition {number} of {topic!r}")
            return found

        return self.ask_leaders(places, ask)


def by_topic(places: Iterable[TopicPartition], item: Callable[[TopicPartition], Any]) -> dict[str, list[Any]]:
    """Group one item for each partition by topic, as requests need them."""
    grouped: defaultdict[str, list[Any]] = defaultdict(list)
    for place in places:
        grouped[place[0]].append(item(place))
    return grouped
