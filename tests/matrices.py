"""Choose the quick cases of large test matrices by the seed of the run. `make test-all` runs all cases.

    @pytest.mark.sampled(6)
    @pytest.mark.parametrize("policy", POLICIES)
    @pytest.mark.parametrize("way", WAYS)
    def test_nothing_is_visible_in_the_middle_of_an_append(place: Place, policy: Any, way: str) -> None: ...

`sampled(6)`: six of the cases are quick. `alternating`: each case is quick in every second run; for tests that take a
third of a second or more and have siblings of the same kind. A test on several storages without these marks runs on one
of them in the quick tier. The remaining cases are marked `slow`.

pytest's header shows the seed (see tests/faults/seeds.py), so many runs cover all cases and each run can be repeated. A
test that is named on the command line (`pytest FILE::TEST`) runs with all its cases.
"""

from __future__ import annotations

import random
import zlib
from collections import defaultdict

import pytest

from .faults.seeds import seed_of_this_run

#: Parameters, and those of their values of which the quick tests need only one for each case.
STORAGES = {"place": ("files", "memory")}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sampled(count): so many of the cases are quick, chosen by the seed of the run")
    config.addinivalue_line("markers", "alternating: each case is quick in one run of two, chosen by the seed")


def quick_value(seed: int, case: str, values: tuple[str, ...]) -> str:
    """The one of these values with which the quick tests run a case. Consecutive seeds choose different ones."""
    return values[(zlib.crc32(case.encode()) + seed) % len(values)]


def quick_cases(seed: int, name: str, cases: int, count: int) -> set[int]:
    """Choose `count` quick cases out of `cases`."""
    return set(random.Random(f"{seed} {name}").sample(range(cases), min(count, cases)))


def is_quick_now(seed: int, name: str) -> bool:
    """True in one of two consecutive seeds: an alternating case is quick then."""
    return (zlib.crc32(name.encode()) + seed) % 2 == 0


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases `slow` that the seed does not choose."""
    if any("::" in argument for argument in config.args):
        return
    seed = seed_of_this_run()
    matrices: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow"):
            continue
        if item.get_closest_marker("alternating") and not is_quick_now(seed, item.nodeid):
            item.add_marker(pytest.mark.slow)
            continue
        name = item.nodeid.partition("[")[0]
        if item.get_closest_marker("sampled"):
            matrices[name].append(item)
        elif isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            for parameter, values in STORAGES.items():
                value = item.callspec.params.get(parameter)
                if value not in values:
                    continue
                # Not the node id: "files" and "memory" are also parts of names.
                others = sorted((other, at) for other, at in item.callspec.indices.items() if other != parameter)
                if value != quick_value(seed, f"{name} {others}", values):
                    item.add_marker(pytest.mark.slow)
    for name, cases in matrices.items():
        mark = cases[0].get_closest_marker("sampled")
        assert mark is not None
        chosen = quick_cases(seed, name, len(cases), mark.args[0])
        for at, item in enumerate(cases):
            if at not in chosen:
                item.add_marker(pytest.mark.slow)
