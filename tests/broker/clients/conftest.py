"""One broker process, and every client in turn.

Tests that kill the broker take most of their time to wait until clients are connected again. In the quick tests, each
kind of kill is seen by one client (`one_client`); all clients see it in the slow ones.

`SAWLOG_BROKER=kafka pytest tests/broker/clients` asks a real Apache Kafka instead: what these tests expect is what
Kafka does.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ..oracle import broker_in
from ..serving import PATIENCE_S, Serving
from .adapter import Admin, Client, Consumer, Missing, NotOffered, Producer, Refused, Seen, load, names
from .building import Build, is_missing

#: Warnings of the clients: kafka-python reads its JSON; sockets are left open when a broker is gone.
_WARNINGS = (
    "ignore:read_text is deprecated",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
_HERE = Path(__file__).parent
_T = TypeVar("_T")
_build = Build()


def _needs_build(item: pytest.Item) -> bool:
    return item.path == _HERE / "test_franz_go.py" and is_missing()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a module share a broker, so they run in one worker."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            if _needs_build(item):
                item.add_marker(pytest.mark.late)
            item.add_marker(pytest.mark.group(f"clients-{item.path.stem}"))
            for each in _WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(each))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin to build the program that a test needs."""
    if not session.config.option.collectonly and any(map(_needs_build, session.items)):
        _build.start()


def pytest_report_collectionfinish() -> list[str]:
    """Report the build, which takes CPU time from the tests."""
    return ["building the tests of franz-go in the background, once per user"] if _build.is_running else []


def pytest_unconfigure() -> None:
    """The test has waited for the build, unless the run was stopped."""
    _build.end()


@pytest.fixture(scope="session")
def only_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A broker for all modules."""
    with broker_in(tmp_path_factory.mktemp("broker")) as made:
        yield made


@pytest.fixture(scope="module")
def broker(only_broker: Serving) -> Iterator[Serving]:
    """The broker. A test may kill it if it starts it again. Between modules it stands still and takes no time."""
    if only_broker.is_running:
        only_broker.thaw()
    else:  # a test that failed has left it so
        only_broker.kill()
        only_broker.start()
    yield only_broker
    gc.collect()  # collect objects of clients here, so that they do not count as leaks of sawlog
    if only_broker.is_running:
        only_broker.freeze()


def one_client(quick: str) -> pytest.MarkDecorator:
    """A test that this client runs with the quick tests and all others with the slow ones."""
    others = [each for speed in ("quick", "slow") for each in names(speed) if each != quick]
    every = [quick, *(pytest.param(each, marks=pytest.mark.slow) for each in others)]
    return pytest.mark.parametrize("client", every, indirect=True)


@pytest.fixture(params=[*names("quick"), *(pytest.param(each, marks=pytest.mark.slow) for each in names("slow"))])
def client(request: pytest.FixtureRequest) -> Client:
    """Every client in turn."""
    try:
        return load(request.param)
    except Missing as error:
        pytest.skip(str(error))


class Hands:
    """Opens producers, consumers and admins of a client, and closes them after the test."""

    def __init__(self, client: Client, address: str) -> None:
        self.client = client
        self.address = address
        self._open: list[Any] = []

    def producer(self, **given: Any) -> Producer:
        """A producer."""
        return self._kept(self.client.producer(self.address, **given))

    def consumer(self, **given: Any) -> Consumer:
        """A consumer."""
        return self._kept(self.client.consumer(self.address, **given))

    def admin(self) -> Admin:
        """An admin client."""
        return self._kept(self.client.admin(self.address))

    def close(self, *which: Any) -> None:
        """Close these, or all that is open."""
        for each in which or tuple(reversed(self._open)):
            if each in self._open:
                self._open.remove(each)
            each.close()

    def read(self, topic: str, count: int, start: int = 0, partition: int = 0, **given: Any) -> list[Seen]:
        """Return `count` records of a partition from an offset on, read by a new consumer."""
        consumer = self.consumer(**given)
        consumer.assign({(topic, partition): start})
        found = take(consumer, count)
        self.close(consumer)
        return found

    def _kept(self, made: _T) -> _T:
        self._open.append(made)
        return made


@pytest.fixture
def hands(client: Client, broker: Serving) -> Iterator[Hands]:
    """The client, connected to the module's broker."""
    made = Hands(client, broker.address)
    yield made
    made.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return f"t-{time.monotonic_ns()}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Skip a test of a call that the client lacks."""
    try:
        return (yield)
    except NotOffered:
        pytest.skip("this client has no call for it")


def take(consumer: Consumer, count: int) -> list[Seen]:
    """Poll until `count` records are there."""
    found: list[Seen] = []
    wait_for(lambda: found.extend(consumer.poll()) or len(found) >= count, f"{count} records")
    assert len(found) == count, [each.offset for each in found]
    return found


def wait_for(true: Callable[[], Any], what: str) -> None:
    """Poll until something is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"


def refusal(call: Callable[[], Any]) -> str:
    """Kafka's name of the error that a call ends with."""
    with pytest.raises(Refused) as caught:
        call()
    return caught.value.name


@pytest.fixture(scope="module", autouse=True)
def quiet_clients() -> Iterator[None]:
    """Silence the log lines of clients about a broker that is gone, which is normal in these tests."""
    loggers = [logging.getLogger(name) for name in ("kafka", "aiokafka")]
    before = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    yield
    for each, level in zip(loggers, before, strict=True):
        each.setLevel(level)
