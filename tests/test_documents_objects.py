"""The commands in docs/object-storage.md do what the page shows."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import sawlog
from sawlog.store.objects.bucket import Bucket, divided
from sawlog.store.objects.selftest import TRIALS

from .documents import ROOT, Step, run_program, steps, typed
from .objects import servers
from .objects.careless import careless
from .objects.servers import Server

PAGE = (ROOT / "docs" / "object-storage.md").read_text(encoding="utf-8")
ON_FILES, ON_A_SERVER, ON_A_CARELESS_ONE = [step for step in steps(PAGE) if "store test" in step.text]
#: tests/objects/test_spark.py runs it: it needs a Spark.
ON_SPARK = "import sawlog.spark"
REPAIRS = [step for step in steps(PAGE) if step.text.startswith("sawlog repair")]
#: These have tests of their own.
ELSEWHERE = {ON_FILES, ON_A_SERVER, ON_A_CARELESS_ONE, *REPAIRS}
#: In one worker, which starts one server.
GROUPED = pytest.mark.group("documents-objects")
TOUR = [step for step in steps(PAGE) if step not in ELSEWHERE and not step.text.startswith(ON_SPARK)]


def steady(printed: str) -> list[str]:
    """Replace the parts that vary from run to run."""
    text = re.sub(r"file://\S+/bucket", "file://bucket", printed)
    text = re.sub(r"(?<=sawlog-selftest/)[0-9a-f]{32}|by( thread-\d,?)+;", "...", text)
    text = re.sub(r"[\d.,]+ (µs|ms|s|min|[KMG]iB/s|B/s)(?= |,|$)", "T", text, flags=re.MULTILINE)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+\+00:00|(?<=before-repair-)\d{8}-\d{6}", "...", text)
    return [" ".join(line.split()) for line in text.splitlines()]


def compare(step: Step, place: Path, command: str = "") -> None:
    printed = typed((command or step.text).replace("$PWD", str(place)))
    assert steady("\n".join(printed)) == steady(step.shown)


def use(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def started() -> Iterator[Server]:
    """One server for all tests of this file."""
    with servers.moto() as server:
        yield server


@pytest.fixture
def moto(started: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, with an empty bucket; programs use it."""
    for method, path in (("POST", "moto-api/reset"), ("PUT", servers.BUCKET)):
        request = urllib.request.Request(f"{started.endpoint}/{path}", method=method)
        urllib.request.urlopen(request, timeout=servers.PATIENCE_S).close()
    use(started, monkeypatch)
    monkeypatch.setenv("COLUMNS", "100")
    return started


@GROUPED
def test_from_a_laptop_to_a_bucket_as_shown(moto: Server) -> None:
    for step in TOUR:
        if step.text.startswith("import sawlog"):
            assert run_program(step.text) == step.shown
        else:
            assert steady("\n".join(typed(step.text))) == steady(step.shown), step.text


@GROUPED
def test_a_store_that_lost_a_commit_is_repaired_as_shown(moto: Server) -> None:
    url = "s3://bucket/shop"
    with sawlog.open(url) as store:
        orders = store.create_topic("orders", partitions=3)
        for number in range(4):
            orders.partition(0).append(b"%d" % number)
    Bucket(url).delete("commits/00000000000000000003")
    for step in REPAIRS:
        assert steady("\n".join(typed(step.text))) == steady(step.shown), step.text
    with sawlog.open(url) as store:
        assert [record.value for record in store.topic("orders").partition(0).scan()] == [b"0", b"1"]


@pytest.mark.costly  # a self-test with hundreds of requests
def test_a_directory_passes_as_shown(tmp_path: Path) -> None:
    compare(ON_FILES, tmp_path)


@GROUPED
@pytest.mark.costly  # a self-test with hundreds of requests
def test_a_server_passes_as_shown(moto: Server, tmp_path: Path) -> None:
    compare(ON_A_SERVER, tmp_path)


def test_a_server_that_ignores_preconditions_is_refused_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with careless("no_preconditions") as (server, _):
        use(server, monkeypatch)
        compare(ON_A_CARELESS_ONE, tmp_path, ON_A_CARELESS_ONE.text.replace("http://127.0.0.1:9000", server.endpoint))


def test_every_check_is_explained_and_every_default_is_right() -> None:
    explained = {
        name.strip() for row in re.findall(r"^\| ([a-z, -]+) \| ", PAGE, re.MULTILINE) for name in row.split(",")
    }
    assert set(TRIALS) - {"access"} <= explained
    client, retries, _ = divided({})
    shown = dict(re.findall(r"\| `(\w+)` \| `(\d+s?)` \|$", PAGE, re.MULTILINE))
    assert shown == {
        "timeout": client["timeout"],
        "connect_timeout": client["connect_timeout"],
        "max_retries": str(retries["max_retries"]),
        "retry_timeout": f"{retries['retry_timeout'].seconds}s",
    }
