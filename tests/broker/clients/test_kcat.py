"""kcat, which most people have from their distribution: with an old librdkafka, which asks for exact versions.

Skipped where it is not installed (`apt-get install kcat`).
"""

from __future__ import annotations

import shutil
import subprocess

import pytest

from ..serving import Serving
from .adapter import COMPRESSIONS, load
from .conftest import Hands
from .test_records import codecs

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not installed")


def kcat(broker: Serving, *arguments: str, given: str = "") -> str:
    """Run kcat and return its output."""
    assert KCAT is not None
    done = subprocess.run(
        [KCAT, "-b", broker.address, *arguments], input=given, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_kcat_reads_what_it_writes(broker: Serving, topic: str, compression: str) -> None:
    lines = [f"key {number}:value {number} {'x' * 50}" for number in range(50)]
    kcat(broker, "-P", "-t", topic, "-z", compression, "-K:", "-H", "name=value", "-p0", given="\n".join(lines) + "\n")
    said = kcat(broker, "-C", "-t", topic, "-e", "-q", "-f", "%o %k:%s %h\n")
    assert said.splitlines() == [f"{number} {line} name=value" for number, line in enumerate(lines)]
    assert codecs(broker, topic) == {compression}  # it sends plain batches to a broker that it mistrusts


def test_kcat_lists_topics_and_finds_offsets_by_time(broker: Serving, topic: str) -> None:
    hands = Hands(load("confluent"), broker.address)
    hands.admin().create_topic(topic, 3)
    hands.close()
    kcat(broker, "-P", "-t", topic, "-p1", given="a\nb\nc\n")
    assert f'topic "{topic}" with 3 partitions' in kcat(broker, "-L", "-t", topic)
    assert kcat(broker, "-Q", "-t", f"{topic}:1:1000").split()[-1] == "0"


def test_kcat_is_a_member_of_a_group(broker: Serving, topic: str) -> None:
    kcat(broker, "-P", "-t", topic, "-X", "enable.idempotence=true", given="a\nb\nc\n")
    first = ["-X", "auto.offset.reset=earliest", "-e", "-q"]
    assert kcat(broker, *first, "-G", f"g-{topic}", topic) == "a\nb\nc\n"
    kcat(broker, "-P", "-t", topic, given="d\n")
    assert kcat(broker, *first, "-G", f"g-{topic}", topic) == "d\n"


def test_kcat_writes_in_a_transaction(broker: Serving, topic: str) -> None:
    kcat(broker, "-P", "-t", topic, "-X", f"transactional.id={topic}", given="a\nb\n")
    said = kcat(broker, "-C", "-t", topic, "-e", "-q", "-X", "isolation.level=read_committed")
    assert said == "a\nb\n"
