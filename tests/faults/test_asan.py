"""The compiled kernel under AddressSanitizer: that it runs, that it sees, and that it says so where it cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sawlog

from . import asan, shadow
from .__main__ import main


def command(*options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(sawlog.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-m", "tests.faults", "asan", *options],
        env=env,
        cwd=shadow.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_where_the_compiler_is_missing_it_is_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["asan"]) == 2
    assert capsys.readouterr().out.startswith("NOT RUN: there is no gcc")


@pytest.mark.costly  # an interpreter that compiles a copy of the package
def test_the_other_package_differs_in_its_kernel_alone(tmp_path: Path) -> None:
    package = shadow.make(tmp_path / "package")
    code = "import sawlog; print(sawlog.__file__, sawlog.kernel_info().compiled)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(package / "sawlog/__init__.py"), "False"]


@pytest.fixture
def sanitized(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that runs under the sanitizers."""
    tools = asan.builder()
    if (lacking := tools.missing()) is not None:
        pytest.skip(f"cannot be built here: {lacking}")
    libraries = [tools.library(name) for name in ("libasan.so", "libubsan.so")]
    return asan.environment(shadow.make(tmp_path / "package", tools.build()), libraries)


#: A buffer of 100 bytes that claims to be one of 200.
BEYOND = """
import ctypes
import numpy as np
import sawlog.batch.kernel as kernel
data = np.zeros(100, np.uint8)
view = memoryview((ctypes.c_ubyte * 200).from_address(data.ctypes.data)).cast("B")
kernel.find_header(view, 0, 200, 0)
"""


@pytest.mark.slow
def test_a_read_behind_a_buffer_is_seen(sanitized: dict[str, str]) -> None:
    """The kernel is given a buffer's length that is too large: the sanitizer must stop it."""
    done = subprocess.run([sys.executable, "-c", BEYOND], env=sanitized, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
    assert "find_header" in done.stderr


@pytest.mark.slow
def test_the_corpus_and_mutated_inputs_are_read_without_leaving_a_buffer(tmp_path: Path) -> None:
    done = command("--executions=20000", "--without-tests", f"--keep={tmp_path}")
    if done.returncode == 2:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout
