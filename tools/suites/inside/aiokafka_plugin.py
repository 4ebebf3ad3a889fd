"""A pytest plugin for aiokafka's tests that uses an existing broker instead of a container.

aiokafka's fixtures start a custom container with listeners for TLS and SASL, a Kerberos server, and Kafka's
command-line tools. The plugin uses `$SUITE_BROKER`, which has one plain listener; tests that need more are skipped with
either broker. It runs in the suite's environment, so it does not import sawlog.
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
    """Skip tests that need more than a plain listener."""
    skipped = pytest.mark.skip(reason=_NEEDS_CONTAINER)
    for item in items:
        if item.path.name == "test_sasl.py" or item.get_closest_marker("ssl") or "ssl" in item.name:
            item.add_marker(skipped)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> object | None:
    """Set the value of these fixtures, so that they start nothing."""
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
    return value if value is not None else True  # with None, pytest would call the fixture itself


def _server() -> object:
    made: object = importlib.import_module("tests.conftest").KafkaServer(_HOST, int(_PORT), 0, 0, 0, None)
    return made
