"""A `sawlog serve` process that may not take more memory than its limits add up to, under attack."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from sawlog.broker.wire import ErrorCode, Key

from ..peers import Peer, produce_body
from .attacks import ATTACKS, HELLO, HTTP, MANY, TOPIC, all_bombs, attacking
from .storm import UNPACKED, Limited, be_good, warm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces RLIMIT_AS")


@pytest.mark.costly  # a Python of its own, whose address space has a limit
def test_bombs_strangers_and_claims_are_refused_within_the_memory_that_is_allowed(tmp_path: Path) -> None:
    with Limited(tmp_path / "data") as broker:
        warm(broker.address, records=1)
        broker.limit()
        for name, raw in all_bombs().items():
            with Peer(broker.address) as peer:
                [answer] = peer.ask(Key.PRODUCE, 9, produce_body(TOPIC, raw))["responses"]
                [part] = answer["partition_responses"]
                assert part["error_code"] == ErrorCode.CORRUPT_MESSAGE, name
                assert f"{UNPACKED} are allowed" in part["error_message"] or name.startswith("snappy"), name
        for sent in (HELLO, HTTP, MANY):
            with Peer(broker.address) as stranger:
                stranger.socket.sendall(sent)
                assert stranger.is_closed()
        assert be_good(broker.address, 0.2).failed == 0
        assert broker.stop() == 0
        assert "Traceback" not in broker.said
        assert "this looks like TLS" in broker.said
        assert "this looks like HTTP" in broker.said


@pytest.mark.slow
@pytest.mark.parametrize("names", [*((name,) for name in ATTACKS), tuple(ATTACKS)], ids=[*ATTACKS, "all"])
def test_good_clients_are_served_meanwhile_and_nothing_is_left(tmp_path: Path, names: tuple[str, ...]) -> None:
    with Limited(tmp_path / "data") as broker:
        warm(broker.address)
        be_good(broker.address, 1)
        broker.limit()
        before = broker.descriptors
        with attacking(broker.address, *names):
            time.sleep(3)
            served = be_good(broker.address, 10)
            assert broker.is_running, broker.said[-4000:]
        assert served.failed == 0
        assert len(served.seconds) > 20
        deadline = time.monotonic() + 60
        while broker.descriptors > before + 5:
            assert time.monotonic() < deadline, "connections of clients that are gone are left"
            time.sleep(0.2)
        assert be_good(broker.address, 1).failed == 0
        assert broker.stop() == 0
        assert "Traceback" not in broker.said, broker.said[-4000:]
        assert len(broker.said) < 100_000
