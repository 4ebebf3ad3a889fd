"""The state of a partition, against a plain model: whatever is done, stored and lost in between, none is dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sawlog.store.queues.delivery_state import (
    DOUBTFUL,
    FREE,
    LEASED,
    NEW,
    PAGE,
    DeliveryState,
    Entry,
    StatePage,
    runs_of,
)


def store(state: DeliveryState, stored: dict[int, bytes]) -> None:
    """End a turn."""
    changed = state.settle()
    for number, value in changed.items():
        if value is None:
            stored.pop(number, None)
        else:
            stored[number] = value
    state.stored(changed)


def loaded(base: int, stored: Mapping[int, bytes]) -> DeliveryState:
    state = DeliveryState("id")
    state.load(base, stored)
    return state


def content(state: DeliveryState) -> tuple[int, int, dict[int, Entry]]:
    entries = {n: each for n in range(state.base, state.frontier) if (each := state[n]) is not None}
    return state.base, state.frontier, entries


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["grow", "lease", "finish", "free", "expire", "reload", "lose", "trim", "cut"]),
        st.integers(0, 5000),
        st.integers(1, 900),
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_a_book_is_what_a_plain_model_says(steps: list[tuple[str, int, int]]) -> None:
    state, stored = loaded(0, {}), dict[int, bytes]()
    #: Open messages, in a plain dict; everything else below the frontier is finished.
    model: dict[int, Entry] = {}
    base = frontier = 0
    for what, number, count in steps:
        offsets = [each for each in range(number, number + count) if each in model]
        if what == "grow":
            fresh = {each: Entry(LEASED, 1, number, "me") for each in range(frontier, frontier + count) if each % 7}
            state.grow(frontier + count, fresh)
            model |= fresh
            frontier += count
        elif what in ("lease", "free"):
            entry = Entry(LEASED if what == "lease" else FREE, count % 5, number, "you" if what == "lease" else "")
            for each in offsets:
                state.put(each, entry)
                model[each] = entry
        elif what == "finish":
            for each in offsets:
                state.finish(each)
                del model[each]
        elif what == "expire":
            over = {n: e for n, e in model.items() if e.state == LEASED and (e.until_ms <= number or e.worker == "you")}
            assert state.expire(number, {"you"}) == len(over)
            model |= {n: Entry(DOUBTFUL, e.deliveries, 0, "") for n, e in over.items()}
        elif what == "reload":
            state = loaded(state.base, stored)
        elif what == "lose" and stored:  # damage: the messages of the page count as new
            lost = sorted(stored)[number % len(stored)]
            del stored[lost]
            state = loaded(base, stored)
            frontier = max([base, *(json.loads(each)["to"] for each in stored.values())])
            model = {n: e for n, e in model.items() if n < frontier and n // PAGE != lost}
            model |= dict.fromkeys(range(max(lost * PAGE, base), min((lost + 1) * PAGE, frontier)), NEW)
        elif what == "trim":
            lowest = min(number, frontier + 5)
            state.advance(lowest)
            base, frontier = max(base, lowest), max(frontier, lowest)
            model = {n: e for n, e in model.items() if n >= base}
        elif what == "cut":
            state.cut(number)
            frontier = min(frontier, number)
            model = {n: e for n, e in model.items() if n < frontier}
        store(state, stored)
        base = min(model, default=frontier)
        assert content(state) == (base, frontier, dict(sorted(model.items())))
        assert content(loaded(base, stored)) == content(state)
        assert state.open_count == len(model)
        assert state.workers == {e.worker for e in model.values() if e.state == LEASED}
        assert dict(state.due(count)) == {n: e for n, e in model.items() if e.until_ms <= count and e.state != LEASED}
        assert all(number >= base // PAGE for number in stored)  # nothing is kept that is finished


def test_a_group_that_was_moved_back_gets_everything_again() -> None:
    state, stored = loaded(0, {}), dict[int, bytes]()
    state.grow(10, {8: Entry(LEASED, 1, 5, "me")})
    store(state, stored)
    assert content(loaded(3, stored)) == (3, 10, {**dict.fromkeys(range(3, 8), NEW), 8: Entry(LEASED, 1, 5, "me")})


def test_pages_of_another_topic_or_without_sense_count_as_missing() -> None:
    good = StatePage(0, 0, 5, {3: NEW}).encode("id")
    assert loaded(0, {0: good}).frontier == 5
    for bad in (
        StatePage(0, 0, 5, {}).encode("another id"),
        b"",
        b"[]",
        b"{}",
        good.replace(b'"to":5', b'"to":9999'),
        good.replace(b"[3,1", b"[3,100"),
        good.replace(b"free", b"lost"),
        good.replace(b"[3,1", b"[-3,1"),
    ):
        state = loaded(0, {0: bad, 1: StatePage(1, PAGE, PAGE + 1, {}).encode("id")})
        assert state.frontier == PAGE + 1
        assert all(state[offset] == NEW for offset in range(PAGE))
        assert state.settle().keys() >= {0}  # replaced


@settings(max_examples=30)
@given(st.sets(st.integers(0, 30)))
def test_runs_cover_exactly_the_offsets(offsets: set[int]) -> None:
    runs = list(runs_of(offsets))
    assert {each for first, end in runs for each in range(first, end)} == offsets
    assert all(a[1] < b[0] for a, b in pairwise(runs))


JSON = st.sampled_from([b"null", b"7", b"[[]]", b'{"topic_id": "id"}', b'{"topic_id": "id", "from": [], "to": 1}'])


@settings(max_examples=30)
@given(st.binary(max_size=80) | JSON)
def test_any_bytes_in_a_page_are_refused_or_read(data: bytes) -> None:
    state = loaded(0, {0: data})
    assert state.base == 0


def test_neighbours_in_one_state_are_one_run() -> None:
    entry: Any = Entry(LEASED, 1, 7, "me")
    page = StatePage(0, 0, PAGE, dict.fromkeys(range(PAGE), entry))
    assert json.loads(page.encode("id"))["open"] == [[0, PAGE, *entry]]
