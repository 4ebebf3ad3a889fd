"""Matrices of parameters: the quick tests run some of the cases, `make test-all` runs all of them.

    @pytest.mark.sampled(6)
    @pytest.mark.parametrize("policy", POLICIES)
    @pytest.mark.parametrize("way", WAYS)
    def test_nothing_is_visible_in_the_middle_of_an_append(place: Place, policy: Any, way: str) -> None: ...

The other cases are marked `slow`. A test that runs on several storages without that mark runs on one of them in the
quick tests.

The seed of the run chooses, and pytest's header shows it (see tests/faults/seeds.py), so that many runs see all cases
and each run can be repeated. A test that is named on the command line (`pytest FILE::TEST`) runs with all its cases.
A folder turns this on in its conftest.py, with `register` and `mark_slow_cases`.
"""

from __future__ import annotations

import os
import random
import zlib
from collections import defaultdict
from pathlib import Path

import pytest

from .faults.seeds import seed_of_this_run


def register(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", "sampled(count): so many of the cases are quick, chosen by the seed of the run")


def quick_value(seed: int, case: str, values: tuple[str, ...]) -> str:
    """The one of these values with which the quick tests run a case. Consecutive seeds choose different ones."""
    return values[(zlib.crc32(case.encode()) + seed) % len(values)]


def quick_cases(seed: int, name: str, cases: int, count: int) -> set[int]:
    """Which of so many cases of a test are quick."""
    return set(random.Random(f"{seed} {name}").sample(range(cases), min(count, cases)))


def mark_slow_cases(
    config: pytest.Config, items: list[pytest.Item], folder: Path, storages: dict[str, tuple[str, ...]] | None = None
) -> None:
    """Mark the cases below this folder `slow` that the seed does not choose. `storages`: the values of parameters of
    which the quick tests need only one for each case."""
    if any("::" in argument for argument in config.args):
        return
    seed, below = seed_of_this_run(), f"{folder}{os.sep}"
    matrices: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not str(item.path).startswith(below) or item.get_closest_marker("slow"):
            continue
        if item.get_closest_marker("sampled"):
            matrices[item.nodeid.partition("[")[0]].append(item)
            continue
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        for parameter, values in (storages or {}).items():
            value = item.callspec.params.get(parameter)
            # Not the node id: "files" and "memory" are also parts of names.
            others = sorted((name, at) for name, at in item.callspec.indices.items() if name != parameter)
            case = f"{item.nodeid.partition('[')[0]} {others}"
            if value in values and value != quick_value(seed, case, values):
                item.add_marker(pytest.mark.slow)
    for name, cases in matrices.items():
        mark = cases[0].get_closest_marker("sampled")
        assert mark is not None
        chosen = quick_cases(seed, name, len(cases), mark.args[0])
        for at, item in enumerate(cases):
            if at not in chosen:
                item.add_marker(pytest.mark.slow)
