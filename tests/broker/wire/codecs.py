"""Two other codecs for the same messages: kafka-python's and kio's. Both read what we wrote and write it again."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import uuid
import warnings
from typing import Any

from kio.index import UnknownEntity, load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from sawlog.broker.wire.schema import ARRAY, STRUCT, Field

with warnings.catch_warnings():  # it reads its own resources in a way that Python 3.11 calls outdated
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.api_message import ApiMessage

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)

KAFKA_PYTHON = (
    "admin.acl",
    "admin.client_quotas",
    "admin.cluster",
    "admin.configs",
    "admin.groups",
    "admin.topics",
    "admin.transactions",
    "admin.users",
    "consumer.fetch",
    "consumer.group",
    "consumer.offsets",
    "metadata.api_versions",
    "metadata.find_coordinator",
    "metadata.metadata",
    "producer.produce",
    "producer.transaction",
    "sasl",
)


class KafkaPython:
    """kafka-python's messages, by key and kind ("request" or "response")."""

    def __init__(self) -> None:
        self._classes: dict[tuple[int, str], Any] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            modules = [importlib.import_module(f"kafka.protocol.{name}") for name in KAFKA_PYTHON]
        for module in modules:
            for value in vars(module).values():
                if isinstance(value, type) and issubclass(value, ApiMessage) and value is not ApiMessage:
                    self._classes[value.API_KEY, value.type] = value

    def knows(self, key: int, kind: str, version: int) -> bool:
        cls = self._classes.get((key, kind))
        return cls is not None and version <= cls.max_version

    def again(self, key: int, kind: str, version: int, data: bytes) -> tuple[Any, bytes]:
        """Return the decoded message, and its encoding."""
        cls = self._classes[key, kind]
        # Not cls.decode: that of ApiVersions reads an error as version 0, as a client has to.
        message = ApiMessage.decode.__func__(cls, data, version=version)
        message._header = None
        return message, bytes(message.encode(version=version))

    def plain(self, fields: tuple[Field, ...], version: int, message: Any) -> dict[str, Any]:
        return {field.name: self._plain(field, version, message) for field in fields if field.exists_in(version)}

    def _plain(self, field: Field, version: int, message: Any) -> Any:
        # kio shortens some names of authorized operations, and decodes them as a bit set.
        operations = field.name.endswith("authorized_operations")
        shortened = operations and not hasattr(message, field.name)
        value = getattr(message, "authorized_operations" if shortened else field.name)
        if field.kind.name == "uuid" and value is None:
            return bytes(16)
        if isinstance(value, uuid.UUID):
            return value.bytes
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if isinstance(value, set):
            bits = sum(1 << bit for bit in value)
            return bits - (1 << 32) if bits >= 1 << 31 else bits
        if value is None and (operations or field.tag is not None):
            return field.default  # it has no default for a struct
        if value is None or not isinstance(field.inner, tuple) or field.kind not in (ARRAY, STRUCT):
            return [_bytes(item) for item in value] if field.kind is ARRAY and value is not None else value
        if field.kind is ARRAY:
            return [self.plain(field.inner, version, item) for item in value]
        return self.plain(field.inner, version, value)


class Kio:
    """kio's messages. It names times without their unit and holds them as Python's."""

    def knows(self, key: int, kind: str, version: int) -> bool:
        try:
            self._class(key, kind, version)
        except UnknownEntity:
            return False
        return True

    def again(self, key: int, kind: str, version: int, data: bytes) -> tuple[Any, bytes]:
        cls = self._class(key, kind, version)
        message, size = entity_reader(cls)(data, 0)
        assert size == len(data)
        written = io.BytesIO()
        entity_writer(cls)(written, message)
        return message, written.getvalue()

    def plain(self, fields: tuple[Field, ...], version: int, message: Any) -> dict[str, Any]:
        ours = [field for field in fields if field.exists_in(version)]
        theirs = dataclasses.fields(message)
        assert len(ours) == len(theirs)
        values = {}
        for field, other in zip(ours, theirs, strict=True):
            assert field.name.startswith(other.name), f"{field.name} is called {other.name} elsewhere"
            values[field.name] = self._plain(field, version, getattr(message, other.name))
        return values

    def _plain(self, field: Field, version: int, value: Any) -> Any:
        if isinstance(value, datetime.timedelta):
            return value // MILLISECOND
        if isinstance(value, datetime.datetime):
            return (value - EPOCH) // MILLISECOND
        if isinstance(value, tuple):
            if isinstance(field.inner, tuple):
                return [self.plain(field.inner, version, item) for item in value]
            return [_bytes(item) for item in value]
        if dataclasses.is_dataclass(value):
            assert isinstance(field.inner, tuple)
            return self.plain(field.inner, version, value)
        if field.kind.name == "uuid":
            return bytes(16) if value is None else value.bytes
        return int(value) if field.name.endswith("error_code") else value

    def _class(self, key: int, kind: str, version: int) -> Any:
        entity = EntityType.request if kind == "request" else EntityType.response
        module = load_payload_module(key, version, entity)
        (cls,) = (value for value in vars(module).values() if getattr(value, "__type__", None) is entity)
        return cls


def _bytes(value: Any) -> Any:
    return value.bytes if isinstance(value, uuid.UUID) else value
