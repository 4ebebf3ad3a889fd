"""Run every command that the help and the error messages print, unchanged.

Each example of a command runs in a copy of a directory that has what it names: a store `data`, a group, files to read
in, a Kafka directory. The examples of `sawlog --help` run from top to bottom in a directory without a store. `sawlog`
itself runs in this process, what is piped into or out of it in a shell. Pipelines need Spark: see tests/pipelines.
"""

from __future__ import annotations

import json
import re
import select
import shlex
import shutil
import signal
import subprocess
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import sawlog as package
from sawlog.cli.help import EXAMPLES
from sawlog.cli.program import command
from sawlog.store.directory.store import DirectoryStore
from sawlog.testing import Broker

from ..interop.kafkas import batch, lay
from ..objects import servers
from .conftest import Cli, Program
from .test_reference import ALL

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "interop"
#: Directories of other systems that the examples name.
ELSEWHERE = ("/var/lib/kafka", "/mnt/disk", "/mnt/spare", "./commit_log")
ORDER = {"customer": {"id": "7"}, "placed_at": "2026-11-01T08:00:00Z", "status": "failed"}
#: A schema that fits it.
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "status", "type": "string"}]}


#: First words of the examples of commands that run until they are stopped, or that start processes. The quick tests run
#: the first example of each.
STARTED = ("sawlog demo", "sawlog serve", "sawlog replicate data s3://bucket/store", "sawlog store test")


def examples() -> Iterator[Any]:
    """(command, line of its examples), of all commands but pipelines."""
    seen: set[str] = set()
    for path, found in ALL.items():
        if path[0] == "pipeline":
            continue
        _, _, text = (found.help or "").partition("Examples:")
        for line in filter(None, map(str.strip, text.splitlines())):
            begins = next((each for each in STARTED if line.startswith(each) and "--once" not in line), line)
            marks = [pytest.mark.slow] if begins in seen else [pytest.mark.costly] if path == ("demo",) else []
            yield pytest.param(" ".join(path), line, marks=marks)
            seen.add(begins)


def lay_out(place: Path) -> None:
    """The files that examples read."""
    (place / "orders.ndjson").write_text(json.dumps(ORDER) + "\n")
    (place / "orders.avsc").write_text(json.dumps(AVRO))
    (place / "prices.csv").write_text("symbol,price\nACME,7\n")
    (place / "customers.csv").write_text("id,name\n7,Ada\n")
    (place / "cat.jpg").write_bytes(b"\xff\xd8\xff")
    (place / "app.log").write_text("started\nstopped\n")
    (place / "ann.password").write_text("secret\n")
    (place / "broker.toml").write_text("default_partitions = 4\n")
    shutil.copytree(GOLDEN / "laminarmq-u32", place / "commit_log")
    for name in ("disk", "spare"):
        (place / name).mkdir()
    orders = {f"orders-{number}/{0:020}.log": batch(0, b"a", b"b") for number in range(4)}
    lay(place / "kafka", {"meta.properties": b"version=1\n", **orders})


def fill(place: Path) -> None:
    """A store with the topics and the group that examples name."""
    with DirectoryStore.open(place / "data", maintenance_interval_s=None) as store:
        for name in ("orders", "prices", "pairs", "photos", "copy", "orders-retry"):
            store.create_topic(name, partitions=4 if name == "orders" else 1)
        with store["orders"].writer() as writer:
            for number in range(100):
                writer.append(json.dumps(ORDER).encode(), key=b"%d" % number)
        with store.queue("orders", group="workers") as queue:
            queue.reject(next(queue.drain()), "no such item")  # to orders-dead
    consume(place)


