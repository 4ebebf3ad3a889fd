"""`RemoteStore`: topics and groups behind a broker, with those methods of a `Store` that the protocol can serve."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from types import TracebackType

from ...clock import Deadline
from ...errors import BrokerTimeout, InvalidConfig, TopicExists, TopicNotFound
from ...store import settings
from ..config import Address
from ..wire.apis import Key
from ..wire.errors import ErrorCode
from ..wire.schema import Body
from .access import Access
from .acls import RemoteAcls
from .cluster import Cluster, Place
from .groups import RemoteGroups
from .log import wait_for_more
from .refusals import check
from .topic import RemoteTopic
from .users import RemoteUsers

_TOPIC = 2  # a type of resource
_FROM_TOPIC = 1  # where a setting comes from
_SET, _DELETE = 0, 1
_NO_ID = bytes(16)
#: How long to wait before the metadata are looked at again.
_PAUSE_S = 0.05
_PORT = 9092
_BY_KEYWORD = {each.keyword: each.name for each in settings.SETTINGS.values()}


class RemoteStore:
    """A broker, or a cluster of them. `connect` makes it; use it as a context manager. Thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.groups = RemoteGroups(cluster)
        self.acls = RemoteAcls(cluster)
        self.users = RemoteUsers(cluster)

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def __enter__(self) -> RemoteStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RemoteStore {self.path}>"

    @property
    def path(self) -> str:
        """Where it is: the address."""
        return self._cluster.name

    # --- topics

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        found = self._cluster.patiently(lambda: self._cluster.metadata(None))["topics"]
        return sorted(each["name"] for each in found if not each["is_internal"])

    def __iter__(self) -> Iterator[RemoteTopic]:
        for name in self.topics():
            try:
                yield self.topic(name)
            except TopicNotFound:
                continue  # deleted meanwhile

    def topic(self, name: str) -> RemoteTopic:
        """The current topic of that name; `TopicNotFound` if it does not exist."""

        def attempt() -> Body:
            (found,) = self._cluster.metadata([name])["topics"]
            if found["error_code"] in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
                raise TopicNotFound(f"no topic {name!r} at {self.path}")
            check(found["error_code"], f"the topic {name!r} at {self.path}")
            topic: Body = found
            return topic

        found = self._cluster.patiently(attempt, topics=[name])
        topic_id = None if found["topic_id"] == _NO_ID else str(uuid.UUID(bytes=found["topic_id"]))
        return RemoteTopic(self._cluster, name, topic_id, len(found["partitions"]), self._settings(name))

    def _settings(self, name: str) -> dict[str, settings.Value]:
        """What was set for a topic."""
        broker = self._cluster.any()
        if not broker.knows(Key.DESCRIBE_CONFIGS):
            return {}
        asked = {"resource_type": _TOPIC, "resource_name": name, "configuration_keys": None}
        (result,) = broker.call(Key.DESCRIBE_CONFIGS, {"resources": [asked]})["results"]
        if result["error_code"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return {}  # who may read or write a topic need not know its settings
        check(result["error_code"], f"the settings of {name!r} at {self.path}", result["error_message"])
        given = {each["name"]: each["value"] for each in result["configs"] if each["config_source"] == _FROM_TOPIC}
        try:
            return settings.check(given)
        except InvalidConfig:  # of a broker that knows others
            return dict(sorted(given.items()))

    def create_topic(self, name: str, partitions: int = 1, *, exist_ok: bool = False, **given: object) -> RemoteTopic:
        """Create a topic. With `exist_ok` an existing one is returned, whatever its partitions and settings."""
        configs = [{"name": key, "value": str(value)} for key, value in _named(given).items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": -1, "configs": configs}
        request = {"topics": [topic], "timeout_ms": self._timeout_ms()}
        (result,) = self._cluster.controller().call(Key.CREATE_TOPICS, request)["topics"]
        try:
            check(result["error_code"], f"the topic {name!r} at {self.path}", result["error_message"])
        except TopicExists:
            if not exist_ok or name not in self.topics():
                raise
        return self._when_known(name, 1)

    def _when_known(self, name: str, partitions: int) -> RemoteTopic:
        """A topic that was just created or changed: the brokers of a cluster learn of it one after the other."""
        deadline = Deadline(self._cluster.timeout_s, first_pause_s=_PAUSE_S, longest_pause_s=_PAUSE_S)
        late = BrokerTimeout(f"{self.path} does not show what was done to the topic {name!r}")
        while True:
            try:
                topic = self.topic(name)
                if topic.partitions >= partitions:
                    return topic
            except TopicNotFound as error:
                deadline.pause(or_raise=error)
                continue
            deadline.pause(or_raise=late)

    def alter_topic(self, name: str, partitions: int | None = None, **given: object) -> RemoteTopic:
        """Add partitions or change settings; None resets a setting to its default. What can be refused is tried
        first, but it is not one step: if the broker stops in between, only the settings are changed."""
        topic = self.topic(name)
        more = partitions is not None and partitions != topic.partitions
        if more:
            self._add_partitions(name, partitions, validate_only=True)
        if given:
            self._change_settings(name, _named(given))
        if more:
            self._add_partitions(name, partitions, validate_only=False)
        return self._when_known(name, partitions or 1)

    def _add_partitions(self, name: str, count: int | None, *, validate_only: bool) -> None:
        asked = {"name": name, "count": count, "assignments": None}
        request = {"topics": [asked], "timeout_ms": self._timeout_ms(), "validate_only": validate_only}
        (result,) = self._cluster.controller().call(Key.CREATE_PARTITIONS, request)["results"]
        check(result["error_code"], f"the topic {name!r} at {self.path}", result["error_message"])

    def _change_settings(self, name: str, changes: Mapping[str, object]) -> None:
        configs = [
            {
                "name": key,
                "config_operation": _DELETE if value is None else _SET,
                "value": None if value is None else str(value),
            }
            for key, value in changes.items()
        ]
        resource = {"resource_type": _TOPIC, "resource_name": name, "configs": configs}
        answer = self._cluster.controller().call(Key.INCREMENTAL_ALTER_CONFIGS, {"resources": [resource]})
        (result,) = answer["responses"]
        check(result["error_code"], f"the topic {name!r} at {self.path}", result["error_message"])

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records."""
        request = {"topics": [{"name": name}], "topic_names": [name], "timeout_ms": self._timeout_ms()}
        (result,) = self._cluster.controller().call(Key.DELETE_TOPICS, request)["responses"]
        if result["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise TopicNotFound(f"no topic {name!r} at {self.path}")
        check(result["error_code"], f"the topic {name!r} at {self.path}", result["error_message"])

    def _timeout_ms(self) -> int:
        return round(self._cluster.timeout_s * 1000)

    # --- waiting

    def wait(self, positions: Mapping[Place, int], seconds: float) -> None:
        """Return when one of the partitions has a record at its position, or the time is over."""
        wait_for_more(self._cluster, positions, seconds)


def connect(
    address: str | Address, *, client_id: str = "sawlog", timeout_s: float = 30.0, access: Access | None = None
) -> RemoteStore:
    """Connect to the broker at `HOST:PORT`, or to a cluster by several of them with commas in between. `access` says
    how to encrypt and authenticate."""
    texts = [address] if isinstance(address, Address) else address.split(",")
    parsed = [each if isinstance(each, Address) else Address.parse(each.strip(), default_port=_PORT) for each in texts]
    cluster = Cluster(parsed, client_id=client_id, timeout_s=timeout_s, access=access)
    cluster.any()  # an address where nobody listens is reported here
    return RemoteStore(cluster)


def _named(given: Mapping[str, object]) -> dict[str, object]:
    """Settings under Kafka's names."""
    return {_BY_KEYWORD.get(name, name): value for name, value in given.items()}
