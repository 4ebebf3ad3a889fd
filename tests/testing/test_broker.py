"""`sawlog.testing.Broker`: a broker for tests of programs that use Kafka."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from sawlog.errors import InvalidConfig
from sawlog.testing import Broker
from sawlog.testing.broker import Faults


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(partitions=2) as made:
        yield made


def send(broker: Broker, values: list[bytes], topic: str = "orders", **config: Any) -> list[Any]:
    """Return the error of each value, None if it was acknowledged."""
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0, "linger.ms": 0, **config})
    found: list[Any] = []
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, message: found.append(error))
        producer.flush(10)
    return found


def values(broker: Broker, topic: str = "orders") -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


def test_what_a_client_sends_can_be_read_directly(broker: Broker) -> None:
    assert send(broker, [b"one", b"two"]) == [None, None]
    assert values(broker) == [b"one", b"two"]
    assert broker.store.topic("orders").partitions == 2


def test_an_error_on_demand_is_retried_by_the_client(broker: Broker) -> None:
    broker.create_topic("orders", 1)
    broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    assert send(broker, [b"one"]) == [None]
    assert values(broker) == [b"one"]
    assert [each.api for each in broker.requests].count("Produce") == 3


def test_an_error_that_is_not_retried_reaches_the_program(broker: Broker) -> None:
    broker.create_topic("orders", 1)
    broker.faults.fail("Produce", "MESSAGE_TOO_LARGE", nth=2)
    errors = send(broker, [b"one", b"two", b"three"])
    assert [error.name() if error else None for error in errors] == [None, "MSG_SIZE_TOO_LARGE", None]
    assert values(broker) == [b"one", b"three"]


def test_a_lost_acknowledgement_makes_a_plain_producer_send_twice(broker: Broker) -> None:
    broker.create_topic("orders", 1)
    broker.faults.drop("Produce", after=True)
    assert send(broker, [b"one"]) == [None]
    assert values(broker) == [b"one", b"one"]


def test_a_connection_that_is_dropped_before_stores_nothing_by_itself(broker: Broker) -> None:
    broker.create_topic("orders", 1)
    broker.faults.drop("Produce")
    assert send(broker, [b"one"]) == [None]
    assert values(broker) == [b"one"]


def test_reset_empties_it_and_keeps_the_address(broker: Broker) -> None:
    send(broker, [b"one"])
    before = broker.address
    broker.faults.fail("Produce", 6, times=None)
    broker.reset()
    assert broker.address == before
    assert broker.store.topics() == []
    assert not broker.requests
    assert send(broker, [b"two"]) == [None]
    assert values(broker) == [b"two"]


def test_restart_keeps_what_was_sent(broker: Broker) -> None:
    send(broker, [b"one"])
    before = broker.address
    broker.restart()
    assert (broker.address, values(broker)) == (before, [b"one"])


def test_a_client_survives_broken_connections(broker: Broker) -> None:
    send(broker, [b"one"])
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition("orders", 0, 0)])
    first = consumer.consume(1, 10)
    broker.drop_connections()
    send(broker, [b"two"])
    second = consumer.consume(1, 10)
    consumer.close()
    assert [message.value() for message in (*first, *second)] == [b"one", b"two"]


def test_a_directory_of_yours_is_kept_and_not_reset(tmp_path: Path) -> None:
    with Broker(directory=str(tmp_path)) as broker:
        send(broker, [b"one"])
        with pytest.raises(InvalidConfig, match="yours"):
            broker.reset()
    with Broker(directory=str(tmp_path)) as broker:
        assert values(broker) == [b"one"]


def test_wrong_names_are_refused(broker: Broker) -> None:
    with pytest.raises(InvalidConfig, match="no error 'NO_SUCH'"):
        broker.faults.fail("Produce", "NO_SUCH")
    with pytest.raises(InvalidConfig, match="no API 'Produc'"):
        broker.faults.drop("Produc")
    with pytest.raises(InvalidConfig, match="unknown setting 'partition'"):
        Broker(partition=3)
    with pytest.raises(InvalidConfig, match="not running"):
        _ = Broker().address


def test_a_port_that_is_taken_is_an_error_at_the_start(broker: Broker) -> None:
    with pytest.raises(OSError, match=r"in use|address"):
        Broker(listen=broker.address).start()


def test_topics_are_not_created_unless_allowed() -> None:
    with Broker(auto_create_topics=False) as broker:
        producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
        error = producer.list_topics("orders", timeout=60).topics["orders"].error
        assert error is not None
        assert error.name() == "UNKNOWN_TOPIC_OR_PART"
        assert broker.store.topics() == []


@pytest.mark.costly  # a process of pytest
def test_pytest_finds_the_fixture_by_itself(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "def test_mine(sawlog_broker, sawlog_broker_session):\n"
        "    sawlog_broker.create_topic('mine')\n"
        "    assert sawlog_broker.store.topics() == ['mine']\n"
        "    assert sawlog_broker_session.store.topics() == []\n"
        "import pytest\n"
        "@pytest.mark.sawlog_broker(default_partitions=3)\n"
        "def test_settings(sawlog_broker):\n"
        "    assert sawlog_broker.create_topic('mine').partitions == 3\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"times": 0}, "times must be an integer, at least 1 or None"),
        ({"times": -1}, "times must be"),
        ({"nth": 0}, "nth must be an integer, at least 1, not 0"),
        ({"nth": 1.5}, "nth must be"),
        ({"nth": True}, "nth must be"),
    ],
)
def test_a_fault_that_could_never_happen_is_refused(given: dict[str, Any], said: str) -> None:
    faults = Faults()
    with pytest.raises(InvalidConfig, match=said):
        faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", **given)
    with pytest.raises(InvalidConfig, match=said):
        faults.drop("Produce", **given)
    with pytest.raises(InvalidConfig, match=said):
        faults.delay("Produce", 0, **given)
    assert faults.for_request("Produce") is None


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", None, True])
def test_a_delay_is_a_time(seconds: Any) -> None:
    with pytest.raises(InvalidConfig, match="seconds must be a number, at least 0, not"):
        Faults().delay("Fetch", seconds)
