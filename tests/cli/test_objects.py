"""The commands work on a store on object storage: `-d s3://bucket/store`, on a server that is a process of its own.

The quick tests use `file://`, whose calls are the same; in tests/objects, all stores are tested on S3's protocol.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sawlog.store.objects.bucket import Bucket
from sawlog.store.objects.store import ObjectStore

from ..objects import servers
from .conftest import Cli, Program


@pytest.fixture(scope="module")
def moto() -> Iterator[servers.Server]:
    """A server of S3's protocol."""
    with servers.moto() as server:
        yield server


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of the store, which may not exist yet; every command finds it in the environment."""
    url = f"file://{tmp_path}/bucket/store"
    if request.param == "s3":
        moto: servers.Server = request.getfixturevalue("moto")
        for name, value in moto.variables.items():
            monkeypatch.setenv(name, value)
        url = moto.new_url()
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("SAWLOG_DATA", url)
    return url


@pytest.fixture
def sawlog(url: str) -> Cli:
    return Cli(Path("unused"))


@pytest.fixture
def orders(sawlog: Cli, url: str) -> str:
    """A store with a topic `orders`: two partitions, ten records with keys."""
    sawlog("topic", "create", "orders", "-P", 2, "-d", url).ok()
    lines = "".join(f"k{number}:v{number}\n" for number in range(10)).encode()
    sawlog("produce", "orders", "--key-delimiter", ":", stdin=lines).ok()
    return url


def _values(result: object) -> list[str]:
    return sorted(row["value"] for row in map(json.loads, result.lines))  # type: ignore[attr-defined]


def test_topics_are_created_altered_listed_and_deleted(sawlog: Cli, url: str) -> None:
    sawlog("topic", "create", "orders", "-P", 2, "--set", "retention.ms=1000").ok()
    sawlog("topic", "alter", "orders", "-P", 3).ok()
    assert [row["name"] for row in sawlog("topic", "list", "--output", "json").ok().json] == ["orders"]
    about = sawlog("topic", "describe", "orders", "--output", "json").ok().json
    assert (about["partitions"], about["settings"]) == (3, {"retention.ms": 1000})
    sawlog("topic", "delete", "orders", "--yes").ok()
    assert sawlog("topic", "list", "--output", "json").ok().json == []


def test_produced_records_are_read_back(sawlog: Cli, orders: str) -> None:
    found = sawlog("read", "orders", "-d", orders, "--output", "ndjson").ok()
    assert _values(found) == [f"v{number}" for number in range(10)]
    assert len(sawlog("read", "orders", "-p", 0, "-o", "-1", "--output", "ndjson").ok().lines) == 1


def test_a_store_is_not_created_by_a_mistyped_address(sawlog: Cli, url: str) -> None:
    assert "no store" in sawlog("read", "orders", "-d", url).failed(3)
    assert "no store" in sawlog("produce", "orders", "-d", url, stdin=b"x\n").failed(3)
    with pytest.raises(Exception, match="no store"):
        ObjectStore.open(url, "r")
    sawlog("produce", "orders", "-d", url, "--create", stdin=b"x\n").ok()


@pytest.mark.slow
def test_a_follower_in_another_process_sees_new_records(orders: str, sawlog: Cli) -> None:
    program = Program(Path(orders))
    reader = program.start("read", "orders", "-d", orders, "-o", "end:", "--follow", "-n", 1, "--output", "ndjson")
    deadline = time.monotonic() + 60
    while reader.poll() is None and time.monotonic() < deadline:
        sawlog("produce", "orders", stdin=b"later\n").ok()
        time.sleep(0.2)
    out, err = reader.communicate(timeout=30)
    assert json.loads(out)["value"] == "later", err


def test_a_group_reads_each_record_once(sawlog: Cli, orders: str) -> None:
    first = sawlog("read", "orders", "--group", "billing", "-n", 4, "--output", "ndjson").ok()
    second = sawlog("read", "orders", "--group", "billing", "--output", "ndjson").ok()
    assert sorted(_values(first) + _values(second)) == [f"v{number}" for number in range(10)]
    assert [row["group"] for row in sawlog("groups", "list", "--output", "json").ok().json] == ["billing"]
    assert all(row["lag"] == 0 for row in sawlog("groups", "describe", "billing", "--output", "json").ok().json["rows"])
    sawlog("groups", "seek", "billing", "--to", "start").ok()
    again = sawlog("read", "orders", "--group", "billing", "--output", "ndjson").ok()
    assert len(again.lines) == 10
    sawlog("groups", "delete", "billing", "--yes").ok()
    assert sawlog("groups", "list", "--output", "json").ok().json == []


@pytest.mark.slow
def test_statistics_sql_and_maintenance_work(sawlog: Cli, orders: str) -> None:
    stats = sawlog("stats", "--output", "json").ok().json
    assert sum(row["records"] for row in stats["partitions"]) == 10
    assert sawlog("sql", "select count(*) as n from orders", "--output", "json").ok().json == [{"n": 10}]
    sawlog("maintenance", "--output", "json").ok()
    sawlog("maintenance", "orders").ok()
    trimmed = sawlog("topic", "trim", "orders", "--to", "end", "-p", 0, "--yes", "--output", "json").ok().json
    assert trimmed[0]["dropped"] > 0
    assert sawlog("sql", "select count(*) as n from orders where partition = 0", "--output", "csv").ok().lines[1] == "0"


def test_damage_is_found_and_named(sawlog: Cli, orders: str) -> None:
    good = sawlog("verify", "--output", "json").ok().json
    assert sum(row["records"] for row in good) == 10
    with ObjectStore.open(orders, maintenance_interval_s=None) as store:
        store.create_topic("large").append(b"x" * (2 << 20))  # in an object of its own
        bucket, extent = store._session.bucket, store.topic("orders").partition(1)._extents(0, 1)[0]
        large = store.topic("large").partition(0)._extents(0, 1)[0]
    sawlog("verify", "large").ok()
    bucket.delete(large.key)
    found = sawlog("verify", "large")
    assert found.code == 4
    assert large.key in found.err
    assert "does not exist" in found.err
    content = bytearray(bucket.get(extent.key) or b"")
    content[extent.position + extent.size_bytes - 1] ^= 1
    bucket.put(extent.key, bytes(content))
    assert extent.key in sawlog("verify", "orders").failed(4)


def test_lost_commits_are_reported_and_the_store_returns_to_the_state_before_them(sawlog: Cli, orders: str) -> None:
    assert "no problems found" in sawlog("repair").ok().err
    rows = sawlog("doctor", "--output", "json").ok().json
    states = {row["check"]: row["state"] for row in rows}
    assert states == dict.fromkeys(("versions", "kernel", "bucket", "store"), "ok")
    for number in range(3):
        sawlog("produce", "orders", "-p", 0, stdin=b"later %d\n" % number).ok()
    bucket = Bucket(orders)
    commits = [entry.key for entry in bucket.list("commits/")]
    bucket.delete(commits[-2])
    for command in ("verify", "repair", "repair"):  # the plan changes nothing, so the damage remains
        found = sawlog(command, "--output", "json")
        assert found.code == 4
        assert f"{commits[-2]} is missing" in found.out
    assert f"{commits[-2]} is missing" in sawlog("doctor", "--output", "json").out
    assert [entry.key for entry in bucket.list("commits/")] == [*commits[:-2], commits[-1]]
    assert "is missing" in sawlog("read", "orders").failed(4)
    said = sawlog("repair", "--apply").ok()
    assert "1 record in " + commits[-1] in " ".join(said.out.split())
    assert f"1 object moved to {orders}/before-repair-" in said.err
    sawlog("verify").ok()
    assert len(sawlog("read", "orders", "--output", "ndjson").ok().lines) == 11
    sawlog("produce", "orders", stdin=b"again\n").ok()


def test_a_store_that_lost_its_sawlog_json_is_repaired_and_not_recreated(sawlog: Cli, orders: str) -> None:
    bucket = Bucket(orders)
    before = bucket.get("sawlog.json")
    bucket.delete("sawlog.json")
    for arguments in (("topic", "create", "more"), ("topic", "list"), ("read", "orders")):
        assert "but no sawlog.json" in sawlog(*arguments).failed(4)
    assert "sawlog.json is missing" in sawlog("verify").err
    assert sawlog("repair").code == 4
    sawlog("repair", "--apply").ok()
    assert bucket.get("sawlog.json") == before
    sawlog("verify").ok()
    assert sawlog("repair", "orders").code == 2


def test_users_and_rules_are_kept_in_the_bucket(sawlog: Cli, orders: str) -> None:
    sawlog("user", "add", "ann", "--password-file", "-", stdin=b"secret password").ok()
    assert [row["user"] for row in sawlog("user", "list", "--output", "json").ok().json] == ["ann"]
    sawlog("acl", "add", "--allow", "User:ann", "--operation", "read", "--topic", "orders").ok()
    assert [row["principal"] for row in sawlog("acl", "list", "--output", "json").ok().json] == ["User:ann"]
    sawlog("acl", "delete", "--all", "--yes").ok()
    sawlog("user", "delete", "ann", "--yes").ok()
    for command in ("user", "acl"):
        assert sawlog(command, "list", "--output", "json").ok().json == []


def test_deleting_a_user_or_adding_a_rule_creates_no_store(sawlog: Cli, url: str) -> None:
    assert "no store" in sawlog("user", "delete", "ann", "--yes").failed(3)
    assert "no store" in sawlog("acl", "add", "--allow", "User:a", "--operation", "read", "--topic", "t").failed(3)
    assert "no store" in sawlog("topic", "list").failed(3)


@pytest.mark.parametrize(
    "arguments",
    [
        ("redrive", "orders"),
        ("export", "orders", "somewhere"),
        ("import", "somewhere"),
        ("pipeline", "verify"),
        ("bench",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_for_directories_refuses_a_url_on_one_line(sawlog: Cli, url: str, arguments: tuple[str, ...]) -> None:
    said = sawlog(*arguments, "-d", url).failed(2)
    assert f"{url} is on object storage: this command needs a store in a directory" in said
    assert len(said.strip().splitlines()) == 1


def test_ranges_of_times_and_the_oldest_record_count_in_whatever_order_the_records_are(sawlog: Cli, url: str) -> None:
    with ObjectStore.open(url) as store:
        topic = store.create_topic("events")
        topic.append_many([(b"%d" % at, None, (), 1_700_000_000_000 + 1000 * at) for at in (50, 10, 90)])
        topic.append_many([(b"%d" % at, None, (), 1_700_000_000_000 + 1000 * at) for at in (20, 60, 40)])
    assert sawlog("read", "events", "-o", "@1700000020:1700000060").ok().lines == ["50", "20", "40"]
    (row,) = sawlog("stats", "events", "--output", "json").ok().json["partitions"]
    assert (row["oldest"], row["newest"]) == (1_700_000_010_000, 1_700_000_090_000)
