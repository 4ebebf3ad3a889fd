"""Faults of the proxy follow from its seed, and a store behind it loses and duplicates nothing."""

from __future__ import annotations

import random

import pytest

from sawlog.batch.build import encode
from sawlog.batch.read import decode
from sawlog.errors import AmbiguousAppend, StorageError
from sawlog.store.objects import journal
from sawlog.store.objects.bucket import Bucket
from sawlog.store.objects.store import ObjectStore

from .planted import planted
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


@pytest.mark.alternating
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


#: Answers of the bucket to the read of a commit after a refused create. obstore repeats a 500 once.
_LOOKS = {
    "denied": [Fault.DENIED],
    "denied for long": [Fault.DENIED] * 20,
    "failed": [Fault.FAILED] * 2,
    "failed for long": [Fault.FAILED] * 40,
    "flipped": [Fault.FLIPPED],
    "flipped for long": [Fault.FLIPPED] * 60,
    "truncated": [Fault.TRUNCATED],
    "lost": [Fault.LOST_AFTER] * 2,
}


def _stored_by_a_program_that_repeats(server: Server, look: list[Fault]) -> list[bytes]:
    """Return the stored records after an append whose create was applied and answered with 500, so that obstore's
    own retry was refused. The caller repeats the append after an error, unless the error is ambiguous."""
    url = server.new_url()
    with Proxy(server.endpoint) as proxy:
        options = {**server.options, "endpoint": proxy.endpoint, "max_retries": "1"}
        with ObjectStore.open(Bucket(url, options), maintenance_interval_s=None) as store:
            topic = store.create_topic("orders")
            topic.append(b"first")
            refused = proxy.counts["412"]
            proxy.plan("PUT", "commits/", Fault.FAILED)
            proxy.plan("GET", "commits/", *look)
            try:
                topic.append(b"an order")
            except AmbiguousAppend:
                pass
            except StorageError:
                topic.append(b"an order")
            assert proxy.counts["412"] > refused, "obstore did not repeat the create"
            assert proxy.counts[look[0]] > (look[0] is Fault.FAILED), "the commit was not looked up"
    with ObjectStore.open(Bucket(url, server.options), "r") as store:
        return [record.value or b"" for record in store.topic("orders").scan()]


#: One case for each kind of answer. The other cases repeat a kind and run with the slow tests.
_QUICK = ("denied", "failed for long", "flipped", "lost")


@pytest.mark.alternating
@pytest.mark.parametrize(
    "look", [each if each in _QUICK else pytest.param(each, marks=pytest.mark.slow) for each in _LOOKS]
)
def test_a_create_that_obstore_repeats_is_stored_once_and_never_reported_as_failed(
    moto: Server, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    monkeypatch.setattr(journal, "_LONGEST_PAUSE_S", 0.01)
    assert _stored_by_a_program_that_repeats(moto, _LOOKS[look]) == [b"first", b"an order"]


def test_a_refused_create_that_is_taken_for_a_failure_is_found(moto: Server) -> None:
    with planted("refusal is a failure"):
        stored = _stored_by_a_program_that_repeats(moto, _LOOKS["denied"])
    assert stored == [b"first", b"an order", b"an order"]
