"""append_async: tasks share batches and fsyncs, and each gets its own answer."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from sawlog import Log, LogConfig
from sawlog.errors import InvalidRecordType, LogClosed, OffsetMismatch, RecordTooLarge
from sawlog.storage import MemoryDirectory

from ..places import Place, values


def test_each_task_gets_the_offset_of_its_record(place: Place) -> None:
    log = place.open(LogConfig(durability="always", segment_bytes=5000))

    async def main() -> list[int]:
        return await asyncio.gather(*(log.append_async(b"%d" % i, b"k%d" % i) for i in range(300)))

    offsets = asyncio.run(main())
    assert sorted(offsets) == list(range(300))
    assert [log.read(offset).value for offset in offsets] == [b"%d" % i for i in range(300)]
    assert log.durable_offset == 300


def test_all_fields_are_stored(place: Place) -> None:
    log = place.open()
    assert asyncio.run(log.append_async(b"v", b"k", [("h", b"x")], 7)) == 0
    record = log.read(0)
    assert (record.value, record.key, record.headers, record.timestamp) == (b"v", b"k", (("h", b"x"),), 7)


def test_append_that_expects_another_offset_stores_nothing(place: Place) -> None:
    log = place.open()

    async def main() -> list[Any]:
        assert await log.append_async(b"0", expect_offset=0) == 0
        found = await asyncio.gather(
            *(log.append_async(b"%d" % i, expect_offset=1) for i in range(20)), return_exceptions=True
        )
        assert await log.append_async(b"2", b"k", [("h", b"x")], 7, expect_offset=2) == 2
        return found

    found = asyncio.run(main())
    assert [each for each in found if not isinstance(each, OffsetMismatch)] == [1]
    assert values(log) == [b"0", b"%d" % found.index(1), b"2"]
    assert (log.read(2).key, log.read(2).headers, log.read(2).timestamp) == (b"k", (("h", b"x"),), 7)


def test_tasks_share_batches(place: Place) -> None:
    log = place.open()

    async def main() -> None:
        await asyncio.gather(*(log.append_async(b"%d" % i) for i in range(200)))

    asyncio.run(main())
    assert len(place.batches()) < 20
    assert len(log) == 200


@pytest.mark.parametrize("segment_bytes", [150, 300, 1000])
def test_record_that_fits_a_segment_is_never_refused(place: Place, segment_bytes: int) -> None:
    """However many others want to go into the same batch."""
    log = place.open(segment_bytes=segment_bytes)

    async def main() -> list[int]:
        return await asyncio.gather(*(log.append_async(b"%02d" % i + b"v" * (i % 60)) for i in range(60)))

    offsets = asyncio.run(main())
    assert sorted(offsets) == list(range(60))
    assert [log.read(offset).value for offset in offsets] == [b"%02d" % i + b"v" * (i % 60) for i in range(60)]


def test_bad_record_fails_its_own_task_only(place: Place) -> None:
    log = place.open(max_record_bytes=100)

    async def main() -> list[Any]:
        return await asyncio.gather(
            log.append_async(b"good"),
            log.append_async("text"),  # type: ignore[arg-type]
            log.append_async(b"x" * 101),
            log.append_async(b"also good"),
            return_exceptions=True,
        )

    found = asyncio.run(main())
    assert [type(each) for each in found] == [int, InvalidRecordType, RecordTooLarge, int]
    assert values(log) == [b"good", b"also good"]


def test_cancelled_task_does_not_disturb_the_others(place: Place) -> None:
    log = place.open()

    async def main() -> list[int]:
        tasks = [asyncio.ensure_future(log.append_async(b"%d" % i)) for i in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        return await asyncio.gather(*tasks)

    offsets = asyncio.run(main())
    assert [log.read(offset).value for offset in offsets] == [b"%d" % i for i in range(20)]
    assert len(log) == 20


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 50])
def test_an_append_that_raises_cancelled_is_not_stored_and_one_that_is_stored_returns_its_offset(
    place: Place, steps: int
) -> None:
    log = place.open()
    returned: list[int] = []
    cancelled: list[str] = []

    async def work() -> None:
        try:
            returned.append(await log.append_async(b"x"))
        except asyncio.CancelledError:
            cancelled.append("at the append")
            raise
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append("later")
            raise

    async def main() -> None:
        tasks = [asyncio.create_task(work()) for _ in range(5)]
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        for done in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(done, asyncio.CancelledError)

    asyncio.run(main())
    assert sorted(returned) == list(range(len(log)))
    assert cancelled == (["later"] * 5 if steps else [])


def test_a_timeout_that_comes_too_late_for_an_append_does_not_cancel_what_follows(place: Place) -> None:
    log = place.open()

    async def main() -> None:
        for _ in range(20):
            before = len(log)
            try:
                async with asyncio.timeout(0.0):
                    assert await log.append_async(b"x") == before
            except TimeoutError:
                assert len(log) == before
            await asyncio.sleep(0)
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()
        for timeout in (0.0, 0.0001, 0.001):
            before = len(log)
            try:
                assert await asyncio.wait_for(log.append_async(b"x"), timeout) == before
            except TimeoutError:
                assert len(log) == before

    asyncio.run(main())


def test_error_of_a_shared_batch_reaches_everyone_in_it() -> None:
    directory = MemoryDirectory()
    log = Log.open(directory, LogConfig(durability="os"))
    log._access.appender.durability.fail(RuntimeError("the disk is gone"))  # type: ignore[union-attr]

    async def main() -> list[Any]:
        return await asyncio.gather(*(log.append_async(b"x") for _ in range(5)), return_exceptions=True)

    found = asyncio.run(main())
    assert all(isinstance(each, RuntimeError) and "the disk is gone" in str(each) for each in found)


def test_loops_of_several_threads_may_append_to_one_log(place: Place) -> None:
    log = place.open()
    offsets: list[int] = []

    def work(who: int) -> None:
        async def main() -> None:
            offsets.extend(await asyncio.gather(*(log.append_async(b"%d" % who) for _ in range(50))))

        asyncio.run(main())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(offsets) == list(range(150))
    assert len(log) == 150


def test_log_outlives_the_loops_that_used_it(place: Place) -> None:
    log = place.open()
    for i in range(5):
        assert asyncio.run(log.append_async(b"x")) == i
    before = threading.active_count()
    for i in range(5, 10):
        assert asyncio.run(log.append_async(b"x")) == i
    log.close()
    assert threading.active_count() <= before + 1


def test_closing_the_log_does_not_hang_those_who_wait(place: Place) -> None:
    log = place.open()

    async def main() -> list[Any]:
        tasks = [asyncio.ensure_future(log.append_async(b"%d" % i)) for i in range(10)]
        await asyncio.sleep(0)
        log.close()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    found = asyncio.run(main())
    stored = values(place.open())
    for i, each in enumerate(found):
        if isinstance(each, int):
            assert stored[each] == b"%d" % i
        else:
            assert isinstance(each, LogClosed)
    assert sum(isinstance(each, int) for each in found) == len(stored)


def test_order_of_one_task_is_kept(place: Place) -> None:
    log = place.open()

    async def task(who: int) -> None:
        for i in range(20):
            await log.append_async(b"%d-%d" % (who, i))

    async def main() -> None:
        await asyncio.gather(*(task(i) for i in range(5)))

    asyncio.run(main())
    for who in range(5):
        mine = [value for value in values(log) if value and value.startswith(b"%d-" % who)]
        assert mine == [b"%d-%d" % (who, i) for i in range(20)]
