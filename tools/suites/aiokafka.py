"""aiokafka's tests, against the installed package.

Its source package does not contain the tests, so a checkout of its repository is needed, at the tag of this version:

    git clone --branch v0.14.0 <the repository aio-libs/aiokafka> DIR
    make suites ARGS="--only aiokafka --checkout DIR"

Only the folder `tests` and `pyproject.toml`, which has pytest's settings, are copied to the cache.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from . import places
from .brokers import Wanted
from .pytest_suite import make_environment, run_pytest
from .suite import CannotRun, Job

_PACKAGES = ("pytest==9.0.2", "pytest-asyncio==1.3.0", "pytest-mock==3.15.1", "pytest-timeout==2.4.0", "docker==7.1.0")
_NEEDS = ("cramjam==2.11.0", "async-timeout==5.0.1")
_VERSION = "0.14.0"
_HOW = f"""\
aiokafka's tests are not in its source package. Get its repository (aio-libs/aiokafka on GitHub) at the tag v{_VERSION},
and name its directory: --checkout DIR. They are copied into the cache, so once is enough."""


class Aiokafka:
    """aiokafka's whole test suite, including the tests that need no broker."""

    name = "aiokafka"
    version = _VERSION
    about = f"aiokafka's tests, from a checkout of its repository at v{_VERSION} (--checkout); the package from pip"
    #: Its tests expect a broker with id 0, and one requests a session timeout that is too short.
    wanted = Wanted(partitions=2, node_id=0, min_session_timeout_ms=6000)

    def __init__(self, checkout: Path | None = None) -> None:
        self._home = places.cache() / f"aiokafka-{self.version}"
        self._source = self._home / "source"
        self._checkout = checkout
        self._python = Path()

    def prepare(self) -> None:
        """Copy the tests and create an environment."""
        if not self._source.exists():
            self._copy()
        packages = [f"aiokafka=={self.version}", *_PACKAGES, *_NEEDS]
        self._python = make_environment(self._home, packages, self._home / "build.log")

    def _copy(self) -> None:
        checkout = self._checkout
        if checkout is None:
            raise CannotRun(_HOW)
        if not (checkout / "tests" / "_testutil.py").exists():
            raise CannotRun(f"{checkout} is not a checkout of aiokafka.\n{_HOW}")
        said = (checkout / "aiokafka" / "__init__.py").read_text(encoding="utf-8")
        if f'"{self.version}"' not in said:
            raise CannotRun(f"{checkout} has another version of aiokafka than {self.version}.\n{_HOW}")
        copy = self._home / "copying"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(checkout / "tests", copy / "tests")
        shutil.copy(checkout / "pyproject.toml", copy)
        copy.rename(self._source)

    def run(self, job: Job) -> None:
        """Run the tests, with a time limit of two minutes each."""
        arguments = ["-p", "aiokafka_plugin", "--timeout=180", "--timeout-method=signal"]
        arguments += ["--docker-image", "kafka:2.13_4.3.0"]
        run_pytest(job, self._python, self._source, arguments, "tests", {"SUITE_BROKER": job.address})
