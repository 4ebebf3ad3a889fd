"""Run `pip install` with the given arguments and show its progress: `python tools/install.py --group dev`.

`--group NAME` installs a dependency group of pyproject.toml. Recent versions of pip have this option; here it works
with every pip.

pip itself prints either nothing for minutes (`--quiet`) or several hundred lines. On a terminal this shows one updating
line: the elapsed time, and the package that is being collected, downloaded (with its progress), built or installed.
Elsewhere it prints a line per large step, and a line after 15 seconds without one. The complete output of pip is kept
in `install.log` in the environment; on failure the script prints the path of the log and advice.

Uses only the standard library, because it runs before anything is installed.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

LOG = Path(sys.prefix) / "install.log"
TICK_S = 0.5
HEARTBEAT_S = 15.0
LARGE_MB = 20.0

_FETCHED = re.compile(
    r"\s*(?P<how>Downloading|Using cached) (?:\S*/)?(?P<file>[^/\s]+?)(?: \((?P<size>[\d.]+ [kMG]?B)\))?$"
)
_PACKAGE = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*?)(?:-.*\.whl|\.tar\.gz|\.zip)?$")
_LONG_STEPS = ("Building ", "Getting requirements", "Installing build dep", "Installing backend dep", "Preparing ")
_MEGABYTES = {"kB": 1e-3, "MB": 1.0, "GB": 1e3, "B": 1e-6}

#: pip's error messages, with advice for each; the first match counts.
ADVICE = {
    r"No space left on device": "The disk is full: free some 3 GB (df -h .), then run the same command again.",
    r"Permission denied|Errno 13": "Not allowed to write there: look who owns .venv, or remove it (make distclean).",
    r"CERTIFICATE_VERIFY_FAILED|SSLError": (
        "The package index has a certificate that this Python does not know, as behind a company's proxy.\n"
        "Set PIP_CERT to the file with the right certificates, then run the same command again."
    ),
    r"Failed to establish a new connection|NameResolutionError|Name or service not known|Temporary failure in name"
    r"|Network is unreachable|Connection refused|ProxyError|ConnectTimeout|Read timed out|getaddrinfo failed": (
        "The package index cannot be reached. Check the network; behind a proxy set HTTPS_PROXY, with an index of\n"
        "your own set PIP_INDEX_URL, without a network set PIP_NO_INDEX=1 and PIP_FIND_LINKS to a folder of wheels.\n"
        "Then run the same command again: what was downloaded is kept."
    ),
    r"No matching distribution found": (
        "A package has no release for this Python or this system, or the index does not have it: its name is above.\n"
        "With another Python: make distclean, then make setup PYTHON=python3.12 (or another that you have)."
    ),
    r"No module named pip": "The environment in .venv is incomplete: make distclean, then the same command again.",
}
OTHERWISE = "Run the same command again if it looks like an accident; what was downloaded is kept."


def expand_groups(arguments: list[str]) -> list[str]:
    """Replace each `--group NAME` by the requirements of the group."""
    words = iter(arguments)
    return [each for word in words for each in (requirements(next(words)) if word == "--group" else [word])]


def requirements(group: str) -> list[str]:
    """Return the requirements of a group and of the groups that it includes. Extras of sawlog mean the ones of this
    clone, with sawlog installed in place."""
    groups = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    found: list[str] = []
    for each in groups[group]:
        if isinstance(each, dict):
            found += requirements(each["include-group"])
        elif each.startswith("sawlog"):
            found += ["--editable", f".{each.removeprefix('sawlog')}"]
        else:
            found.append(each)
    return found


class Steps:
    """The current step of pip, parsed from its output."""

    def __init__(self, downloads: Path, packages: Path) -> None:
        self._downloads, self._packages = downloads, packages
        self._doing = "starting pip"
        self._file, self._size_mb = "", 0.0
        self._names: list[str] = []
        self._before: dict[Path, int] = {}
        self.collected = 0
        self.downloaded_mb = 0.0
        self.installed: list[str] = []

    def read(self, line: str) -> bool:
        """Process a line of pip's output. Return True if a large step begins."""
        fetched = _FETCHED.match(line)
        text = line.strip()
        if fetched:
            return self._fetch(fetched)
        self._file = ""
        if text.startswith("Collecting "):
            self.collected += 1
            self._doing = f"collecting {text.split()[1]} (package {self.collected})"
        elif text.startswith(_LONG_STEPS):
            step = text[0].lower() + re.sub(r"\s*\(.*|: .*", "", text[1:])
            self._doing = "compiling the kernel" if step == "building editable for sawlog" else step
        elif text.startswith("Installing collected packages: "):
            self._names = [name.strip() for name in text.partition(": ")[2].split(",")]
            self._doing, self._before = "installing", self._records()
            return True
        elif text.startswith("Successfully installed "):
            self.installed = text.split()[2:]
        elif "Retrying (" in text:
            self._doing = "no answer from the package index, trying again"
            return True
        return False

    def _fetch(self, fetched: re.Match[str]) -> bool:
        file, size = fetched["file"], fetched["size"] or "0 B"
        number, unit = size.split()
        self._size_mb = float(number) * _MEGABYTES[unit]
        large = self._size_mb >= LARGE_MB
        if fetched["how"] == "Downloading":
            self.downloaded_mb += self._size_mb
            self._doing, self._file = f"downloading {_spoken(file)}", file
        else:
            self._doing, self._file = f"taking {_spoken(file)} from pip's cache", ""
        return large

    def now(self) -> str:
        """Return the step, with its progress if known."""
        if self._doing == "installing":
            return f"installing {_packages(len(self._names))}: {self._placed()} done"
        if not self._file:
            return self._doing
        arrived_mb = self._arrived_mb()
        if arrived_mb < 1:
            return f"{self._doing} ({self._size_mb:.1f} MB)"
        return f"{self._doing}: {arrived_mb:.0f} of {self._size_mb:.0f} MB"

    def _arrived_mb(self) -> float:
        """Return the downloaded size of the file, which pip writes to its own directory below TMPDIR."""
        return max((_size(path) for path in self._downloads.glob(f"pip-*/{self._file}")), default=0) / 1e6

    def _placed(self) -> int:
        """Return the number of installed packages, judged by RECORD, the last file that pip writes."""
        return min(len(self._names), len(self._records().items() - self._before.items()))

    def _records(self) -> dict[Path, int]:
        return {path: _changed(path) for path in self._packages.glob("*.dist-info/RECORD")}


