"""Power cuts and deaths at every change of the disk while a queue works: acknowledged messages stay acknowledged, all
others are delivered, dead letters are there."""

from __future__ import annotations

from typing import Any

import pytest

from sawlog.store.directory.store import DirectoryStore

from ...faults.disk import FaultyStorage
from ...faults.enumeration import Workload, enumerate_crashes

COUNT = 8


class Working(Workload):
    """A queue of eight messages: some acknowledged, one rejected, one released, the others not answered."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        #: "there": how many messages were appended; "acked": offsets whose ack was called; "done", "dead": those whose
        #: answers were durable; "seen": how often each was delivered.
        self.promise: dict[str, Any] = {"there": 0, "acked": [], "done": [], "dead": [], "seen": {}}

    def work(self, disk: FaultyStorage) -> None:
        with DirectoryStore.open(disk.plain, maintenance_interval_s=None) as store:
            topic = store.create_topic("orders")
            topic.append_many([b"%d" % number for number in range(COUNT)])
            self.promise["there"] = COUNT
            with store.queue("orders", group="workers", max_deliveries=None) as queue:
                messages = queue.receive(6)
                self.promise["seen"].update((message.offset, 1) for message in messages)
                for message in (messages[4], messages[0]):
                    self.promise["acked"].append(message.offset)
                    queue.ack(message)
                queue.flush()
                self.promise["done"] += [0, 4]
                queue.reject(messages[2])
                queue.release(messages[3])
                queue.flush()
                self.promise["dead"].append(2)
                self.promise["done"].append(2)

    def recover(self, disk: FaultyStorage, promise: Any, *, power_cut: bool) -> None:
        with DirectoryStore.open(disk.plain, maintenance_interval_s=None) as store:
            if "orders" not in store.topics():
                assert not promise["there"]
                return
            there = store["orders"].describe().records
            assert there >= promise["there"]
            dead = {
                int(letter.value) for name in store.topics() if name == "orders-dead" for letter in store[name].scan()
            }
            assert dead >= set(promise["dead"]), f"dead letters are missing: {dead}"
            with store.queue("orders", group="workers", max_deliveries=None) as queue:
                found = {}
                for message in queue.drain():
                    found[message.offset] = message.deliveries
                    assert message.offset not in promise["done"], f"{message} was acknowledged"
                    assert message.deliveries > promise["seen"].get(message.offset, 0), message
                    promise["seen"][message.offset] = message.deliveries
                    promise["acked"].append(message.offset)
                    queue.ack(message)
                assert set(found) | set(promise["acked"]) | dead >= set(range(there)), f"only {found} came"
                queue.flush()
                promise["there"], promise["done"] = there, list(range(there))


@pytest.mark.slow
def test_no_crash_loses_a_message_or_delivers_one_after_its_ack() -> None:
    outcome = enumerate_crashes(Working, seed=3)
    assert not outcome.violations, outcome.violations[0].trace
    assert outcome.scenarios > 100, outcome


@pytest.mark.alternating
def test_a_few_crashes_of_them_lose_nothing() -> None:
    outcome = enumerate_crashes(Working, seed=3, depth=1, wanted=lambda scenario: scenario.crash_at % 16 == 5)
    assert not outcome.violations, outcome.violations[0].trace
