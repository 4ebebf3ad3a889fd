"""What happens behind the proxy is decided by its seed; a store behind it loses and doubles nothing."""

from __future__ import annotations

import random

from sawlog.batch.build import encode
from sawlog.batch.read import decode
from sawlog.objects.bucket import Bucket
from sawlog.objects.store import ObjectStore

from .proxy import Fault, Faults, Proxy
from .servers import Server


def test_the_same_requests_have_the_same_faults_in_any_order() -> None:
    faults = Faults(seed=3, lost_before=0.2, lost_after=0.2, busy=0.2)
    requests = [("PUT", f"/bucket/{key}", seen, True) for key in range(50) for seen in range(4)]
    first = {each: faults.of(*each) for each in requests}
    random.Random(1).shuffle(requests)
    assert {each: faults.of(*each) for each in requests} == first
    assert set(first.values()) == {Fault.NONE, Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.BUSY}
    assert {each: Faults(seed=4, lost_before=0.2, lost_after=0.2, busy=0.2).of(*each) for each in requests} != first


def test_faults_happen_as_often_as_they_are_asked_for() -> None:
    faults = Faults(seed=1, lost_after=0.1, late=0.05)
    drawn = [faults.of("PUT", "/bucket/key", seen, False) for seen in range(10_000)]
    assert 900 < drawn.count(Fault.LOST_AFTER) < 1100
    assert 400 < drawn.count(Fault.LATE) < 600


def test_a_store_behind_a_bad_network_stores_everything_once_and_in_order(moto: Server) -> None:
    values = [b"%d" % number for number in range(16)]
    faults = Faults(
        seed=12, lost_before=0.05, lost_after=0.1, failed=0.05, busy=0.05, conflict=0.1, late=0.05, late_s=0.2
    )
    url = moto.new_url()
    with Proxy(moto.endpoint, faults) as proxy:
        with ObjectStore.open(Bucket(url, {**moto.options, "endpoint": proxy.endpoint})) as store:
            log = store.create_topic("orders").partition(0)
            for value in values:
                log.append_batches(encode([value]))
        proxy.settle()
        ambiguous = proxy.counts[Fault.LOST_AFTER] + proxy.counts[Fault.FAILED] + proxy.counts[Fault.LATE]
    assert ambiguous >= 4
    with ObjectStore.open(Bucket(url, moto.options), "r") as store:
        page = store.topic("orders").partition(0).fetch(0, 1 << 20)
    assert [(record.offset, record.value) for record in decode(page.raw)] == list(enumerate(values))
