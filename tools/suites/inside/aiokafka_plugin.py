"""A plugin for pytest, inside aiokafka's tests: a broker that is there already instead of a container.

aiokafka's fixtures start a container of its own making, with listeners for TLS and SASL, a Kerberos server, and
Kafka's command-line tools. Here `$SUITE_BROKER` is used, which has one plain listener; tests that need the rest are
skipped, whatever the broker. It runs in the suite's environment, so it imports nothing of ours.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

_HOST, _, _PORT = os.environ["SUITE_BROKER"].rpartition(":")
_NEEDS_CONTAINER = "needs the listeners and tools of aiokafka's container"


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Skip what needs more than a plain listener."""
    skipped = pytest.mark.skip(reason=_NEEDS_CONTAINER)
    for item in items:
        if item.path.name == "test_sasl.py" or item.get_closest_marker("ssl") or "ssl" in item.name:
            item.add_marker(skipped)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> object | None:
    """Give these fixtures a value, instead of letting them start something."""
    makers = {
        "docker": lambda: None,
        "kafka_image": lambda: request.config.getoption("--docker-image"),
        "ssl_folder": lambda: Path("no-certificates"),
        "kerberos_utils": lambda: None,
        "acl_manager": lambda: None,
        "kafka_config": lambda: None,
        "kafka_server": _server,
    }
    make = makers.get(fixturedef.argname)
    if make is None:
        return None
    value = make()
    fixturedef.cached_result = (value, fixturedef.cache_key(request), None)
    return value if value is not None else True  # None would let pytest go on to the fixture itself


def _server() -> object:
    made: object = importlib.import_module("tests.conftest").KafkaServer(_HOST, int(_PORT), 0, 0, 0, None)
    return made
