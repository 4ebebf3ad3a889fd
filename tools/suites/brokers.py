"""The brokers under test: `sawlog serve` with its defaults, or a single Apache Kafka node with its defaults.

Both get the few settings that a suite requires: the number of partitions of a new topic, the id of the broker, short
session timeouts. Kafka also gets its authorizer, which the suites' own setups enable. Both run as separate processes,
which end with the block.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .places import ROOT

SAWLOG, KAFKA = "sawlog", "kafka"
BROKERS = (SAWLOG, KAFKA)

#: By default, share groups keep their state in a topic with three replicas.
_ONE_NODE = ("share.coordinator.state.topic.replication.factor=1", "share.coordinator.state.topic.min.isr=1")
_AUTHORIZER = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found=true",
    "super.users=User:admin",
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Requirements of a suite for its broker."""

    partitions: int
    node_id: int = 1
    #: The shortest session timeout that a member may request; Kafka's default is 6000.
    min_session_timeout_ms: int = 100


@contextmanager
def serving(against: str, wanted: Wanted, directory: Path) -> Iterator[str]:
    """Start a broker with an empty store and yield its address. Its log stays in the directory."""
    sys.path.insert(0, str(ROOT))  # the tests' code starts both
    try:
        if against == SAWLOG:
            options = ["--partitions", str(wanted.partitions), "--set", f"node_id={wanted.node_id}"]
            # From the first rule on, the broker refuses clients that no rule names; these clients are anonymous.
            options += ["--set", "allow_everyone_if_no_acl_found=true"]
            options += ["--set", f"group_min_session_timeout_ms={wanted.min_session_timeout_ms}"]
            made = importlib.import_module("tests.broker.serving").Serving(directory / "data", *options)
        else:
            settings = (
                f"num.partitions={wanted.partitions}",
                f"group.min.session.timeout.ms={wanted.min_session_timeout_ms}",
                *_ONE_NODE,
                *_AUTHORIZER,
            )
            made = importlib.import_module("tests.broker.oracle").Oracle(
                directory, settings=settings, node_id=wanted.node_id
            )
    finally:
        sys.path.remove(str(ROOT))
    with made:
        yield str(made.address)


def kafka_tools(directory: Path) -> Path | None:
    """Return a directory with the programs of Kafka's distribution that suites call; None without Java or jars. They
    run Kafka's own classes against either broker."""
    java, jars = shutil.which("java"), importlib.import_module("fetch_kafka").jars_directory()
    if java is None or not any(jars.glob("kafka-tools-[0-9]*.jar")):
        return None
    tools = {
        "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
        "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
        "kafka-run-class.sh": "",
    }
    (directory / "bin").mkdir(parents=True, exist_ok=True)
    for name, tool in tools.items():
        script = directory / "bin" / name
        command = f'"{java}" -Xmx256m -XX:TieredStopAtLevel=1 -cp "$CLASSPATH:{jars}/*" {tool}'
        script.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    if not (directory / "libs").exists():
        (directory / "libs").symlink_to(jars)
    return directory


def version_of(against: str) -> str:
    """Return the version of the broker."""
    if against == SAWLOG:
        return str(importlib.import_module("sawlog").__version__)
    return str(importlib.import_module("fetch_kafka").VERSION)


def missing(against: str) -> str | None:
    """Return the software to install before this broker can start, or None."""
    if against == SAWLOG:
        return None
    fetch_kafka = importlib.import_module("fetch_kafka")
    if shutil.which("java") is None:
        return "a Java (17 or newer) is needed to run Apache Kafka"
    if not any(fetch_kafka.jars_directory().glob("kafka_*.jar")):
        return "Kafka's jars are not here: make kafka-jars"
    return None
