"""Kafka's tools and a broker of one node, if its jars and Java are available.

`tools/fetch_kafka.py` fetches the jars. Everything here runs in processes of its own, which end with the test.
"""

from __future__ import annotations

import json
import re
import runpy
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
JARS: Path = runpy.run_path(str(ROOT / "tools" / "fetch_kafka.py"))["jars_directory"]()
JAVA = shutil.which("java")
#: Quick to start rather than quick in the long run.
_JVM = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
_PATIENCE_S = 120.0

needs_kafka = pytest.mark.skipif(
    JAVA is None or not any(JARS.glob("kafka_*.jar")),
    reason="Kafka's jars or a Java are not here: python tools/fetch_kafka.py",
)

_LISTENERS = {"broker": "PLAINTEXT://127.0.0.1:{port}", "controller": "CONTROLLER://127.0.0.1:{controller}"}
_SETTINGS = """\
process.roles={roles}
node.id={node_id}
controller.quorum.voters={quorum}
listeners={listeners}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={logs}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=2000000
"""


def run(tool: str, *arguments: object) -> str:
    """Run one of Kafka's tools and return its output. Fails if the tool does."""
    assert JAVA is not None
    done = subprocess.run(
        [JAVA, *_JVM, "-cp", f"{JARS}/*", tool, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{tool} ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout + done.stderr


def dump(paths: Iterable[Path]) -> str:
    """Return the output of DumpLogSegments for these files, including records."""
    tool, files = "org.apache.kafka.tools.DumpLogSegments", ",".join(map(str, paths))
    said = run(tool, "--deep-iteration", "--print-data-log", "--files", files)
    # Since 4.3 it takes -1 for the offset before the first one, and complains if a segment does not begin at 0. It
    # lists all that it found in a file under one heading.
    said = re.sub(r"^  -1 is followed by \d+\n", "", said, flags=re.MULTILINE)
    return re.sub(r"^Non-consecutive offsets in \S+\n(?!  )", "", said, flags=re.MULTILINE)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Broker:
    """A node that can be started and stopped: a cluster of one, or part of the cluster with controller `quorum`."""

    def __init__(
        self,
        path: Path,
        *,
        settings: Iterable[str] = (),
        node_id: int = 1,
        roles: Sequence[str] = ("broker", "controller"),
        quorum: str | None = None,
    ) -> None:
        self.logs = path / "logs"
        controller = _free_port()
        self.port = _free_port() if "broker" in roles else controller
        self.config = path / "server.properties"
        #: The `quorum` for other nodes.
        self.quorum = quorum or f"{node_id}@127.0.0.1:{controller}"
        listeners = ",".join(_LISTENERS[role] for role in roles).format(port=self.port, controller=controller)
        given = _SETTINGS.format(
            roles=",".join(roles), node_id=node_id, quorum=self.quorum, listeners=listeners, logs=self.logs
        )
        self.config.write_text("\n".join([given, *settings, ""]), encoding="utf-8")
        run("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", self.config)

    @property
    def address(self) -> str:
        """Address for clients."""
        return f"127.0.0.1:{self.port}"

    @contextmanager
    def running(self, *, kill: bool = False) -> Iterator[None]:
        """Start the broker; stop it cleanly at exit, or kill it."""
        assert JAVA is not None
        process = subprocess.Popen(
            [JAVA, *_JVM, "-cp", f"{JARS}/*", "kafka.Kafka", str(self.config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
            if not kill:
                process.terminate()
                process.wait(_PATIENCE_S)
        finally:
            process.kill()
            process.wait()

    def do(self, *operations: dict[str, Any]) -> list[Any]:
        """Return the result of a client operation (kafka_client.py); waits until the broker answers."""
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("kafka_client.py")), self.address],
            input=json.dumps(operations),
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found: list[Any] = json.loads(done.stdout)
        return found
