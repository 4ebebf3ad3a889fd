"""A real Apache Kafka instead of `sawlog serve`, for comparison.

`SAWLOG_BROKER=kafka pytest tests/broker/clients` runs the client matrix against it. Whatever a test there expects of
us, Kafka does too; where it does not, the test says so. Needs a Java and Kafka's jars (tools/fetch_kafka.py).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from ..interop.brokers import JARS, JAVA, Broker
from .serving import PATIENCE_S, Serving

#: A JVM on a busy machine, which may first have to read its logs again.
_START_S = 3 * PATIENCE_S
#: For two nodes; a few partitions, so that each broker coordinates some groups and transactional ids.
_REPLICATED = (
    "default.replication.factor=2",
    "min.insync.replicas=1",
    "offsets.topic.replication.factor=2",
    "offsets.topic.num.partitions=4",
    "transaction.state.log.replication.factor=2",
    "transaction.state.log.num.partitions=4",
)
ASKS_KAFKA = os.environ.get("SAWLOG_BROKER") == "kafka"


def broker_in(directory: Path) -> Serving:
    """The broker that is asked for, not started yet."""
    return Oracle(directory) if ASKS_KAFKA else Serving(directory / "data")


class Oracle(Serving):
    """Apache Kafka, one node, with the life of `Serving`."""

    def __init__(self, directory: Path, *, settings: Iterable[str] = (), **node: Any) -> None:
        given = ["group.min.session.timeout.ms=100", *settings]
        self._kafka = Broker(directory, settings=given, **node)
        super().__init__(self._kafka.logs, port=self._kafka.port)
        self._log = directory / "kafka.log"

    @property
    def quorum(self) -> str:
        """The controller of this node, for other nodes."""
        return self._kafka.quorum

    def start(self) -> None:
        """Start it, and wait until it listens."""
        assert JAVA is not None
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [JAVA, "-Xmx1g", "-cp", f"{JARS}/*", "kafka.Kafka", str(self._kafka.config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
            )
        deadline = time.monotonic() + _START_S
        while not self._answers():
            assert self._process.poll() is None, self.said[-4000:]
            assert time.monotonic() < deadline, "Kafka did not start"
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1):
                return True
        except OSError:
            return False

    def stop(self) -> int:
        """SIGTERM; Java's exit code for that is success."""
        code = self._end(signal.SIGTERM)
        return 0 if code in (143, -signal.SIGTERM) else code


@contextmanager
def two_brokers(directory: Path) -> Iterator[list[Serving]]:
    """Two brokers and a controller. All topics have two replicas, so either broker can be killed."""
    places = [directory / name for name in ("controller", "broker-1", "broker-2")]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
    with ExitStack() as last:
        controller = last.enter_context(Oracle(places[0], node_id=100, roles=["controller"]))
        brokers: list[Serving] = [
            Oracle(place, settings=_REPLICATED, node_id=number, roles=["broker"], quorum=controller.quorum)
            for number, place in enumerate(places[1:], 1)
        ]
        for broker in brokers:
            last.enter_context(broker)
        admin = AdminClient({"bootstrap.servers": brokers[0].address, "log_level": 0})
        deadline = time.monotonic() + PATIENCE_S
        while len(admin.list_topics(timeout=PATIENCE_S).brokers) < 2:
            assert time.monotonic() < deadline, "the brokers did not find each other"
            time.sleep(0.1)
        del admin
        yield brokers
