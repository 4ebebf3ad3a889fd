"""The published archives install: the source archive without a network, with a compiler or without, and it reports
which; a package index accepts and shows them; the workflows call targets that exist."""

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


WORKFLOWS = {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob(".github/workflows/*.yml")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_workflows_call_targets_that_exist_and_say_that_they_were_never_run() -> None:
    for name, text in WORKFLOWS.items():
        assert text.startswith("# Not run"), name
        assert "://" not in text, name
    targets = set(re.findall(r"\bmake ([a-z][a-z-]*)", "".join(WORKFLOWS.values())))
    assert {"test", "dist", "docs"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


def test_every_action_is_pinned_to_one_commit() -> None:
    actions = re.findall(r"uses: (.+)", "".join(WORKFLOWS.values()))
    for action in actions:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    assert len({action.partition("@")[0] for action in actions}) == len(set(actions))


def test_only_the_job_that_publishes_gets_an_identity_and_it_waits_for_approval() -> None:
    assert [name for name, text in WORKFLOWS.items() if "id-token: write" in text] == ["release.yml"]
    before, publish = WORKFLOWS["release.yml"].split("\n  publish:\n")
    assert "id-token" not in before
    assert "environment: release\n" in publish
    assert "run:" not in publish
    assert not re.search(r"password|secrets\.", publish)


def test_the_supported_pythons_are_declared_tested_and_built_alike() -> None:
    declared = {name[-4:] for name in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", name)}
    built = re.findall(r"cp3(\d+)-", PROJECT["tool"]["cibuildwheel"]["build"])
    assert declared == {f"3.{minor}" for minor in built}
    [tested] = re.findall(r"python: \[(.+)\]", WORKFLOWS["ci.yml"])
    assert declared == set(re.findall(r"[\d.]+", tested))
    assert PROJECT["project"]["requires-python"] == f">={min(declared)}"


def test_an_older_python_is_refused_by_name() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.version_info = (3, 10); exec(open('setup.py').read())"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("sawlog needs Python 3.11 or newer")


def test_the_description_has_no_relative_links(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They lead nowhere on a package index: to the repository where it is known, else nothing is linked."""
    (tmp_path / "src" / "sawlog").mkdir(parents=True)
    shutil.copy(ROOT / "src" / "sawlog" / "__init__.py", tmp_path / "src" / "sawlog")
    (tmp_path / "README.md").write_text(
        "# sawlog\n\n![picture](docs/a.svg)\n\n"
        "[guide](docs/b.md#top), [`code`](c.py), [here](#sawlog), [there](http:x)\n"
    )
    assert description(tmp_path, "") == "# sawlog\n\nguide, `code`, [here](#sawlog), [there](http:x)\n"
    version = sawlog.__version__
    assert description(tmp_path, "http:host/name/") == (
        f"# sawlog\n\n![picture](http:host/name/raw/v{version}/docs/a.svg)\n\n"
        f"[guide](http:host/name/blob/v{version}/docs/b.md#top), [`code`](http:host/name/blob/v{version}/c.py), "
        "[here](#sawlog), [there](http:x)\n"
    )


def description(checkout: Path, repository: str) -> str:
    """Return the long description that setup.py makes of README.md in a directory."""
    code = (
        "import setuptools, sys; setuptools.setup = lambda **fields: sys.stdout.write(fields['long_description']); "
        f"exec(open({str(ROOT / 'setup.py')!r}).read())"
    )
    return run([sys.executable, "-c", code], checkout, SAWLOG_PURE="1", SAWLOG_REPOSITORY=repository).stdout.partition(
        "not compiled\n"
    )[2]


def test_what_development_installs_has_a_known_version() -> None:
    """Else a release of tomorrow could fail what passes today."""
    extras = PROJECT["project"]
    wanted = [*extras["dependencies"], *(each for some in extras["optional-dependencies"].values() for each in some)]
    wanted += [each for group in PROJECT["dependency-groups"].values() for each in group if isinstance(each, str)]
    names = {re.split(r"[^\w.-]", each)[0].lower() for each in wanted} - {
        "sawlog",
        "pip",
        "atheris",
    }  # not tested with it
    known = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert names - known == set()
    makefile = (ROOT / "Makefile").read_text()
    assert "PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt" in makefile
