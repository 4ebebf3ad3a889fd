"""`sawlog store test` says whether a bucket is safe, with the evidence, and exits with 1 if it is not."""

from __future__ import annotations

import json

import pytest

from sawlog.store.objects.selftest import BRIEF

from ..objects.careless import careless
from ..objects.servers import SECRET
from .conftest import Cli


def test_a_safe_bucket_passes_with_evidence_for_each_check(sawlog: Cli) -> None:
    done = sawlog("store", "test", "memory://cli", "--brief").ok()
    heading, *rows = done.lines
    assert heading.split() == ["STATE", "CHECK", "REQUESTS", "TIME", "EVIDENCE"]
    assert [row.split()[0] for row in rows] == ["ok"] * len(BRIEF)
    assert "4 threads, 2 keys: 2 winners, 6 refused" in done.out
    assert done.err == "memory://cli passed all checks\n"


def test_json_and_csv_contain_plain_numbers(sawlog: Cli) -> None:
    done = sawlog("store", "test", "memory://cli", "--brief", "--output", "json").ok()
    assert [row["check"] for row in done.json] == list(BRIEF)
    assert all(row["state"] == "ok" and row["requests"] > 0 and row["elapsed_ms"] >= 0 for row in done.json)
    assert done.err == ""


def test_a_server_that_ignores_preconditions_is_refused(sawlog: Cli) -> None:
    with careless("no_preconditions") as (server, state):
        options = [f"--option={name}={value}" for name, value in server.options.items()]
        done = sawlog("store", "test", server.new_url(), "--brief", "--output", "ndjson", *options)
        assert state.objects == {}
    said = done.failed(1)
    assert "is not safe for a store: create once: two creates of one key were created and created" in said
    states = {row["check"]: row["state"] for row in map(json.loads, done.lines)}
    assert states["create once"] == states["racing threads"] == "bad"
    assert states["list after write"] == "ok"


def test_an_unusable_bucket_is_reported_on_one_line(sawlog: Cli) -> None:
    with careless("forbidden") as (server, _):
        options = [f"--option={name}={value}" for name, value in server.options.items()]
        done = sawlog("store", "test", "s3://bucket/store", *options)
    assert "creating sawlog-selftest/" in done.failed(1)
    assert "403 InvalidAccessKeyId" in done.err
    assert done.out == ""
    assert SECRET not in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["data"], "is not an address of object storage"),
        (["s3://"], "does not name a bucket"),
        (["memory://x", "--option", "secret"], "an option is NAME=VALUE"),
        (["memory://x", "--option", "=secret"], "an option is NAME=VALUE"),
        (["s3://bucket", "--option", "endpont=http://secret"], "'endpont' is not valid"),
    ],
)
def test_usage_errors_do_not_quote_option_values(sawlog: Cli, arguments: list[str], said: str) -> None:
    line = sawlog("store", "test", *arguments).failed(2)
    assert said in line
    assert "secret" not in line
