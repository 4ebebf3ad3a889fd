"""Measure how much code one operation passes through: `python tools/call_paths.py [OPERATION ...]`.

For each operation the table shows the source files and functions of sawlog that run, and how often a call leaves one
file for another. Each operation runs twice in a temporary store and the second run is measured, on all threads, so that
imports, opening and first use do not count. The compiled kernel does not count either, compiled or not.

Functions are counted once each, however often they run. Comprehensions belong to the function around them.
"""

from __future__ import annotations

import argparse
import socket
import struct
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import sawlog
from sawlog.config import LogConfig

SOURCE = str(Path(sawlog.__file__).parent) + "/"
KERNEL = SOURCE + "batch/kernel/"
#: Time that other threads get to finish their part of an operation.
SETTLE_S = 0.2

Operation = Callable[[], object]


class Prepared(NamedTuple):
    """An operation that needs unmeasured preparation before each run."""

    prepare: Operation
    run: Operation


@dataclass
class Recorder:
    """Records calls on the current thread and on all threads started after `install`."""

    files: set[str] = field(default_factory=set)
    functions: set[CodeType] = field(default_factory=set)
    switches: int = 0
    is_on: bool = False

    def install(self) -> None:
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def remove(self) -> None:
        threading.setprofile(None)
        sys.setprofile(None)

    def measure(self, operation: Operation) -> None:
        """Run an operation and record its calls. Waits for other threads to finish their part."""
        self.is_on = True
        try:
            operation()
            threading.Event().wait(SETTLE_S)
        finally:
            self.is_on = False

    def _event(self, frame: FrameType, event: str, argument: object) -> None:
        if not self.is_on or event != "call":
            return
        code = frame.f_code
        if not _counts(code) or _is_part(code):
            return
        self.files.add(code.co_filename)
        self.functions.add(code)
        caller = frame.f_back
        while caller is not None and not _counts(caller.f_code):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != code.co_filename:
            self.switches += 1


def _counts(code: CodeType) -> bool:
    return code.co_filename.startswith(SOURCE) and not code.co_filename.startswith(KERNEL)


def _is_part(code: CodeType) -> bool:
    """Return whether this is a comprehension, which is part of the function around it."""
    return code.co_name in {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}


# --- operations: each one yields a function that is run twice


@contextmanager
def appending() -> Iterator[Operation]:
    with _directory() as path, sawlog.open(path) as store:
        topic = store.create_topic("orders", durability="always")
        yield lambda: topic.append(b"value", b"key")


@contextmanager
def producing() -> Iterator[Operation]:
    from sawlog.broker.wire import Key

    with _broker() as client:
        request = client.encoded(Key.PRODUCE, 9, client.batch())
        yield lambda: client.send(request)


@contextmanager
def fetching() -> Iterator[Operation]:
    from sawlog.broker.wire import Key

    with _broker() as client:
        client.send(client.encoded(Key.PRODUCE, 9, client.batch()))
        partition = {"partition_index": 0, "timestamp": -2}
        offsets = {"replica_id": -1, "topics": [{"name": client.topic, "partitions": [partition]}]}
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        topics = [{"topic": client.topic, "partitions": [part]}]
        fetch = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 24, "topics": topics}
        requests = [client.encoded(Key.LIST_OFFSETS, 6, offsets), client.encoded(Key.FETCH, 11, fetch)]
        yield lambda: client.send(*requests)


@contextmanager
def spark_commit(place: str) -> Iterator[Operation]:
    """The driver's commit of a micro-batch. Its task stages three rows beforehand, unmeasured; no JVM is started."""
    import pyarrow as pa

    from sawlog.spark import commit
    from sawlog.spark.options import write_options
    from sawlog.spark.writing import stage

    with _place(place) as path:
        with sawlog.open(path) as store:
            store.create_topic("orders", 2)
        options, query = write_options({"path": path, "topic": "orders"}), str(uuid.uuid4())
        batches = []
        for number in range(2):
            rows = pa.RecordBatch.from_pydict({"key": [b"a", b"b", b"c"], "value": [b"1", b"2", b"3"]})
            batches.append([stage(iter([rows]), options, commit.stage_name(query, number), query)])
        numbers = iter(range(2))

        def publish() -> None:
            number = next(numbers)
            name = commit.stage_name(query, number)
            commit.publish(options, name, batches[number], name=query, sequence=number)

        yield publish


@contextmanager
def transaction(place: str) -> Iterator[Operation]:
    with _place(place) as path, sawlog.open(path) as store:
        store.create_topic("orders", 2)

        def commit() -> None:
            with store.transaction() as made:
                made.append_many("orders", [b"one"], partition=0)
                made.append_many("orders", [b"two"], partition=1)

        yield commit


@contextmanager
def object_append() -> Iterator[Operation]:
    with _place("objects") as path, sawlog.open(path, maintenance_interval_s=None) as store:
        topic = store.create_topic("orders")
        yield lambda: topic.append(b"value", b"key")


