"""The files, brokers, commands and programs of docs/security.md work in the order of the page. Only the ports differ;
without openssl, certificates come from trustme."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path

import pytest

from sawlog.broker.config import BrokerConfig

from .broker.security.certificates import Authority, Files
from .broker.serving import free_port
from .cli.conftest import PATIENCE_S, Program
from .documents import ROOT, make_program, sessions, shell_output, steady

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n(?:\n```\n(?!sawlog)(.*?)^```)?", re.DOTALL | re.MULTILINE)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_program(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def serve(command: str, stack: ExitStack) -> None:
    """Start a broker as the page does, until the end of the test."""
    process = Program(Path("data")).start(*command.split()[1:])
    stack.callback(process.communicate, timeout=PATIENCE_S)
    stack.callback(process.terminate)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(b"listening on"), line


def without_openssl(command: str, place: Path) -> None:
    """Create the files that an openssl command of the page would create."""
    if "rand" in command:
        (place / "ann.password").write_text("a long random password\n")
        return
    made = Authority(place / "made")
    if "server.pem" in command:
        files = made.server()
        shutil.copy(made.file, place / "server.authority")
        _take(files, place, "server")
        (place / "server.pem").write_bytes(Path(files.certificate).read_bytes() + Path(made.file).read_bytes())
    elif "-x509" in command:
        shutil.copy(made.file, place / "ca.pem")
        _take(made.client("ann"), place, "ann")


def _take(files: Files, place: Path, name: str) -> None:
    shutil.copy(files.certificate, place / f"{name}.pem")
    shutil.copy(files.key, place / f"{name}.key")


def run(place: Path, stack: ExitStack, *, has_openssl: bool) -> None:
    ports = {f":{number}": f":{free_port()}" for number in (9093, 9094)}
    page = re.sub(r":909[34]\b", lambda found: ports[found[0]], PAGE)
    kinds = set()
    for kind, block, shown in _BLOCK.findall(page):
        kinds.add(kind)
        if kind == "toml":
            name = block.partition("\n")[0].removeprefix("# ")
            (place / name).write_text(block)
        elif kind == "console":
            for command, expected in sessions(block):
                if "openssl" in command and not has_openssl:
                    without_openssl(command, place)
                    continue
                assert steady(shell_output(place, command)) == steady("\n".join(expected)), command
        elif kind == "python":
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", block],
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE_S,
            )
            assert (done.stdout, done.returncode) == (shown, 0), f"{block}\n{done.stderr}"
        else:
            serve(block, stack)
    assert kinds == {"toml", "console", "python", ""}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
def test_the_page_is_run_from_top_to_bottom(place: Path, stack: ExitStack) -> None:
    run(place, stack, has_openssl=True)


@pytest.mark.slow
def test_the_page_is_run_with_certificates_from_elsewhere(place: Path, stack: ExitStack) -> None:
    run(place, stack, has_openssl=False)


def test_every_setting_of_security_is_on_the_page() -> None:

    names = [
        each.name for each in fields(BrokerConfig) if re.match(r"tls_|sasl_|handshake_|authentication_", each.name)
    ]
    assert len(names) == 8
    for name in names:
        assert f"`{name}`" in PAGE, name
