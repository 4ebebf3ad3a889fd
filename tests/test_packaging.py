"""The published archives install: the source archive without a network, with a compiler or without, and it reports
which; the CI workflow calls targets that exist."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import sawlog

ROOT = Path(__file__).resolve().parent.parent
#: Packages needed to build, to install and to run.
PRESENT = ("setuptools", "cython", "pip", "numpy", "pyarrow", "crc32c", "cramjam")


@pytest.fixture(scope="module")
def source_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of this checkout, built from a copy: a build writes beside the source."""
    place = tmp_path_factory.mktemp("archive")
    checkout = place / "checkout"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.so"))
    run([sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", place / "dist", checkout], place)
    [archive] = (place / "dist").glob("*.tar.gz")
    return archive


def test_python_m_sawlog_says_which_kernel_this_is_without_any_extra() -> None:
    done = subprocess.run([sys.executable, "-m", "sawlog"], capture_output=True, text=True, check=True)
    first, kernel, needed = done.stdout.splitlines()
    assert first.startswith(f"sawlog {sawlog.__version__}, ")
    assert kernel == str(sawlog.kernel_info())
    assert f"numpy {metadata.version('numpy')}" in needed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "said", "kernel"),
    [
        ({}, "sawlog: the kernel was compiled", "compiled"),
        ({"CC": "false"}, "sawlog: the kernel was NOT compiled", "plain Python"),
        ({"SAWLOG_PURE": "1"}, "sawlog: SAWLOG_PURE is set", "plain Python"),
    ],
    ids=["with a compiler", "without a compiler", "by choice"],
)
def test_the_source_archive_installs_without_a_network_and_says_whether_the_kernel_was_compiled(
    source_archive: Path, tmp_path: Path, settings: dict[str, str], said: str, kernel: str
) -> None:
    if not settings and not can_compile():
        pytest.skip("no C compiler here")
    python = environment_with(tmp_path / "environment", PRESENT)
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    command = [python, "-m", "pip", "install", "--verbose", "--no-build-isolation", "--no-index", source_archive]
    done = run(command, tmp_path, **nowhere, **settings)
    assert said in done.stderr  # pip prints the build's output there
    tried = run([python, "-I", ROOT / "tools" / "try_install.py"], tmp_path)
    assert f"kernel: {kernel}" in tried.stdout


def environment_with(place: Path, names: tuple[str, ...]) -> Path:
    """The Python of a new environment in which these packages, and no others, are those of this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    packages = place / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    for name in names:
        files = metadata.files(name)
        assert files is not None
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            (packages / top).symlink_to(metadata.distribution(name).locate_file(top))
    return place / "bin" / "python"


def run(command: list[str | Path], place: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "SAWLOG_"))}
    done = subprocess.run(
        command, cwd=place, env={**clean, **settings}, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def can_compile() -> bool:
    spec = importlib.util.spec_from_file_location("build_kernel", ROOT / "tools" / "build_kernel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return bool(module.can_compile())


def test_the_workflow_calls_targets_that_exist_and_says_that_it_was_never_run() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert text.startswith("# Not run")
    targets = set(re.findall(r"\bmake ([a-z][a-z-]*)", text))
    assert {"test", "dist", "docs"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
    assert "://" not in text


def test_what_development_installs_has_a_known_version() -> None:
    """Else a release of tomorrow could fail what passes today."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*extras["dependencies"], *(each for some in extras["optional-dependencies"].values() for each in some)]
    names = {re.split(r"[^\w.-]", each)[0].lower() for each in wanted} - {"sawlog", "atheris"}  # no test needs that one
    known = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert names - known == set()
    makefile = (ROOT / "Makefile").read_text()
    assert "PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt" in makefile
