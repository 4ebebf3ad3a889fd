"""The tools that come with Kafka: what their users type, against `sawlog serve`.

Skipped without a Java or Kafka's jars (tools/fetch_kafka.py).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ...interop.brokers import JARS, JAVA, needs_kafka, run
from ..serving import Serving
from .adapter import COMPRESSIONS, Sent, load
from .conftest import Hands

pytestmark = [pytest.mark.slow, needs_kafka]

TOOLS = "org.apache.kafka.tools"


def tool(broker: Serving, name: str, *arguments: object) -> str:
    """Run a tool and return its output."""
    return run(f"{TOOLS}.{name}", "--bootstrap-server", broker.address, *arguments)


def produce(broker: Serving, topic: str, lines: str, *arguments: str) -> None:
    """kafka-console-producer."""
    assert JAVA is not None
    command = [JAVA, "-cp", f"{JARS}/*", f"{TOOLS}.ConsoleProducer", "--bootstrap-server", broker.address]
    done = subprocess.run(
        [*command, "--topic", topic, *arguments], input=lines, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stderr, done.stderr


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_console_producer_and_consumer(broker: Serving, topic: str, compression: str) -> None:
    lines = [f"h1:v{number}\tkey {number}\tvalue {number}" for number in range(100)]
    properties = ["parse.headers=true", "parse.key=true"]
    codec = ["--compression-codec", compression]
    produce(broker, topic, "\n".join(lines), *codec, *(f"--property={each}" for each in properties))
    shown = ["print.headers=true", "print.key=true", "print.offset=true"]
    said = tool(
        broker,
        "consumer.ConsoleConsumer",
        *("--topic", topic, "--from-beginning", "--max-messages", 100, "--timeout-ms", 60_000),
        *(f"--property={each}" for each in shown),
    )
    assert [line for line in said.splitlines() if line.startswith("Offset:")] == [
        f"Offset:{number}\t{line}" for number, line in enumerate(lines)
    ]


def test_topics_partitions_and_offsets(broker: Serving, topic: str, tmp_path: Path) -> None:
    created = ("--create", "--topic", topic, "--partitions", 2, "--config", "retention.ms=3600000")
    assert f"Created topic {topic}" in tool(broker, "TopicCommand", *created)
    assert topic in tool(broker, "TopicCommand", "--list").split()
    tool(broker, "TopicCommand", "--alter", "--topic", topic, "--partitions", 3)
    said = tool(broker, "TopicCommand", "--describe", "--topic", topic)
    assert "PartitionCount: 3" in said
    assert "retention.ms=3600000" in said
    produce(broker, topic, "\n".join(map(str, range(30))))
    said = tool(broker, "GetOffsetShell", "--topic", topic, "--time", "latest")
    assert sum(int(line.rsplit(":", 1)[1]) for line in said.split()) == 30
    said = tool(broker, "GetOffsetShell", "--topic", topic, "--time", "max-timestamp")
    assert sum(line.startswith(topic) for line in said.split()) >= 1
    place = {"topic": topic, "partition": 0, "offset": -1}
    asked = tmp_path / "delete.json"
    asked.write_text(json.dumps({"partitions": [place], "version": 1}))
    assert "low_watermark" in tool(broker, "DeleteRecordsCommand", "--offset-json-file", asked)
    assert f'"partition":"{topic}-0"' in tool(broker, "LogDirsCommand", "--describe", "--topic-list", topic)
    tool(broker, "TopicCommand", "--delete", "--topic", topic)
    assert topic not in tool(broker, "TopicCommand", "--list").split()


def test_features_are_described(broker: Serving) -> None:
    """FinalizedVersionLevel of transaction.version is 2 with Kafka."""
    said = {line.split()[1]: line.split() for line in tool(broker, "FeatureCommand", "describe").splitlines()}
    for name in ("group.version", "metadata.version", "transaction.version"):
        assert {"SupportedMinVersion:", "SupportedMaxVersion:", "FinalizedVersionLevel:"} <= set(said[name])
    level = said["group.version"].index("FinalizedVersionLevel:") + 1
    assert said["group.version"][level] == "1"


def test_settings_are_described_and_changed(broker: Serving, topic: str) -> None:
    def configs(*arguments: object) -> str:
        of = ("--bootstrap-server", broker.address, "--entity-type", "topics", "--entity-name", topic)
        return run("kafka.admin.ConfigCommand", *of, *arguments)

    tool(broker, "TopicCommand", "--create", "--topic", topic)
    configs("--alter", "--add-config", "max.message.bytes=5000,cleanup.policy=[compact,delete]")
    said = configs("--describe")
    assert "max.message.bytes=5000" in said
    assert "cleanup.policy=compact,delete" in said
    configs("--alter", "--delete-config", "max.message.bytes")
    said = configs("--describe", "--all")
    assert "max.message.bytes=1048588" in said


def test_a_group_is_listed_described_reset_and_deleted(broker: Serving, topic: str) -> None:
    group = f"g-{topic}"
    produce(broker, topic, "\n".join(map(str, range(20))))
    read = ("--topic", topic, "--group", group, "--from-beginning", "--max-messages", 20, "--timeout-ms", 60_000)
    tool(broker, "consumer.ConsoleConsumer", *read)
    command = "consumer.group.ConsumerGroupCommand"
    assert group in tool(broker, command, "--list")
    said = tool(broker, command, "--describe", "--group", group)
    row = next(line.split() for line in said.splitlines() if line.startswith(group))
    assert row[1:6] == [topic, "0", "20", "20", "0"]
    to = ("--reset-offsets", "--to-offset", 5, "--topic", topic, "--execute")
    tool(broker, command, "--group", group, *to)
    said = tool(broker, command, "--describe", "--group", group, "--offsets")
    assert next(line.split() for line in said.splitlines() if line.startswith(group))[3] == "5"
    tool(broker, command, "--delete", "--group", group)
    assert group not in tool(broker, command, "--list").split()


def test_transactions_and_producers_are_described(broker: Serving, topic: str) -> None:
    hands = Hands(load("confluent"), broker.address)
    producer = hands.producer(transactional_id=topic)
    producer.begin()
    producer.send(topic, [Sent(b"x")])
    assert "Ongoing" in tool(broker, "TransactionsCommand", "list")
    said = tool(broker, "TransactionsCommand", "describe", "--transactional-id", topic)
    assert f"{topic}-0" in said
    said = tool(broker, "TransactionsCommand", "describe-producers", "--topic", topic, "--partition", 0)
    assert len(said.strip().splitlines()) == 2
    producer.commit()
    assert "CompleteCommit" in tool(broker, "TransactionsCommand", "list")
    hands.close()


def test_the_verifiable_producer_and_versions(broker: Serving, topic: str) -> None:
    said = tool(broker, "VerifiableProducer", "--topic", topic, "--max-messages", 500, "--acks", "-1")
    assert json.loads(said.strip().splitlines()[-1])["acked"] == 500
    assert "Produce(0): 0 to" in tool(broker, "BrokerApiVersionsCommand")


def test_a_performance_test_runs(broker: Serving, topic: str) -> None:
    given = ("--topic", topic, "--num-records", 20_000, "--record-size", 200, "--throughput", -1)
    command = f"{TOOLS}.ProducerPerformance"
    said = run(command, *given, "--producer-props", f"bootstrap.servers={broker.address}", "acks=all")
    assert "20000 records sent" in said
    said = tool(broker, "ConsumerPerformance", "--topic", topic, "--num-records", 20_000)
    assert "20000" in said