def _spoken(file: str) -> str:
    match = _PACKAGE.match(file.removesuffix(".metadata"))
    return f"{match['name']} {match['version']}" if match else file


def _packages(count: int) -> str:
    return "1 package" if count == 1 else f"{count} packages"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # pip has just moved the file
        return 0


def _changed(path: Path) -> int:
    try:
        return path.stat().st_ctime_ns  # the modification time may come from the wheel
    except OSError:
        return 0


class Screen:
    """One updating line on a terminal; occasional lines elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._terminal = stream, stream.isatty()
        self._began = self._said = time.monotonic()

    def show(self, text: str, *, important: bool = False) -> None:
        now = time.monotonic()
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[K{f'  {self.elapsed()}  {text}'[:width]}")
        elif important or now - self._said >= HEARTBEAT_S:
            self._stream.write(f"  {self.elapsed()}  {text}\n")
            self._said = now
        self._stream.flush()

    def end(self, text: str) -> None:
        """Replace the line by a final one."""
        self._stream.write(f"\r\x1b[K{text}\n" if self._terminal else f"{text}\n")
        self._stream.flush()

    def elapsed(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes}:{seconds:02}"


def lines_of(process: subprocess.Popen[str]) -> Iterator[str | None]:
    """Yield the process's output line by line, and None when it has been silent for a moment."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    while True:
        try:
            line = lines.get(timeout=TICK_S)
        except queue.Empty:
            yield None
            continue
        if line is None:
            return
        yield line


def run(arguments: list[str], screen: Screen) -> tuple[int, Steps]:
    """Install. The complete output of pip also goes to the log."""
    packages = Path(next(path for path in sys.path if path.endswith("site-packages")))
    with (
        tempfile.TemporaryDirectory(prefix="install-", dir=sys.prefix) as place,
        LOG.open("w", encoding="utf-8") as log,
    ):
        steps = Steps(Path(place), packages)
        command = [sys.executable, "-m", "pip", "install", "--progress-bar", "off", *arguments]
        # A directory for pip's files whose growth can be measured; on the disk of .venv, because /tmp is often small.
        environment = {**os.environ, "TMPDIR": place, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            for line in lines_of(process):
                important = False
                if line is not None:
                    log.write(line)
                    important = steps.read(line)
                screen.show(steps.now(), important=important)
        return process.returncode, steps


def explain_failure(screen: Screen) -> None:
    """Print pip's own errors, the path of its full output, and advice."""
    said = LOG.read_text(encoding="utf-8", errors="replace")
    errors = [line.strip() for line in said.splitlines() if line.strip().startswith("ERROR:")]
    errors = list(dict.fromkeys(errors)) or said.splitlines()[-5:]
    advice = next((text for pattern, text in ADVICE.items() if re.search(pattern, said)), OTHERWISE)
    screen.end(f"the installation failed after {screen.elapsed()}; pip said (all of it: {_near(LOG)}):")
    print("", *(f"    {line}" for line in errors), "", advice, sep="\n", file=sys.stderr)


def _near(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def main(arguments: list[str]) -> int:
    screen = Screen(sys.stdout)
    try:
        code, steps = run(expand_groups(arguments), screen)
    except KeyboardInterrupt:
        screen.end("interrupted; the same command goes on from here")
        return 130
    if code:
        explain_failure(screen)
        return code
    size = f", {steps.downloaded_mb:.0f} MB downloaded" if steps.downloaded_mb >= 1 else ""
    screen.end(f"installed {_packages(len(steps.installed))} in {screen.elapsed()}{size}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
