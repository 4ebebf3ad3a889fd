"""A broker in a thread of this process, and a client that is connected to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sawlog.broker.remote import RemoteStore, connect
from sawlog.testing import Broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(auto_create_topics=False) as running:
        yield running


@pytest.fixture
def store(broker: Broker) -> Iterator[RemoteStore]:
    with connect(broker.address, timeout_s=60) as made:
        yield made
