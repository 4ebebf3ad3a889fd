"""A real Apache Kafka in the place of `sawlog serve`, to ask it what it does.

`SAWLOG_BROKER=kafka pytest tests/broker/clients` runs the client matrix against it. Whatever a test there expects of
us, Kafka does too; where it does not, the test says so. Needs a Java and Kafka's jars (tools/fetch_kafka.py).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from ..interop.brokers import JARS, JAVA, Broker
from .serving import PATIENCE_S, Serving

ASKS_KAFKA = os.environ.get("SAWLOG_BROKER") == "kafka"


def broker_in(directory: Path) -> Serving:
    """The broker that is asked for, not started yet."""
    return Oracle(directory) if ASKS_KAFKA else Serving(directory / "data")


class Oracle(Serving):
    """Apache Kafka, one node, with the life of `Serving`."""

    def __init__(self, directory: Path, *, settings: Iterable[str] = (), node_id: int = 1) -> None:
        given = ["group.min.session.timeout.ms=100", *settings]
        self._kafka = Broker(directory, settings=given, node_id=node_id)
        super().__init__(self._kafka.logs, port=self._kafka.port)
        self._log = directory / "kafka.log"

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
        deadline = time.monotonic() + PATIENCE_S
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
