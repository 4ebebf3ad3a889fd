"""The settings of a broker: whatever is wrong with one is said when the config is made, with its name and place."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from sawlog.broker.config import Address, BrokerConfig, changed, from_text, read_toml
from sawlog.cli import run
from sawlog.errors import InvalidConfig

from ..looping import for_each

NAMES = [each.name for each in fields(BrokerConfig)]
NUMBERS = [each.name for each in fields(BrokerConfig) if type(each.default) in (int, float)]
HUGE = 10**30


def made(**given: Any) -> BrokerConfig:
    return changed(BrokerConfig(), given)


@for_each("name", NAMES)
def test_every_setting_refuses_a_value_of_another_type_and_says_its_name(name: str) -> None:
    for wrong in (object(), [1], {"no": "such"}, b"x", math.nan):
        with pytest.raises(InvalidConfig, match=f"^{name}"):
            made(**{name: wrong})


@for_each("name", NUMBERS)
def test_every_number_refuses_what_is_negative_huge_or_not_a_number(name: str) -> None:
    for wrong in (-1, HUGE, math.inf, True, "1", "1s"):
        with pytest.raises(InvalidConfig, match=rf"^{name} must be an? \w+ from [\d.]+ to \d+, not "):
            made(**{name: wrong})


@for_each("name", NAMES)
def test_every_default_is_allowed(name: str) -> None:
    value = getattr(BrokerConfig(), name)
    assert getattr(made(**{name: value}), name) == value


WRONG = {
    "advertise = 1": "advertise: an address must be HOST:PORT, not 1",
    "listen = 9092": "listen: an address must be HOST:PORT, not 9092",
    'listen = "http://here:9092"': "listen: an address must be HOST:PORT",
    'listen = "a..b:9092"': "listen: an address must be HOST:PORT",
    f'listen = "here:{"9" * 5000}"': "listen: an address must be HOST:PORT",
    'auto_create_topics = "no"': "auto_create_topics must be true or false, not 'no'",
    "auto_create_topics = 0": "auto_create_topics must be true or false, not 0",
    'transaction_max_timeout_ms = "1s"': "transaction_max_timeout_ms must be an integer from 1 to 2147483647, not '1s'",
    'stop_timeout_s = "x"': "stop_timeout_s must be a number from 0 to 86400, not 'x'",
    "stop_timeout_s = nan": "stop_timeout_s must be a number from 0 to 86400, not nan",
    "cluster_id = 5": "cluster_id must be a text of 1 to 255 printable characters, not 5",
    'cluster_id = ""': "cluster_id must be a text",
    "group-initial-rebalance-delay-ms = -1": "group-initial-rebalance-delay-ms must be an integer from 0 to",
    "max_request_bytes = 999999999999999999999": "max_request_bytes must be an integer from 1024 to 2147483647",
    f"threads = 0x1{'0' * 9000}": "threads must be an integer from 1 to 1024, not a number of more than 4,000 digits",
    "default_partitions = 99999999": "default_partitions must be an integer from 1 to 100000, not 99999999",
    "node_id = 2024-01-01": "node_id must be an integer",
    "no_such = 1": "unknown setting 'no_such'; use one of advertise, ",
    "topic_defaults = 3": "topic_defaults must be a table of topic settings, not 3",
    "[topic_defaults]\nno_such = 1": "topic_defaults: unknown setting 'no_such'",
    '[topic_defaults]\n"retention.ms" = "abc"': "topic_defaults: retention.ms must be an integer, at least -1, not",
    "[topic_defaults]\nretention.ms = 1": "topic_defaults: retention is a table; a name with dots needs quotes",
    '[topic_defaults]\n"cleanup.policy" = "burn"': "topic_defaults: cleanup.policy must be delete",
    '[topic_defaults]\ndurability = "perhaps"': "topic_defaults: durability must be always",
    f'[topic_defaults]\n"min.cleanable.dirty.ratio" = 1{"0" * 400}': "topic_defaults: min.cleanable.dirty.ratio must",
}


@for_each("text", WRONG)
def test_an_error_in_a_file_names_its_path_and_the_setting(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(text)
    with pytest.raises(InvalidConfig) as found:
        read_toml(file)
    assert str(found.value).startswith(f"{file}: {WRONG[text]}")


@for_each(
    "content",
    [b"\x7fELF\xd0\xff", b"listen = ", f"threads = {'9' * 5000}".encode(), b"x = " + b"[" * 100_000],
)
def test_the_error_for_invalid_toml_names_the_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broker.toml"
    file.write_bytes(content)
    with pytest.raises(InvalidConfig, match=r"broker\.toml is not TOML: "):
        read_toml(file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"none\.toml cannot be read: No such file"):
        read_toml(tmp_path / "none.toml")
    with pytest.raises(InvalidConfig, match="cannot be read: Is a directory"):
        read_toml(tmp_path)


def test_a_file_gives_values_of_the_right_types(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        'listen = "[::1]:0"\nstop-timeout-s = 5\ncheck_records = false\n[topic_defaults]\n"retention.ms" = "1000"\n'
    )
    config = changed(BrokerConfig(), read_toml(file))
    assert config.listen == Address("::1", 0)
    assert (config.stop_timeout_s, type(config.stop_timeout_s)) == (5.0, float)
    assert config.check_records is False
    assert config.topic_defaults == {"retention.ms": 1000}


@for_each(
    ("name", "text", "value"),
    [
        ("listen", "127.0.0.1:1", Address("127.0.0.1", 1)),
        ("node-id", "7", 7),
        ("check_records", "False", False),
        ("maintenance_interval_s", "0.5", 0.5),
        ("cluster_id", "5", "5"),
    ],
)
def test_text_becomes_the_type_of_the_setting(name: str, text: str, value: object) -> None:
    assert from_text(name, text) == value


@for_each(
    ("name", "text", "said"),
    [
        ("threads", "many", "threads must be an integer from 1 to 1024, not 'many'"),
        ("threads", "0", "threads must be an integer from 1 to 1024, not 0"),
        ("check_records", "no", "check_records must be true or false, not 'no'"),
        ("refresh_s", "nan", "refresh_s must be a number from 0.001 to 86400, not nan"),
        ("topic_defaults", "1", "topic_defaults: it is a table, which only a file can give"),
        ("no_such", "1", "unknown setting 'no_such'"),
    ],
)
def test_text_that_is_wrong_is_refused(name: str, text: str, said: str) -> None:
    with pytest.raises(InvalidConfig) as found:
        from_text(name, text)
    assert str(found.value).startswith(said)


@for_each("name", ["listen", "metrics"])
def test_an_address_that_other_machines_reach_needs_permission(name: str) -> None:
    with pytest.raises(InvalidConfig, match=r"0\.0\.0\.0:9644 can be reached .* --allow-anonymous"):
        made(**{name: "0.0.0.0:9644"})
    assert getattr(made(**{name: "0.0.0.0:9644"}, allow_anonymous=True), name) == Address("0.0.0.0", 9644)


def test_times_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="group_min_session_timeout_ms must be at most"):
        made(group_max_session_timeout_ms=50)
    with pytest.raises(InvalidConfig, match="group_consumer_heartbeat_interval_ms must be at most"):
        made(group_consumer_session_timeout_ms=1000)


@for_each(
    ("flags", "said"),
    [
        (("--listen", "nowhere"), "--listen: listen: an address must be HOST:PORT, not 'nowhere'"),
        (("--listen", "127.0.0.1:99999"), "HOST:PORT"),
        (("--listen", "0.0.0.0:9092"), "--allow-anonymous"),
        (("--metrics", "0.0.0.0:0"), "--allow-anonymous"),
        (("--partitions", "99999999"), "default_partitions must be an integer from 1 to 100000, not 99999999"),
        (("--set", "no_such=1"), "unknown setting 'no_such'"),
        (("--set", "threads=many"), "threads must be an integer"),
        (("--set", "threads"), "is not NAME=VALUE"),
        (("--set", "topic_defaults=1"), "only a file can give"),
        (("--log-format", "xml"), "text or json"),
        (("--config", "none.toml"), "none.toml"),
        (("--config", "."), "is a directory"),
        (("--config", "broker.toml"), "broker.toml: auto_create_topics must be true or false, not 'no'"),
        (("--config", "program"), "program is not TOML"),
    ],
)
def test_the_program_says_what_is_wrong_in_a_line_and_creates_nothing(
    flags: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broker.toml").write_text('auto_create_topics = "no"')
    Path("program").write_bytes(b"\x7fELF\xd0\xff")
    assert run(["serve", "-d", "data", *flags]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("sawlog: ")
    assert said in line
    assert not Path("data").exists()


@for_each("command", [("serve",), ("topic", "create", "orders")])
def test_a_file_is_not_taken_for_a_directory(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"mine")
    assert run([*command, "-d", str(file)]) == 2
    assert f"{file} is a file, not a directory" in capsys.readouterr().err
    assert file.read_bytes() == b"mine"


def test_members_may_ask_for_the_session_timeouts_that_kafka_allows() -> None:
    config = BrokerConfig()
    assert (config.group_min_session_timeout_ms, config.group_max_session_timeout_ms) == (6_000, 1_800_000)
