"""docs/broker-limits.md tells the limits as they are."""

from __future__ import annotations

import re

from sawlog.broker.config import BrokerConfig

from ..serving import ROOT

TEXT = (ROOT / "docs" / "broker-limits.md").read_text(encoding="utf-8")
SETTINGS = re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", TEXT, re.MULTILINE)


def test_the_defaults_are_those_that_the_document_tells() -> None:
    config = BrokerConfig()
    assert {name: repr(getattr(config, name)) for name, _ in SETTINGS} == dict(SETTINGS)


def test_every_limit_is_in_the_document() -> None:
    names = [name for name in BrokerConfig.__slots__ if name.startswith(("max_", "min_"))]
    names += [name for name in BrokerConfig.__slots__ if name.endswith("_timeout_s") and name != "stop_timeout_s"]
    assert {name for name, _ in SETTINGS} == set(names)


def test_every_reason_to_refuse_a_connection_is_in_the_document() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/sawlog/broker").rglob("*.py"))
    pace = (ROOT / "src/sawlog/broker/limits.py").read_text(encoding="utf-8")
    reasons = set(re.findall(r"refuse\(\s*\"(\w+)\"", source)) | set(re.findall(r"return \(?\"(\w+)\", f\"", pace))
    assert {"size", "room", "slow", "idle"} <= reasons
    assert not [each for each in reasons if f"`{each}`" not in TEXT]
