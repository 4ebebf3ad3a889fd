"""`sawlog serve`, as a process: start, output, stop."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import sawlog
from sawlog.broker.wire import ErrorCode, Key
from sawlog.cli import run
from sawlog.testing import Broker

from .. import warm
from ..log.places import eventually
from .peers import Peer, batch, fetch_body, produce_body
from .serving import ROOT, Serving

#: Prefix of the abbreviated names in a line of the documentation, by the first name of the line.
PREFIX = {
    "sawlog_log_size_bytes": "sawlog_log",
    "sawlog_group_lag_records": "sawlog_group",
    "sawlog_segments_created_total": "sawlog",
    "sawlog_recovery_truncated_bytes_total": "sawlog",
}


@contextmanager
def serving(data: Path, *flags: str, fresh: bool = False) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A broker in a process of its own, its address, and its output until it was ready. `fresh`: it starts as
    a user starts it; else it is forked from a process that has imported the broker."""
    command = ["-m", "sawlog.cli", "serve", "-d", str(data), *flags]
    if "--listen" not in flags:
        command += ["--listen", "127.0.0.1:0"]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen([sys.executable, *command], **streams) if fresh else warm.start(command, **streams)
    try:
        lines: list[str] = []
        assert process.stdout is not None
        while not lines or not lines[-1].startswith("started in"):
            line = process.stdout.readline()
            assert line, lines
            lines.append(line.rstrip())
        found = re.match(r"listening on (\S+), serving", lines[0])
        assert found, lines
        yield process, found[1], lines
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


@dataclass(frozen=True)
class Measured:
    """A broker with metrics, and where they are."""

    data: Path
    process: subprocess.Popen[str]
    address: str
    url: str

    @property
    def text(self) -> str:
        """All metrics."""
        with urllib.request.urlopen(self.url, timeout=60) as page:
            text: str = page.read().decode()
        return text

    def number(self, name: str) -> float:
        """The number of a sample."""
        return float(found(self.text, name))


@contextmanager
def measured_in(data: Path, *, fresh: bool = False) -> Iterator[Measured]:
    with serving(data, "--metrics", "127.0.0.1:0", fresh=fresh) as (process, address, lines):
        [url] = [line.removeprefix("metrics on ") for line in lines if line.startswith("metrics on ")]
        yield Measured(data, process, address, url)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """A broker for several tests, which share its counters."""
    data = tmp_path_factory.mktemp("measured")
    with sawlog.open(data) as store:
        store.create_topic("fast", durability="os")
    with measured_in(data, fresh=True) as made:  # one of the tests checks its imports
        yield made


def put(address: str, value: bytes, topic: str = "orders") -> int:
    with Peer(address) as peer:
        peer.ask(Key.METADATA, 9, {"topics": [{"name": topic}], "allow_auto_topic_creation": True})
        [answer] = peer.ask(Key.PRODUCE, 9, produce_body(topic, batch(value)))["responses"]
        part = answer["partition_responses"][0]
        assert part["error_code"] == ErrorCode.NONE
        offset: int = part["base_offset"]
        return offset


@pytest.mark.costly  # starts a Python, as a user does
def test_recovery_after_a_kill_is_reported_and_sigterm_stops_cleanly(tmp_path: Path) -> None:
    with serving(tmp_path / "data", fresh=True) as (process, address, lines):
        assert f"serving {tmp_path / 'data'} (0 topics)" in lines[0]
        assert put(address, b"one") == 0
        process.kill()
        process.wait(60)
    with serving(tmp_path / "data") as (process, address, lines):
        assert "recovered 1 partition that was not closed cleanly" in lines
        assert put(address, b"two") == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    with sawlog.open(tmp_path / "data", mode="r") as store:
        log = store.topic("orders").partition(0)
        assert log._was_closed_cleanly
        assert [record.value for record in log] == [b"one", b"two"]


