"""Pytest fixtures: a broker for Kafka clients, without a container or Java.

```python
def test_orders_are_sent(sawlog_broker):
    send_orders(bootstrap_servers=sawlog_broker.address)
    assert len(sawlog_broker.records("orders")) == 3
```

The marker changes the settings for one test:

```python
@pytest.mark.sawlog_broker(sasl_mechanisms=["SCRAM-SHA-256"])
def test_the_program_authenticates(sawlog_broker):
    sawlog_broker.add_user("ann", "secret")
```

The plugin is installed with sawlog. It imports sawlog only when a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sawlog.testing.broker import Broker


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "sawlog_broker(**settings): settings of the fixture sawlog_broker")


@pytest.fixture
def sawlog_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A new, empty broker for this test."""
    from sawlog.testing.broker import Broker

    marker = request.node.get_closest_marker("sawlog_broker")
    with Broker(**({} if marker is None else marker.kwargs)) as broker:
        yield broker


@pytest.fixture(scope="session")
def sawlog_broker_session() -> Iterator[Broker]:
    """One broker for the whole session; `reset()` empties it."""
    from sawlog.testing.broker import Broker

    with Broker() as broker:
        yield broker
