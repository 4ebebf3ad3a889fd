"""Sampling leaves no test without a quick case, and no case out for ever."""

from __future__ import annotations

from .matrices import is_quick_now, quick_cases, quick_value

STORAGES = ("files", "memory")


def test_every_test_keeps_as_many_quick_cases_as_it_asks_for() -> None:
    for seed in range(50):
        assert len(quick_cases(seed, "test", cases=20, count=4)) == 4
        assert quick_cases(seed, "test", cases=3, count=4) == {0, 1, 2}


def test_every_case_is_quick_with_some_seed() -> None:
    assert set().union(*(quick_cases(seed, "test", cases=20, count=4) for seed in range(100))) == set(range(20))


def test_two_consecutive_seeds_cover_both_storages() -> None:
    for seed in range(50):
        assert {quick_value(seed, "test", STORAGES), quick_value(seed + 1, "test", STORAGES)} == set(STORAGES)


def test_a_seed_chooses_each_storage_for_some_cases_of_a_test() -> None:
    assert {quick_value(7, f"test[{case}]", STORAGES) for case in range(20)} == set(STORAGES)


def test_a_seed_always_chooses_the_same() -> None:
    assert quick_cases(7, "test", cases=20, count=4) == quick_cases(7, "test", cases=20, count=4)
    assert quick_value(7, "test", STORAGES) == quick_value(7, "test", STORAGES)


def test_a_test_that_alternates_is_quick_in_one_of_two_consecutive_seeds() -> None:
    for seed in range(50):
        assert is_quick_now(seed, "test") != is_quick_now(seed + 1, "test")
    assert {is_quick_now(7, f"test_{number}") for number in range(20)} == {True, False}
