"""tools/install.py shows progress and explains failures. Runs the real pip."""

from __future__ import annotations

import importlib.util
import os
import pty
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tools" / "install.py"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment of its own, whose pip is that of this one."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    program = place / "bin" / "python"
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    pip = importlib.util.find_spec("pip")
    assert pip is not None
    assert pip.origin is not None
    (place / "lib" / version / "site-packages" / "pip").symlink_to(Path(pip.origin).parent)
    return program


@pytest.fixture
def steps(tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def install(python: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    command = [python, PROGRAM, "--disable-pip-version-check", *arguments]
    return subprocess.run(
        command, env={**clean, **environment}, capture_output=True, text=True, check=False, timeout=60
    )


def small_wheel(folder: Path, name: str = "tiny") -> Path:
    """A package with one empty module."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


def test_steps_and_their_end_are_printed_as_lines_where_there_is_no_terminal(python: Path, tmp_path: Path) -> None:
    done = install(python, "--no-index", small_wheel(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "installing 1 package: " in done.stdout
    assert re.search(r"^installed 1 package in \d+:\d\d$", done.stdout, re.MULTILINE)
    assert "\r" not in done.stdout
    assert "Successfully installed tiny-1.0" in (python.parent.parent / "install.log").read_text()


@pytest.mark.slow
def test_a_terminal_has_one_line_that_changes(python: Path, tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    wheel = small_wheel(tmp_path, "other")
    with subprocess.Popen([python, PROGRAM, "--no-index", wheel], stdout=follower, stderr=follower) as process:
        os.close(follower)
        shown = b""
        while chunk := _read(leader):
            shown += chunk
    os.close(leader)
    assert process.returncode == 0
    text = shown.decode()
    assert text.count("\n") == 1  # after the last line
    assert text.rpartition("\r\x1b[K")[2].startswith("installed 1 package in ")


def _read(leader: int) -> bytes:
    try:
        return os.read(leader, 4096)
    except OSError:  # the other end was closed
        return b""


def test_without_a_network_it_says_what_can_be_set(python: Path) -> None:
    # Port 9 of this machine: nobody listens, the answer comes at once.
    done = install(python, "--index-url", "http://127.0.0.1:9/", "--retries", "1", "nosuchpackage")
    assert done.returncode != 0
    assert "trying again" in done.stdout
    assert f"all of it: {python.parent.parent / 'install.log'}" in done.stdout
    assert "    ERROR: No matching distribution found for nosuchpackage" in done.stderr
    for variable in ("HTTPS_PROXY", "PIP_INDEX_URL", "PIP_FIND_LINKS"):
        assert variable in done.stderr


def test_a_package_that_no_index_has_is_named_with_the_way_to_another_python(python: Path) -> None:
    done = install(python, "--no-index", "nosuchpackage")
    assert done.returncode != 0
    assert "No matching distribution found for nosuchpackage" in done.stderr
    assert "make setup PYTHON=" in done.stderr
    assert "HTTPS_PROXY" not in done.stderr


def test_an_environment_without_pip_is_to_be_made_again(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    done = install(tmp_path / "bare" / "bin" / "python", "anything")
    assert done.returncode != 0
    assert "make distclean" in done.stderr


def test_a_large_download_shows_how_much_of_it_is_there(steps: ModuleType, tmp_path: Path) -> None:
    now = steps.Steps(tmp_path, tmp_path)
    assert not now.read("Collecting pyspark>=4.2 (from sawlog==0.3.0)\n")
    assert now.now() == "collecting pyspark>=4.2 (package 1)"
    assert now.read("  Downloading pyspark-4.3.0.tar.gz (455.2 MB)\n")
    assert now.now() == "downloading pyspark 4.3.0 (455.2 MB)"
    (tmp_path / "pip-unpack-x").mkdir()
    with (tmp_path / "pip-unpack-x" / "pyspark-4.3.0.tar.gz").open("wb") as file:
        file.truncate(120_000_000)
    assert now.now() == "downloading pyspark 4.3.0: 120 of 455 MB"
    now.read("  Building wheel for pyspark (pyproject.toml): started\n")
    assert now.now() == "building wheel for pyspark"
    now.read("  Building editable for sawlog (pyproject.toml): started\n")
    assert now.now() == "compiling the kernel"
    assert not now.read("  Downloading rich-15.0.0-py3-none-any.whl.metadata (18 kB)\n")
    assert now.now() == "downloading rich 15.0.0 (0.0 MB)"


def test_installing_counts_the_packages_that_are_complete(steps: ModuleType, tmp_path: Path) -> None:
    now = steps.Steps(tmp_path, tmp_path)
    (tmp_path / "earlier-1.0.dist-info").mkdir()
    (tmp_path / "earlier-1.0.dist-info" / "RECORD").touch()
    assert now.read("Installing collected packages: one, two, three\n")
    assert now.now() == "installing 3 packages: 0 done"
    (tmp_path / "one-1.0.dist-info").mkdir()
    (tmp_path / "one-1.0.dist-info" / "RECORD").touch()
    assert now.now() == "installing 3 packages: 1 done"
    now.read("Successfully installed one-1.0 two-1.0 three-1.0\n")
    assert len(now.installed) == 3


def test_a_group_is_expanded_with_the_groups_that_it_includes(
    steps: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[dependency-groups]\ndocs = ["sphinx>=8"]\ndev = ["sawlog[all]", { include-group = "docs" }, "ruff"]\n'
    )
    monkeypatch.chdir(tmp_path)
    assert steps.expand_groups(["--upgrade", "--group", "dev"]) == [
        "--upgrade", "--editable", ".[all]", "sphinx>=8", "ruff",
    ]  # fmt: skip


def test_every_group_that_a_make_target_installs_exists(steps: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    groups = set(re.findall(r"--group ([\w-]+)", (ROOT / "Makefile").read_text()))
    assert groups == {"dev", "bench", "dist", "servers", "fuzz"}
    assert all(steps.requirements(group) for group in groups)
