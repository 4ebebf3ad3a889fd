"""`sawlog acl`: rules in a directory and at a broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sawlog.store.directory.store import DirectoryStore
from sawlog.testing import Broker

from .conftest import Cli

ANN = ("--allow", "User:ann", "--operation", "read", "--topic", "orders", "--group", "billing")


@pytest.fixture
def where(data: Path) -> tuple[str, str]:
    DirectoryStore.open(data).close()
    return "-d", str(data)


def rules(sawlog: Cli, *where: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(sawlog("acl", "list", *where, "--output", "json").ok().out)
    return found


def test_rules_are_added_listed_and_deleted(sawlog: Cli, where: tuple[str, str]) -> None:
    assert "a store without rules allows every operation" in sawlog("acl", "list", *where).ok().err
    added = sawlog("acl", "add", *where, *ANN).ok()
    assert "added 2 rules" in added.err
    assert "the first rules" in added.err
    assert [(each["resource"], each["name"], each["principal"]) for each in rules(sawlog, *where)] == [
        ("topic", "orders", "User:ann"),
        ("group", "billing", "User:ann"),
    ]
    again = sawlog("acl", "add", *where, *ANN).ok()
    assert "added 0 rules; 2 existed already" in again.err
    assert "the first rules" not in again.err
    deleted = sawlog("acl", "delete", *where, "--group", "billing", "--yes").ok()
    assert "billing" in deleted.out
    assert "no rules are left" not in deleted.err
    assert "no rules are left" in sawlog("acl", "delete", *where, "--all", "--yes").ok().err
    assert rules(sawlog, *where) == []


def test_add_creates_one_rule_per_combination(sawlog: Cli, where: tuple[str, str]) -> None:
    options = ("--allow", "User:a", "--deny", "User:b", "--operation", "read", "--operation", "describe", "--prefixed")
    sawlog("acl", "add", *where, *options, "--topic", "t-", "--topic", "*", "--host", "10.0.0.1").ok()
    found = rules(sawlog, *where)
    assert len(found) == 8
    assert {(each["name"], each["pattern"]) for each in found} == {("t-", "prefixed"), ("*", "literal")}
    assert {(each["principal"], each["permission"]) for each in found} == {("User:a", "allow"), ("User:b", "deny")}
    assert {each["host"] for each in found} == {"10.0.0.1"}


def test_list_includes_rules_for_prefixes_and_delete_does_not(sawlog: Cli, where: tuple[str, str]) -> None:
    for name, *more in (("orders",), ("ord", "--prefixed"), ("*",), ("other",)):
        sawlog("acl", "add", *where, "--allow", "User:ann", "--operation", "read", "--topic", name, *more).ok()
    found = rules(sawlog, *where, "--topic", "orders")
    assert [each["name"] for each in found] == ["*", "ord", "orders"]
    sawlog("acl", "delete", *where, "--topic", "orders", "--yes").ok()
    sawlog("acl", "delete", *where, "--topic", "ord", "--yes").ok()  # the rule is for a prefix
    assert [each["name"] for each in rules(sawlog, *where)] == ["*", "ord", "other"]
    sawlog("acl", "delete", *where, "--topic", "ord", "--prefixed", "--yes").ok()
    assert [each["name"] for each in rules(sawlog, *where)] == ["*", "other"]
    assert rules(sawlog, *where, "--principal", "User:bob") == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--allow", "User:ann", "--operation", "reed", "--topic", "t"), "'reed' is unknown; use one of all, read,"),
        (("--allow", "User:ann", "--operation", "write", "--group", "g"), "use read, delete, describe"),
        (("--allow", "ann", "--operation", "read", "--topic", "t"), "a principal is TYPE:NAME"),
        (("--deny", "user:ann", "--operation", "read", "--topic", "t"), "a principal is User:NAME"),
        (("--allow", "User:ann", "--operation", "read", "--topic", "t", "--host", "web1"), "not an IP address"),
        (("--operation", "read", "--topic", "t"), "give a principal with --allow"),
        (("--allow", "User:ann", "--topic", "t"), "give an operation: read, write"),
        (("--allow", "User:ann", "--operation", "read"), "give a resource with --topic"),
        (("--allow", "User:ann", "--operation", "any", "--topic", "t"), "all stands for every one"),
    ],
)
def test_an_invalid_rule_is_a_usage_error_with_valid_choices(
    sawlog: Cli, where: tuple[str, str], options: tuple[str, ...], said: str
) -> None:
    failed = sawlog("acl", "add", *where, *options)
    assert failed.code == 2
    assert said in failed.err
    assert rules(sawlog, *where) == []


def test_rules_are_deleted_only_by_an_explicit_selection(sawlog: Cli, where: tuple[str, str]) -> None:
    sawlog("acl", "add", *where, *ANN).ok()
    assert "select rules with" in sawlog("acl", "delete", *where, "--yes").err
    assert "select rules with" in sawlog("acl", "delete", *where, "--all", "--topic", "orders", "--yes").err
    assert "give --yes" in sawlog("acl", "delete", *where, "--topic", "orders").err
    assert "not one of 'allow', 'deny'" in sawlog("acl", "delete", *where, "--permission", "any", "--yes").err
    sawlog("acl", "delete", *where, "--permission", "deny", "--yes").ok()
    assert len(rules(sawlog, *where)) == 2


def test_a_missing_store_is_not_created(sawlog: Cli, tmp_path: Path) -> None:
    assert sawlog("acl", "add", "-d", str(tmp_path / "none"), *ANN).code != 0
    assert not (tmp_path / "none").exists()


def test_a_user_with_read_and_write_permission_can_use_the_commands(sawlog: Cli) -> None:
    with Broker(super_users=["User:ops"]) as broker:
        broker.create_topic("orders")
        broker.create_topic("secret")
        at, me = ("-b", broker.address), ("--allow", "User:ANONYMOUS")
        both = ("--operation", "read", "--operation", "write", "--topic", "orders")
        more = ("--operation", "alter", "--cluster")
        sawlog("acl", "add", *at, *me, *more).ok()
        sawlog("acl", "add", *at, *me, *both).ok()
        sawlog("acl", "add", *at, *me, "--operation", "read", "--group", "billing").ok()
        sawlog("produce", "orders", *at, stdin=b"hello\n").ok()
        assert "hello" in sawlog("read", "orders", *at).ok().out
        assert "hello" in sawlog("read", "orders", *at, "--group", "billing", "-n", "1").ok().out
        listed = json.loads(sawlog("topic", "list", *at, "--output", "json").ok().out)
        assert [each["name"] for each in listed] == ["orders"]
        assert "TOPIC_AUTHORIZATION_FAILED" in sawlog("read", "secret", *at).err


def test_a_broker_without_access_control_refuses_rules_with_advice(sawlog: Cli) -> None:
    with Broker() as broker:
        at = ("-b", broker.address)
        for refused in (sawlog("acl", "add", *at, *ANN), sawlog("acl", "list", *at)):
            assert refused.code == 1
            assert "SECURITY_DISABLED" in refused.err
            assert "super_users" in refused.err
        assert rules(sawlog, "-d", broker.directory) == []


def test_rules_added_through_a_broker_apply_at_once(sawlog: Cli) -> None:
    with Broker(super_users=["User:ops"]) as broker:
        at = ("-b", broker.address)
        sawlog("acl", "add", *at, "--allow", "User:ANONYMOUS", "--operation", "alter", "--cluster").ok()
        sawlog("acl", "add", *at, *ANN).ok()
        assert len(rules(sawlog, *at)) == 3
        assert "deleted 1 rule" in sawlog("acl", "delete", *at, "--cluster", "--yes").ok().err
        refused = sawlog("acl", "list", *at)
        assert refused.code == 1
        assert "User:ANONYMOUS is not allowed: DescribeAcls needs describe on the cluster" in refused.err
        directory = ("-d", broker.directory)  # which the rules do not concern
        assert len(rules(sawlog, *directory)) == 2
        sawlog("acl", "delete", *directory, "--all", "--yes").ok()
