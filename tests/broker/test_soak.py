"""The soak in its short form, and its judges on planted problems."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..faults.seeds import repeat, seed_of_this_run
from .soak import DESCRIPTORS, MEMORY_BYTES, Gauge, soak


def test_growth_from_the_second_quarter_to_the_last_is_found() -> None:
    steady = Gauge(0, memory=[1 << 20, *[100 << 20] * 99], descriptors=[3, *[50] * 99])
    assert steady.growth() == []
    grown = Gauge(0, memory=[i * MEMORY_BYTES // 25 for i in range(100)], descriptors=[50] * 100)
    assert [each.split()[0] for each in grown.growth()] == ["memory"]
    leaking = Gauge(0, memory=[100 << 20] * 100, descriptors=[i * DESCRIPTORS // 25 for i in range(100)])
    assert [each.split()[0] for each in leaking.growth()] == ["descriptors"]


@pytest.mark.slow  # a minute
def test_a_broker_serves_for_a_while_without_growing_or_violating_anything(tmp_path: Path) -> None:
    soaked = soak(tmp_path / "run", 0.7, seed_of_this_run())
    assert not soaked.outcome.violations, f"{repeat()} {soaked}"
    assert not soaked.trouble, f"{repeat()} {soaked}"
    assert soaked.outcome.counts["copied"] > 0
