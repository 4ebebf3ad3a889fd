"""A log that meets a real limit of the system.

    python -m tests.processes.limited file DIRECTORY FORM...  files must not grow beyond 64 KiB (RLIMIT_FSIZE)
    python -m tests.processes.limited disk DIRECTORY FORM...  the disk under the directory is small, and fills up

For each of these FORMS of appends, the log is filled until it raises that there is no space. Nothing may be lost
or torn, and the log continues as soon as there is space again.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator

import pyarrow as pa

from sawlog import Log, LogConfig
from sawlog.batch.build import encode
from sawlog.errors import StorageFull

from .launch import say
from .operations import Promise

LIMIT_BYTES = 64 << 10
FORMS = [
    "append",
    "append_many",
    "append_arrow",
    "append_batches",
    "append_stream",
    "append_stream_async",
    "append_async",
]


def chunks(value: bytes) -> Iterator[bytes]:
    return (value[at : at + 500] for at in range(0, len(value), 500))


async def async_chunks(value: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks(value):
        yield chunk


class Filling:
    """Appends of about 3 KiB, each in its own way."""

    def __init__(self, log: Log, promise: Promise) -> None:
        self.log = log
        self.promise = promise

    def append(self) -> None:
        value = self.promise.value(3000)
        self.promise.acknowledge(self.log.append(value), value)

    def append_many(self) -> None:
        values = [self.promise.value(1000) for _ in range(3)]
        self.promise.acknowledge(self.log.append_many(values).start, *values)

    def append_arrow(self) -> None:
        values = [self.promise.value(1000) for _ in range(3)]
        table = pa.table({"value": pa.array(values, pa.binary())})
        self.promise.acknowledge(self.log.append_arrow(table).start, *values)

    def append_batches(self) -> None:
        values = [self.promise.value(1000) for _ in range(3)]
        raw = b"".join(encode([value]) for value in values)
        self.promise.acknowledge(self.log.append_batches(raw).start, *values)

    def append_stream(self) -> None:
        value = self.promise.value(3000)
        self.promise.acknowledge(self.log.append_stream(chunks(value)), value)

    def append_stream_async(self) -> None:
        value = self.promise.value(3000)
        self.promise.acknowledge(asyncio.run(self.log.append_stream_async(async_chunks(value))), value)

    def append_async(self) -> None:
        value = self.promise.value(3000)
        self.promise.acknowledge(asyncio.run(self.log.append_async(value)), value)


def fill(log: Log, call: Callable[[], None]) -> None:
    """Append until the disk is full; the log must then be as before the last try."""
    for _ in range(10_000):
        before = log.next_offset, log.size_bytes
        try:
            call()
        except StorageFull as error:
            assert error.errno, "the error does not carry the system's number"
            assert (log.next_offset, log.size_bytes) == before, "part of a refused append can be seen"
            assert log._is_writable, "a full disk has failed the log"
            return
    raise AssertionError("the limit was never met")


def check(log: Log, promise: Promise) -> None:
    promise.check_reading(log)
    report = log.verify()
    assert report, str(report)
    assert all(os.path.getsize(each.path) == each.size_bytes for each in log.segments), "bytes behind the end"


def against_file_size(directory: str, form: str) -> None:
    promise = Promise()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    log = Log.open(directory, LogConfig(segment_bytes=1 << 20))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, resource.RLIM_INFINITY))
    for _ in range(3):
        fill(log, getattr(Filling(log, promise), form))
        check(log, promise)
        log.seal()  # the next file may grow again
    getattr(Filling(log, promise), form)()
    log.close()
    with Log.open(directory) as again:
        assert again.recovery.clean
        check(again, promise)


def on_small_disk(directory: str, form: str) -> None:
    promise = Promise()
    path = f"{directory}/log"
    config = LogConfig(segment_bytes=100_000)
    log = Log.open(path, config)
    filling = Filling(log, promise)
    for _ in range(2):
        fill(log, getattr(filling, form))
        check(log, promise)
        # Retention is the way out of a full disk, so it must not need space itself.
        offset = log.segments[len(log.segments) // 2].base_offset
        promise.trim(log, offset, lambda offset=offset: log.trim(offset))  # type: ignore[misc]
        getattr(filling, form)()
        check(log, promise)
    fill(log, getattr(filling, form))
    try:
        log.close()
    except StorageFull:
        pass
    with Log.open(path, mode="r") as reader:
        promise.check_reading(reader)
    try:
        log = Log.open(path, config)  # may work or not; it must not make anything worse
    except StorageFull:
        pass
    else:
        log.close()
    os.unlink(f"{directory}/ballast")
    with Log.open(path, config) as again:
        assert again.recovery, str(again.recovery)
        check(again, promise)
        assert promise.try_append(again)
    with Log.open(path, config) as again:
        assert again.recovery.clean
        check(again, promise)


def main(kind: str, directory: str, *forms: str) -> None:
    for form in forms:
        try:
            if kind == "file":
                against_file_size(f"{directory}/{form}", form)
            else:
                with open(f"{directory}/ballast", "wb") as file:
                    file.write(bytes(200_000))
                on_small_disk(directory, form)
                shutil.rmtree(f"{directory}/log")
        except BaseException as error:
            error.add_note(f"with {form}")
            raise
    say("good")


if __name__ == "__main__":
    main(*sys.argv[1:])
