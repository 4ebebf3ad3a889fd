"""The state of a partition, against a plain model: whatever is done, stored and lost in between, none is dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sawlog.store.queues.delivery_state import DOUBTFUL, FREE, LEASED, NEW, PAGE, Book, Entry, Page, runs_of


def store(book: Book, stored: dict[int, bytes]) -> None:
    """What a turn does at its end."""
    changed = book.settle()
    for number, value in changed.items():
        if value is None:
            stored.pop(number, None)
        else:
            stored[number] = value
    book.stored(changed)


def loaded(base: int, stored: Mapping[int, bytes]) -> Book:
    book = Book("id")
    book.load(base, stored)
    return book


def content(book: Book) -> tuple[int, int, dict[int, Entry]]:
    entries = {n: each for n in range(book.base, book.frontier) if (each := book[n]) is not None}
    return book.base, book.frontier, entries


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
    book, stored = loaded(0, {}), dict[int, bytes]()
    #: Open messages, in a plain dict; everything else below the frontier is finished.
    model: dict[int, Entry] = {}
    base = frontier = 0
    for what, number, count in steps:
        offsets = [each for each in range(number, number + count) if each in model]
        if what == "grow":
            fresh = {each: Entry(LEASED, 1, number, "me") for each in range(frontier, frontier + count) if each % 7}
            book.grow(frontier + count, fresh)
            model |= fresh
            frontier += count
        elif what in ("lease", "free"):
            entry = Entry(LEASED if what == "lease" else FREE, count % 5, number, "you" if what == "lease" else "")
            for each in offsets:
                book.put(each, entry)
                model[each] = entry
        elif what == "finish":
            for each in offsets:
                book.finish(each)
                del model[each]
        elif what == "expire":
            over = {n: e for n, e in model.items() if e.state == LEASED and (e.until_ms <= number or e.worker == "you")}
            assert book.expire(number, {"you"}) == len(over)
            model |= {n: Entry(DOUBTFUL, e.deliveries, 0, "") for n, e in over.items()}
        elif what == "reload":
            book = loaded(book.base, stored)
        elif what == "lose" and stored:  # damage: what was in the page counts as new
            lost = sorted(stored)[number % len(stored)]
            del stored[lost]
            book = loaded(base, stored)
            frontier = max([base, *(json.loads(each)["to"] for each in stored.values())])
            model = {n: e for n, e in model.items() if n < frontier and n // PAGE != lost}
            model |= dict.fromkeys(range(max(lost * PAGE, base), min((lost + 1) * PAGE, frontier)), NEW)
        elif what == "trim":
            lowest = min(number, frontier + 5)
            book.advance(lowest)
            base, frontier = max(base, lowest), max(frontier, lowest)
            model = {n: e for n, e in model.items() if n >= base}
        elif what == "cut":
            book.cut(number)
            frontier = min(frontier, number)
            model = {n: e for n, e in model.items() if n < frontier}
        store(book, stored)
        base = min(model, default=frontier)
        assert content(book) == (base, frontier, dict(sorted(model.items())))
        assert content(loaded(base, stored)) == content(book)
        assert book.open_count == len(model)
        assert book.workers == {e.worker for e in model.values() if e.state == LEASED}
        assert dict(book.due(count)) == {n: e for n, e in model.items() if e.until_ms <= count and e.state != LEASED}
        assert all(number >= base // PAGE for number in stored)  # nothing is kept that is finished


def test_a_group_that_was_moved_back_gets_everything_again() -> None:
    book, stored = loaded(0, {}), dict[int, bytes]()
    book.grow(10, {8: Entry(LEASED, 1, 5, "me")})
    store(book, stored)
    assert content(loaded(3, stored)) == (3, 10, {**dict.fromkeys(range(3, 8), NEW), 8: Entry(LEASED, 1, 5, "me")})


def test_pages_of_another_topic_or_without_sense_count_as_missing() -> None:
    good = Page(0, 0, 5, {3: NEW}).encode("id")
    assert loaded(0, {0: good}).frontier == 5
    for bad in (
        Page(0, 0, 5, {}).encode("another id"),
        b"",
        b"[]",
        b"{}",
        good.replace(b'"to":5', b'"to":9999'),
        good.replace(b"[3,1", b"[3,100"),
        good.replace(b"free", b"lost"),
        good.replace(b"[3,1", b"[-3,1"),
    ):
        book = loaded(0, {0: bad, 1: Page(1, PAGE, PAGE + 1, {}).encode("id")})
        assert book.frontier == PAGE + 1
        assert all(book[offset] == NEW for offset in range(PAGE))
        assert book.settle().keys() >= {0}  # replaced


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
    book = loaded(0, {0: data})
    assert book.base == 0


def test_neighbours_in_one_state_are_one_run() -> None:
    entry: Any = Entry(LEASED, 1, 7, "me")
    page = Page(0, 0, PAGE, dict.fromkeys(range(PAGE), entry))
    assert json.loads(page.encode("id"))["open"] == [[0, PAGE, *entry]]
