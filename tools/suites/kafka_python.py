"""kafka-python's integration tests, from its source package.

The package lacks two files of the folder `test` that the integration tests import: an `__init__.py`, which is empty,
and `service.py`, which `inside/service.py` replaces.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from . import places
from .brokers import Wanted
from .pytest_suite import make_environment, run_pytest
from .suite import Job, build

_PACKAGES = ("pytest==9.0.2", "pytest-timeout==2.4.0", "pytest-mock==3.15.1", "py==1.11.0")
_CODECS = ("lz4", "python-snappy", "zstandard", "crc32c")


class KafkaPython:
    """`test/integration` of kafka-python."""

    name = "kafka-python"
    version = "3.0.12"
    about = "kafka-python's test/integration, from its source package (pip)"
    #: Its tests expect a broker with id 0.
    wanted = Wanted(partitions=4, node_id=0)

    def __init__(self) -> None:
        self._home = places.cache() / f"kafka-python-{self.version}"
        self._source = self._home / "source"
        self._python = Path()

    def prepare(self) -> None:
        """Fetch and unpack the source package, and create an environment."""
        self._home.mkdir(parents=True, exist_ok=True)
        log = self._home / "build.log"
        self._python = make_environment(self._home, [f"kafka-python=={self.version}", *_PACKAGES, *_CODECS], log)
        if not self._source.exists():
            archive = self._home / f"kafka_python-{self.version}.tar.gz"
            download = ["download", "--quiet", "--no-deps", "--no-binary", "kafka-python", "--dest", "."]
            build([str(self._python), "-m", "pip", *download, f"kafka-python=={self.version}"], self._home, log)
            unpacked = self._home / "unpacked"
            with tarfile.open(archive) as packed:
                packed.extractall(unpacked, filter="data")
            (unpacked / f"kafka_python-{self.version}").rename(self._source)
            # Only the tests are needed: they run against the installed package.
            shutil.rmtree(self._source / "kafka")
        tests = self._source / "test"
        (tests / "__init__.py").touch()
        shutil.copy(Path(__file__).parent / "inside" / "service.py", tests / "service.py")

    def run(self, job: Job) -> None:
        """Run the tests, with a time limit of three minutes each."""
        arguments = ["-o", "addopts=", "--timeout=180", "--timeout-method=signal"]
        environment = {
            "KAFKA_URI": f"kafka://{job.address}",
            "KAFKA_VERSION": "4.3.0",
            "KAFKA_ROOT": str(self._source),  # must exist
        }
        run_pytest(job, self._python, self._source, arguments, "test/integration", environment)