def consume(place: Path) -> None:
    """A group that has read everything."""
    with (
        DirectoryStore.open(place / "data", maintenance_interval_s=None) as store,
        store.consumer("billing", ["orders"]) as consumer,
    ):
        for _ in consumer.drain():
            pass
        consumer.commit()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("examples")
    lay_out(place)
    fill(place)
    first = place / "data" / "topics" / "orders" / "partition-0"
    for name in (f"{0:020}.log", f"{0:020}.index", "checkpoint"):  # what `inspect` is shown in the current directory
        shutil.copy(first / name, place / name)
    (place / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    return place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to be in, with a home of its own."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("SAWLOG_DATA", raising=False)
    return work


def here(line: str, place: Path) -> str:
    """Replace directories in a line by existing ones."""
    for path in ELSEWHERE:
        line = line.replace(path, str(place / Path(path).name))
    return line


def bucket_for(path: str, line: str, place: Path) -> str:
    """Replace the bucket in a line by an existing one, with a replica in it if the command needs one."""
    if path == "store test":
        return line
    address = f"file://{place}/bucket"
    if path in ("restore", "promote") or (path == "repair" and "s3://" in line):
        run(f"sawlog replicate data {address} --once", place)
    if path == "restore":
        shutil.rmtree(place / "data")
        time.sleep(1 if "--until" in line else 0)  # the requested time is a whole second
        line = re.sub(r"--until \S+", f"--until {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", line)
    return line.replace("s3://bucket/store", address)


def run(line: str, place: Path) -> None:
    """Run a line as a shell would; every command in it has to succeed."""
    line = re.sub(r"\s+#.*", "", here(line, place)).replace("tail -F", "cat")  # which ends
    content = b""
    for part in re.split(r" \| ", line.partition(" > ")[0]):
        words = shlex.split(part)
        if words[0] != "sawlog":
            if shutil.which(words[0]) is None:
                pytest.skip(f"no {words[0]} here")
            content = subprocess.run(["sh", "-c", part], input=content, stdout=subprocess.PIPE, check=True).stdout
        elif words[1] == "replicate" and "--once" not in words:
            interrupt_when(place / "bucket" / "commits", words[1:])
        elif words[1] == "restore" and "--follow" in words:
            interrupt_when(Path(words[3]) / "topics", words[1:])
        elif "--follow" in words:
            interrupt_when_ready(words[1:])
        elif words[1] == "serve":
            stop_when_ready(words[1:])
        else:
            if words[1] == "sql" and not any(" " in word for word in words):
                content = b"show tables"  # at a terminal it asks for queries
            if words[1:3] == ["user", "add"]:
                content = content or b"secret\n"  # at a terminal it asks for the password
            content = Cli(place / "data")(*words[1:], stdin=content).ok().raw


def interrupt_when_ready(words: list[str]) -> None:
    """Follow until something has come, then press Ctrl-C."""
    process = Program(Path("data")).start(*words)
    try:
        while process.poll() is None:
            with DirectoryStore.open("data", maintenance_interval_s=None) as store:
                store["orders"].append(b"new", key=b"k")
            if has_printed(process):
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode in (0, 130), err


def interrupt_when(there: Path, words: list[str]) -> None:
    """Press Ctrl-C when something is there."""
    process = Program(Path("data")).start(*words)
    try:
        while process.poll() is None and not there.exists():
            has_printed(process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode in (0, 130), err


def stop_when_ready(words: list[str]) -> None:
    """Serve on free ports until it listens, then end it as a service manager does."""
    process = Program(Path("data")).start(
        *(re.sub(r":\d{4}$", ":0", word) for word in words), "--listen", "127.0.0.1:0"
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"listening on 127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err


@contextmanager
def broker_for(line: str) -> Iterator[str]:
    """The line with the address of a broker that runs, if it names one."""
    if "-b 127.0.0.1:9092" not in line:
        yield line
        return
    with Broker(directory="data", super_users=["User:ops"]) as broker:
        yield line.replace("127.0.0.1:9092", broker.address)


def has_printed(process: subprocess.Popen[bytes]) -> bool:
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 0.2)[0])


@pytest.mark.parametrize(("path", "line"), list(examples()))
def test_an_example_of_the_help_runs_as_printed(path: str, line: str, place: Path, template: Path) -> None:
    shutil.copytree(template, place, dirs_exist_ok=True)
    created = re.search(r"topic create (\S+)", line)
    with DirectoryStore.open("data", maintenance_interval_s=None) as store:
        if created and created[1] in store.topics():
            store.delete_topic(created[1])
    if path == "produce" and "greetings" in line and not created:  # the line before creates it
        run("sawlog topic create greetings -d data", place)
    if "--check" in line:
        run("sawlog topic alter orders -d data --set sawlog.schema=@orders.avsc", place)
    if path == "import" and "/var/lib/kafka" in line:  # to where nothing is that they could be mistaken for
        shutil.rmtree("data")
        with DirectoryStore.open("data"):
            pass
    if path == "user delete":
        run("sawlog user add ann -d data", place)
    if path == "bench":
        line += " --seconds 0.05"
    if path == "demo":
        line += " --records 1000"
    if path in ("topic delete", "topic trim") and not re.search("--yes|--dry-run", line):
        assert "give --yes" in Cli(place / "data")(*shlex.split(line)[1:]).failed(2)  # in a terminal it asks
        line += " --yes"
    if path == "doctor":
        assert Cli(place / "data")(*shlex.split(here(line, place))[1:]).code in (0, 1)  # this machine may have problems
        return
    if path == "store test":
        try_bucket(line, place)
        return
    with broker_for(bucket_for(path, line, place)) as filled:
        run(filled, place)


def try_bucket(line: str, place: Path) -> None:
    """Run an example of `sawlog store test`, with --brief, against a local server."""
    with servers.moto() as server, pytest.MonkeyPatch.context() as patched:
        for name, value in server.variables.items():
            patched.setenv(name, value)
        line = line.replace("http://127.0.0.1:8333", server.endpoint).replace("/tmp/", f"{place}/")
        run(line if "--brief" in line else f"{line} --brief", place)


def test_the_examples_of_the_program_run_from_top_to_bottom(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(place)
    for line in filter(None, EXAMPLES.splitlines()):
        if line.startswith("#"):
            if line == "# Consumer groups":
                consume(place)
        elif line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            monkeypatch.setenv(name, value)
        elif line.startswith("for "):
            topics, each = re.fullmatch(r"for topic in (.+); do (.+); done", line).groups()  # type: ignore[union-attr]
            for topic in topics.split():
                run(each.replace("$topic", topic), place)
        elif line == "sawlog --install-completion":
            assert any(option.name == "install_completion" for option in command().params)
        elif line.startswith("sawlog import") and "--dry-run" not in line:
            run(
                line.replace(" orders", " orders --set segment.bytes=1MiB -d other"), place
            )  # `orders` is not a copy here
        elif line.startswith("sawlog doctor"):
            assert Cli(place / "data")("doctor").code in (0, 1)
        else:
            run(f"{line} --seconds 0.05" if line == "sawlog bench" else line, place)


# --- hints


def hints() -> list[str]:
    """Commands in backticks in the messages and help of this package."""
    found = set()
    for path in Path(package.__file__).parent.rglob("*.py"):
        for hint in re.findall(r"`(sawlog (?!\.\.\.)[a-z][^`…]*)`", path.read_text(encoding="utf-8")):
            found.add(hint)
    return sorted(found)


@pytest.mark.parametrize("hint", hints())
def test_a_command_in_a_message_runs(hint: str, place: Path, template: Path) -> None:
    """Placeholders get names. The bare name of a command that needs arguments, such as `sawlog read`, must exist."""
    shutil.copytree(template, place, dirs_exist_ok=True)
    stand_ins = {
        "NAME": "new",
        "TOPIC": "orders",
        "GROUP": "billing",
        "OFFSET": "0",
        "FILE": "checkpoint",
        "DIR": "data",
        "URL": "memory://bucket",
        "{url}": "memory://bucket",
        "{topic.name}": "orders",
        "{number}": "0",
        "...": "orders",
    }
    words = [stand_ins.get(word, word) for word in shlex.split(hint.partition(" | ")[0])][1:]
    path = max((path for path in ALL if path == tuple(words[: len(path)])), key=len, default=None)
    if path is None:
        assert words[0] in {group for group, *more in ALL if more}
        return
    if path in (("demo",), ("serve",), ("replicate",), ("restore",)):  # the examples of their help run
        return
    needed = [option for option in ALL[path].params if option.required]
    given = [word for word in words[len(path) :] if not word.startswith("-")]
    if not given and (needed or path == ("read",)):
        return
    if (
        path[0] == "pipeline"
    ):  # Spark runs them in tests/pipelines; here, that there is such a command with such options
        known = {name for option in ALL[path].params for name in option.opts}
        assert known >= {word for word in words if word.startswith("-")}
        return
    store = ["-d", "data"] if any(option.name == "data" for option in ALL[path].params) else []
    quick = ["--seconds", "0.05"] if path == ("bench",) else []
    done = Cli(place / "data")(*words, *store, *quick, stdin=b"secret\n" if path == ("user", "add") else b"")
    assert done.code == 0 or (path == ("doctor",) and done.code == 1), done.err


def texts() -> list[Path]:
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    for folder in ("src", "examples", "tools", "benchmarks"):
        found += [path for path in (ROOT / folder).rglob("*.py") if "kernel.py" not in path.name]
    return found


def test_install_hints_work_in_a_clone() -> None:
    """Nothing is published: the clone is installed, with existing extras."""
    known = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    hinted = []
    for path in texts():
        for hint in re.findall(r"pip install [^`\n]*?'([^']+)'", path.read_text(encoding="utf-8")):
            name, extras = re.fullmatch(r"([\w.]+)\[([\w,]+)\]", hint).groups()  # type: ignore[union-attr]
            assert name == ".", f"{path} says: pip install {hint}"
            assert set(extras.split(",")) <= known, f"{path} says: pip install {hint}"
            hinted.append(hint)
    assert len(hinted) > 5
