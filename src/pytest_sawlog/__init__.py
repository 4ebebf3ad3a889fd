"""Fixtures for pytest: a Kafka-speaking broker, without a container and without Java.

```python
def test_orders_are_sent(sawlog_broker):
    send_orders(bootstrap_servers=sawlog_broker.address)
    assert len(sawlog_broker.records("orders")) == 3
```

Installed with sawlog. Nothing of sawlog is imported before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sawlog.testing.broker import Broker


@pytest.fixture
def sawlog_broker() -> Iterator[Broker]:
    """A broker of this test's own: new and empty."""
    from sawlog.testing.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def sawlog_broker_session() -> Iterator[Broker]:
    """One broker for all tests; `reset()` empties it."""
    from sawlog.testing.broker import Broker

    with Broker() as broker:
        yield broker
