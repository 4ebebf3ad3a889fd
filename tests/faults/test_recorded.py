"""Power cuts over recorded system calls: real files keep what the simulated disk promises for them.

A few power cuts of each workload here; `python -m tests.faults recorded` does more. And the method itself is tested: the
recorder sees every change, the model says what is durable and what is not, and an fsync that is left out is found.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sawlog import Log
from sawlog.storage import FileDirectory, FileStorage, file, open_published

from .__main__ import main
from .recorded import STATES, WORKLOADS, Run, Scenario, Violated, scratch
from .syscalls import DATA, NAMES, History, PowerCut, Tree, lay_out, recording, tree_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is recorded are Linux's calls")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def place() -> Iterator[Path]:
    with scratch() as made:
        yield made


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_files_promise_survives_a_power_cut(name: str, place: Path) -> None:
    run = Run(name, 1, place)
    for scenario in run.sample(3):
        run.cut(scenario)