def test_a_file_and_flags_give_the_settings_and_the_address_that_clients_are_told(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('default_partitions = 3\nlisten = "127.0.0.1:0"\n[topic_defaults]\n"retention.ms" = "1000"\n')
    flags = ("--config", str(file), "--set", "node_id=7", "--advertise", "logs.example:1234")
    with serving(tmp_path / "data", *flags) as (_, address, lines):
        assert "clients are told to connect to logs.example:1234" in lines
        put(address, b"one")
        with Peer(address) as peer:
            told = peer.ask(Key.METADATA, 9, {"topics": []})
        assert told["controller_id"] == 7
        assert [(node["host"], node["port"]) for node in told["brokers"]] == [("logs.example", 1234)]
    with sawlog.open(tmp_path / "data", mode="r") as store:
        assert store.topic("orders").partitions == 3
        assert store.topic("orders").settings == {"retention.ms": 1000}


def found(text: str, sample: str) -> float:
    """The value of a sample, whatever the order of its labels."""
    name, _, labels = sample.partition("{")
    wanted = dict(re.findall(r'(\w+)="([^"]*)"', labels))
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    [value] = [each.value for each in samples if (each.name, each.labels) == (name, wanted)]
    return float(value)


def test_metrics_health_and_readiness(tmp_path: Path) -> None:
    with measured_in(tmp_path) as broker:
        put(broker.address, b"one")
        with Peer(broker.address) as peer:
            peer.ask(Key.PRODUCE, 9, produce_body("orders", batch(b"x")[:40]))
            offset = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
            topics = [{"name": "orders", "partitions": [offset]}]
            peer.ask(
                Key.OFFSET_COMMIT,
                7,
                {"group_id": "billing", "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics},
            )
        text = broker.text
        assert found(text, 'sawlog_append_records_total{topic="orders"}') == 1
        assert found(text, 'sawlog_log_end_offset{topic="orders",partition="0"}') == 1
        assert found(text, "sawlog_fsync_seconds_count") > 0
        assert found(text, 'sawlog_request_seconds_count{api="Produce"}') == 2
        assert found(text, 'sawlog_errors_total{api="Produce",error="CORRUPT_MESSAGE"}') == 1
        assert found(text, 'sawlog_group_lag_records{group="billing",topic="orders",partition="0"}') == 1
        assert found(text, 'sawlog_group_lag_records_max{group="billing"}') == 1
        assert 0 < found(text, 'sawlog_group_lag_seconds{group="billing",topic="orders",partition="0"}') < 1000
        assert found(text, "sawlog_disk_free_bytes") > 0
        states = [found(text, f'sawlog_state{{state="{each}"}}') for each in ("ok", "readonly", "failed")]
        assert states == [1, 0, 0]
        assert found(text, f'sawlog_build_info{{version="{sawlog.__version__}"}}') == 1
        for line in text.splitlines():
            assert line.startswith("# ") or re.fullmatch(r'[a-z_]+(\{([a-z]+="[^"]*",?)+\})? [-+.e\d]+', line), line
        for name in ("healthz", "readyz"):
            with urllib.request.urlopen(broker.url.removesuffix("metrics") + name, timeout=60) as page:
                assert page.status == 200


def test_metrics_of_what_is_not_durable_damaged_or_on_its_way(measured: Measured) -> None:
    address, number = measured.address, measured.number
    put(address, bytes(1000), "fast")
    put(address, bytes(500_000), "bulk")
    [file] = (measured.data / "topics" / "fast" / "partition-0").glob("*.log")
    place = '{topic="fast",partition="0"}'
    assert number(f"sawlog_durable_lag_records{place}") == 1
    assert number(f"sawlog_durable_lag_bytes{place}") == number(f"sawlog_log_size_bytes{place}") > 1000
    assert number('sawlog_durable_lag_bytes{topic="bulk",partition="0"}') == 0

    assert number("sawlog_corrupt_batches_total") == 0
    with file.open("r+b") as damaged:
        damaged.seek(100)
        damaged.write(b"damage")
    with Peer(address) as peer:
        for _ in range(2):
            [part] = peer.ask(Key.FETCH, 12, fetch_body("fast", 0))["responses"][0]["partitions"]
            assert part["error_code"] == ErrorCode.CORRUPT_MESSAGE
    assert number("sawlog_corrupt_batches_total") == 1

    assert number("sawlog_inflight_bytes") == 0
    with Peer(address, receive_bytes=1 << 16) as deaf:
        # More than the system keeps for both ends: how much that is depends on the machine.
        deaf.send_together([(Key.FETCH, 12, fetch_body("bulk", 0))] * 200)
        deaf.socket.recv(1)
        assert eventually(lambda: number("sawlog_inflight_bytes") > 0)
    assert eventually(lambda: number("sawlog_inflight_bytes") == 0)


def test_messages_for_machines_are_json_line_by_line(tmp_path: Path) -> None:
    options = ("--log-format", "json", "--verbose")
    with Serving(tmp_path / "data", *options) as broker:
        put(broker.address, b"one")
        with Peer(broker.address) as stranger:
            stranger.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert stranger.socket.recv(1) == b""
        assert broker.stop() == 0
        said = [json.loads(line) for line in broker.said.splitlines()]
    assert {"time_ms", "level", "logger", "message"} <= set.intersection(*map(set, said))
    messages = [each["message"] for each in said]
    assert messages[0].startswith("started in")
    assert messages[-1] == "stopped"
    assert any("created topic orders" in each for each in messages)


def test_the_documentation_lists_all_metrics(measured: Measured) -> None:
    text = (ROOT / "docs" / "broker.md").read_text()
    told: set[str] = set()
    for line in text.splitlines():
        if line.startswith("| `sawlog_"):
            names = re.findall(r"`(\w+)`", line.split(" | ")[0])
            told |= {each if each.startswith("sawlog_") else f"{PREFIX[names[0]]}{each}" for each in names}
    given = set(re.findall(r"^# TYPE (\w+)", measured.text, re.MULTILINE))
    assert given == told


def test_a_public_listener_needs_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "-d", str(tmp_path / "data"), "--listen", "0.0.0.0:9092"]) == 2
    assert "--allow-anonymous" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_port_that_is_taken_is_said_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(["serve", "-d", str(tmp_path), "--listen", f"127.0.0.1:{taken.getsockname()[1]}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "in use" in line


def test_a_stop_answers_what_has_begun(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, address, _), Peer(address) as peer:
        put(address, b"one")
        waiting = peer.send(
            Key.FETCH,
            12,
            {
                "max_wait_ms": 600_000,
                "min_bytes": 1_000_000,
                "max_bytes": 1 << 20,
                "topics": [
                    {
                        "topic": "orders",
                        "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}],
                    }
                ],
            },
        )
        with Peer(address) as other:  # so that the fetch is certainly waiting
            other.ask(Key.METADATA, 9, {"topics": []})
        os.kill(process.pid, signal.SIGTERM)
        number, body = peer.receive()  # which waits for a minute, not for ten
        assert number == waiting
        assert len(body["responses"][0]["partitions"][0]["records"]) > 0
        assert process.wait(60) == 0


def test_a_stop_does_not_wait_for_a_client_that_does_not_read(tmp_path: Path) -> None:
    with serving(tmp_path, "--set", "stop_timeout_s=3600") as (process, address, _), Peer(address) as deaf:
        for number in range(8):
            put(address, bytes(900_000 + number))
        for _ in range(20):
            deaf.send(Key.FETCH, 12, fetch_body("orders", 0, partition_max_bytes=1 << 24))
        with Peer(address) as peer:
            peer.send(Key.PRODUCE, 9, produce_body("orders", batch(b"the last one")))
            deaf.socket.recv(1)  # so that the other responses are on their way
            process.send_signal(signal.SIGTERM)
            _, body = peer.receive()
            assert body["responses"][0]["partition_responses"][0]["base_offset"] == 8
        assert process.wait(60) == 0
    with sawlog.open(tmp_path, mode="r") as store:
        log = store.topic("orders").partition(0)
        assert log._was_closed_cleanly
        assert [len(record.value or b"") for record in log] == [*range(900_000, 900_008), len(b"the last one")]


@pytest.mark.costly  # `measured` ends here, a Python of its own
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_broker_starts_and_serves_without_arrow(measured: Measured) -> None:
    with Peer(measured.address) as peer:
        peer.ask(Key.METADATA, 9, {"topics": [{"name": "plain"}], "allow_auto_topic_creation": True})
        peer.ask(Key.PRODUCE, 9, produce_body("plain", batch(b"one")))
        peer.ask(Key.FETCH, 11, fetch_body("plain", 0))
        mapped = Path(f"/proc/{measured.process.pid}/maps").read_text(encoding="utf-8")
        assert "numpy" in mapped
        assert "libarrow" not in mapped


def test_without_prometheus_client_metrics_are_refused_with_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "sawlog.broker.monitoring", raising=False)
    for name in ("prometheus_client", "prometheus_client.core"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(sawlog.errors.MissingPackage, match=r"pip install '\.\[broker\]'"):
        Broker(metrics="127.0.0.1:0").start()
    with Broker() as broker:
        assert broker.store.topics() == []
