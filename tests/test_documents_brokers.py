"""The commands in docs/brokers-over-a-bucket.md do what the page shows, and its settings exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sawlog.broker.config import BrokerConfig

from .documents import ROOT, blocks, make_program, shell_output, steps
from .objects import servers
from .objects.brokerage import Fleet

PAGE = (ROOT / "docs" / "brokers-over-a-bucket.md").read_text(encoding="utf-8")
ADDRESSES = ("127.0.0.1:9092", "127.0.0.1:9093")


def steady(printed: str) -> str:
    """Without how long it took."""
    return re.sub(r"[\d.]+ s$", "N s", printed.strip(), flags=re.MULTILINE)


@pytest.mark.slow
def test_two_brokers_serve_one_store_as_shown(tmp_path: Path) -> None:
    wanted = [f"sawlog serve -d s3://bucket/store --listen {each}" for each in ADDRESSES]
    assert blocks(PAGE, "")[0].splitlines() == wanted
    make_program(tmp_path)
    with servers.moto() as server, Fleet(tmp_path, server) as fleet:
        for step in steps(PAGE):
            command = step.text
            for shown, broker in zip(ADDRESSES, fleet.brokers, strict=True):
                command = command.replace(shown, broker.address)
            assert steady(shell_output(tmp_path, command)) == steady(step.shown)


def test_the_settings_have_the_defaults_that_the_page_says() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", PAGE, re.MULTILINE)
    assert [name for name, _ in rows] == ["node_id", "broker_heartbeat_s", "broker_expiry_s"]
    for name, default in rows:
        value = getattr(BrokerConfig(), name)
        assert default == ("a free one" if value is None else f"{value:g}")