@contextmanager
def draining() -> Iterator[Prepared]:
    with _directory() as path, sawlog.open(path) as store:
        topic = store.create_topic("orders")
        with store.consumer("billing", "orders", auto_commit_ms=None) as consumer:
            yield Prepared(lambda: topic.append(b"value"), lambda: list(consumer.drain()))


@contextmanager
def committing() -> Iterator[Operation]:
    with _directory() as path, sawlog.open(path) as store:
        topic = store.create_topic("orders")
        with store.consumer("billing", "orders", auto_commit_ms=None) as consumer:

            def next_commit() -> None:
                consumer.commit({("orders", 0): next(offsets)})

            topic.append_many([b"one", b"two", b"three"])
            list(consumer.drain())
            offsets = iter(range(1, 4))
            yield next_commit


@contextmanager
def log_fetch() -> Iterator[Operation]:
    with _directory() as path, sawlog.Log.open(path, LogConfig()) as log:
        log.append_many([b"one", b"two"])
        yield lambda: log.fetch(0)


@contextmanager
def log_read() -> Iterator[Operation]:
    with _directory() as path, sawlog.Log.open(path, LogConfig()) as log:
        log.append_many([b"one", b"two"])
        yield lambda: log.read(1)


# --- places and clients


@contextmanager
def _directory() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="sawlog-calls-") as path:
        yield path + "/data"


@contextmanager
def _place(kind: str) -> Iterator[str]:
    with _directory() as path:
        yield path if kind == "directory" else f"memory://calls-{uuid.uuid4().hex}/store"


class _Client:
    """One connection to a broker that sends requests encoded beforehand and does not decode the responses."""

    def __init__(self, address: str, topic: str) -> None:
        host, _, port = address.rpartition(":")
        self.topic = topic
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._file = self._socket.makefile("rb")

    def batch(self) -> dict[str, Any]:
        from sawlog.batch.build import encode

        partition = {"index": 0, "records": bytes(encode([b"value"]))}
        return {"acks": -1, "timeout_ms": 5000, "topic_data": [{"name": self.topic, "partition_data": [partition]}]}

    def encoded(self, key: int, version: int, body: dict[str, Any]) -> bytes:
        from sawlog.broker import wire

        return b"".join(wire.encode_request(key, version, 1, "call-paths", body))

    def send(self, *requests: bytes) -> None:
        for request in requests:
            self._socket.sendall(request)
            [size] = struct.unpack(">i", self._file.read(4))
            self._file.read(size)

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@contextmanager
def _broker() -> Iterator[_Client]:
    from sawlog.testing import Broker

    with Broker(durability="always") as broker:
        client = _Client(broker.address, broker.create_topic("orders").name)
        try:
            yield client
        finally:
            client.close()


# --- the table


class Row(NamedTuple):
    """An operation, and the number of files that its path should stay within."""

    begin: Callable[[], Any]
    target_files: int


OPERATIONS = {
    "topic.append, durable": Row(appending, 10),
    "Kafka Produce": Row(producing, 20),
    "Kafka ListOffsets + Fetch": Row(fetching, 20),
    "Spark commit, directory": Row(lambda: spark_commit("directory"), 40),
    "Spark commit, objects": Row(lambda: spark_commit("objects"), 25),
    "transaction, directory": Row(lambda: transaction("directory"), 25),
    "transaction, objects": Row(lambda: transaction("objects"), 18),
    "topic.append, objects": Row(object_append, 15),
    "consumer.drain": Row(draining, 14),
    "consumer.commit": Row(committing, 14),
    "log.fetch": Row(log_fetch, 12),
    "log.read": Row(log_read, 9),
}


def measured(name: str) -> Recorder:
    """Return the calls of the second run of an operation."""
    recorder = Recorder()
    recorder.install()  # before the operation starts threads of its own
    try:
        with OPERATIONS[name].begin() as found:
            prepare, run = found if isinstance(found, Prepared) else (lambda: None, found)
            prepare()
            run()
            prepare()
            threading.Event().wait(SETTLE_S)
            recorder.measure(run)
    finally:
        recorder.remove()
    return recorder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    listed = ", ".join(OPERATIONS)
    parser.add_argument("operations", nargs="*", metavar="OPERATION", help=f"default: all of {listed}")
    parser.add_argument("--show", action="store_true", help="list the functions of each file")
    given = parser.parse_args()
    unknown = sorted(set(given.operations) - set(OPERATIONS))
    if unknown:
        parser.error(f"unknown operation {unknown[0]!r}; choose from {listed}")
    print(f"{'operation':28}{'files':>7}{'target':>8}{'functions':>11}{'switches':>10}")
    for name in given.operations or OPERATIONS:
        found = measured(name)
        target = OPERATIONS[name].target_files
        print(f"{name:28}{len(found.files):7}{target:8}{len(found.functions):11}{found.switches:10}", flush=True)
        if given.show:
            _show(found)


def _show(found: Recorder) -> None:
    for file in sorted(found.files):
        names = sorted({code.co_qualname for code in found.functions if code.co_filename == file})
        print(f"    {file.removeprefix(SOURCE)}: {', '.join(names)}")


if __name__ == "__main__":
    main()
