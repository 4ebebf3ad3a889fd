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

import random
import zlib
from collections import defaultdict
from pathlib import Path

import pytest

from .faults.seeds import seed_of_this_run


def register(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", "sampled(count): so many of the cases are quick, chosen by the seed of the run")


def mark_slow_cases(
    config: pytest.Config, items: list[pytest.Item], folder: Path, storages: dict[str, tuple[str, ...]] | None = None
) -> None:
    """Mark the cases below this folder `slow` that the seed does not choose. `storages`: the values of parameters of
    which the quick tests need only one for each case."""
    if any("::" in argument for argument in config.args):
        return
    seed = seed_of_this_run()
    matrices: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not item.path.is_relative_to(folder) or item.get_closest_marker("slow"):
            continue
        if item.get_closest_marker("sampled"):
            matrices[item.nodeid.partition("[")[0]].append(item)
            continue
        given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        for parameter, values in (storages or {}).items():
            if (value := given.get(parameter)) in values:
                # An even and an odd seed choose different storages: two such runs see both.
                case = item.nodeid.replace(value, "", 1).encode()
                if value != values[(zlib.crc32(case) + seed) % len(values)]:
                    item.add_marker(pytest.mark.slow)
    for name, cases in matrices.items():
        mark = cases[0].get_closest_marker("sampled")
        assert mark is not None
        chosen = random.Random(f"{seed} {name}").sample(range(len(cases)), min(mark.args[0], len(cases)))
        for at, item in enumerate(cases):
            if at not in chosen:
                item.add_marker(pytest.mark.slow)
