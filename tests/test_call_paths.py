"""`tools/call_paths.py` measures the code that an operation passes through."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .documents import ROOT

TOOL = ROOT / "tools" / "call_paths.py"


@pytest.mark.parametrize("operation", ["log.read", "topic.append, objects"])
def test_the_files_and_functions_of_an_operation_are_counted(operation: str) -> None:
    done = subprocess.run([sys.executable, TOOL, "--show", operation], check=True, capture_output=True, text=True)
    _, row, *shown = done.stdout.splitlines()
    files, _, functions, switches = map(int, row.removeprefix(operation).split())
    assert files == len(shown) > 1
    assert functions >= files
    assert switches >= files - 1


def test_an_unknown_operation_is_refused_with_the_known_ones() -> None:
    done = subprocess.run([sys.executable, TOOL, "log.write"], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "unknown operation 'log.write'; choose from topic.append, durable" in done.stderr
