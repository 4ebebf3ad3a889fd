"""sawlog: a segmented commit log for Python.

It needs no server. Start with `sawlog.open(path)` for a store of topics, or with `Log.open(path)` for a single log. The
README shows the rest.

Exceptions are in `sawlog.errors`, which is loaded with the package. Every other name is imported on first use, so that
a program pays only for the parts it uses.
"""

import typing as _typing
from _thread import RLock as _RLock
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec

from . import errors

if _typing.TYPE_CHECKING:
    from . import aio
    from ._kernel_info import kernel_info
    from .batch.build import Producer
    from .batch.kernel import Record
    from .config import LRU, CachePolicy, Interval, LogConfig, MaintenanceConfig
    from .log.compaction import CompactionReport
    from .log.log import Log
    from .log.maintenance import MaintenanceReport
    from .log.reader import Fetched
    from .log.recovery_report import RecoveryReport
    from .log.retention import RetentionReport
    from .log.verify import VerifyReport
    from .log.writer import Writer
    from .store.base import Offsets, Position, SegmentInfo, Store, Topic, Transaction
    from .store.consumer import Consumer
    from .store.descriptions import PartitionDescription, TopicDescription
    from .store.groups import GroupDescription, GroupRow, Groups
    from .store.opening import open_store as open
    from .store.queues.message import Message, QueueCounts
    from .store.queues.queue import Queue
    from .store.queues.redrive import Redriven, redrive
    from .store.writer import TopicWriter
    from .typed.codec import TypedRecord
    from .typed.serializers import JSON, ArrowRows, Bytes, Headers, MetadataSerializer, Nullable, Serializer, Utf8
    from .typed.views import TypedConsumer, TypedLog, TypedTopic

    #: Opens a store of topics for asyncio, and a single log; see `sawlog.aio`.
    open_async = aio.open_async
    open_log_async = aio.open_log_async

__version__ = "0.3.0"

__all__ = [
    "JSON",
    "LRU",
    "ArrowRows",
    "Bytes",
    "CachePolicy",
    "CompactionReport",
    "Consumer",
    "Fetched",
    "GroupDescription",
    "GroupRow",
    "Groups",
    "Headers",
    "Interval",
    "Log",
    "LogConfig",
    "MaintenanceConfig",
    "MaintenanceReport",
    "Message",
    "MetadataSerializer",
    "Nullable",
    "Offsets",
    "PartitionDescription",
    "Position",
    "Producer",
    "Queue",
    "QueueCounts",
    "Record",
    "RecoveryReport",
    "Redriven",
    "RetentionReport",
    "SegmentInfo",
    "Serializer",
    "Store",
    "Topic",
    "TopicDescription",
    "TopicWriter",
    "Transaction",
    "TypedConsumer",
    "TypedLog",
    "TypedRecord",
    "TypedTopic",
    "Utf8",
    "VerifyReport",
    "Writer",
    "__version__",
    "errors",
    "kernel_info",
    "open",
    "open_async",
    "open_log_async",
    "redrive",
]

#: Public names by the module that defines them.
_HOMES = {
    "_kernel_info": "kernel_info",
    "aio": "open_async open_log_async",
    "batch.build": "Producer",
    "batch.kernel": "Record",
    "config": "CachePolicy Interval LRU LogConfig MaintenanceConfig",
    "log.compaction": "CompactionReport",
    "log.log": "Log",
    "log.maintenance": "MaintenanceReport",
    "log.recovery_report": "RecoveryReport",
    "log.reader": "Fetched",
    "log.retention": "RetentionReport",
    "log.verify": "VerifyReport",
    "log.writer": "Writer",
    "store.base": "Offsets Position SegmentInfo Store Topic Transaction",
    "store.consumer": "Consumer",
    "store.descriptions": "PartitionDescription TopicDescription",
    "store.groups": "GroupDescription GroupRow Groups",
    "store.queues.message": "Message QueueCounts",
    "store.queues.queue": "Queue",
    "store.queues.redrive": "Redriven redrive",
    "store.writer": "TopicWriter",
    "typed.codec": "TypedRecord",
    "typed.serializers": "ArrowRows Bytes Headers JSON MetadataSerializer Nullable Serializer Utf8",
    "typed.views": "TypedConsumer TypedLog TypedTopic",
}
_importing = _RLock()
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
#: Modules available as `sawlog.NAME` without an explicit import.
_MODULES = frozenset({module.partition(".")[0] for module in _HOMES} | {"schemas", "storage"})


_kernel = _find_spec(".batch.kernel", __name__)
if _kernel is None or str(_kernel.origin).endswith(".py"):
    from . import _kernel_info  # noqa: F401 - warns that the kernel is not compiled


if not _typing.TYPE_CHECKING:  # else type checkers would accept every name

    def __getattr__(name: str) -> object:
        """Import a public name on first use and cache it.

        One thread at a time, and always `store.opening` first: two threads that start importing a package and its
        submodule from opposite ends would deadlock on Python's import locks.
        """
        if name not in _MODULES and name not in _HOME_OF and name != "open":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with _importing:
            opening = _import_module(".store.opening", __name__)
            _import_module(".storage.forking", __name__).forkable(_importing)
            if name in _MODULES:
                return _import_module(f".{name}", __name__)  # also sets the attribute
            home = opening if name == "open" else _import_module(f".{_HOME_OF[name]}", __name__)
            found = getattr(home, "open_store" if name == "open" else name)
            globals()[name] = found
            return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOME_OF, *_MODULES, "open"})
