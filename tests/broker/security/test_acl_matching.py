"""Bindings and filters, compared with a plain transcription of the documentation."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sawlog.broker.security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    AclIndex,
    Binding,
    ClientIdentity,
    Filter,
    Operation,
    Pattern,
    Permission,
    Resource,
    parse,
    word,
)
from sawlog.errors import InvalidConfig

READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
ALLOW, DENY = Permission.ALLOW, Permission.DENY
ANN = ClientIdentity("User:ann", "10.0.0.1")

# Few values, so that rules meet; names of which some begin others.
NAMES = ["a", "ab", "abc", "b", "ba"]
PEOPLE = ["User:ann", "User:bob"]
HOSTS = ["10.0.0.1", "10.0.0.2"]
RESOURCES = [Resource.TOPIC, Resource.GROUP]
DONE = [each for each in Operation if each not in (Operation.ANY, Operation.ALL)]

bindings = st.builds(
    Binding,
    resource=st.sampled_from(RESOURCES),
    name=st.sampled_from([*NAMES, "*"]),
    principal=st.sampled_from([*PEOPLE, "User:*"]),
    operation=st.sampled_from([READ, WRITE, DESCRIBE, ALL, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS]),
    permission=st.sampled_from([ALLOW, ALLOW, DENY]),
    pattern=st.sampled_from([Pattern.LITERAL, Pattern.PREFIXED]),
    host=st.sampled_from([*HOSTS, "*"]),
)
rules = st.lists(bindings, max_size=6)


def concerns(binding: Binding, who: ClientIdentity, resource: Resource, name: str) -> bool:
    if binding.pattern is Pattern.PREFIXED:
        is_named = name[: len(binding.name)] == binding.name
    else:
        is_named = binding.name in ("*", name)
    is_person = binding.principal in ("User:*", who.principal)
    is_place = binding.host in ("*", who.host)
    return binding.resource == resource and is_named and is_person and is_place


def model(some: list[Binding], who: ClientIdentity, operation: Operation, resource: Resource, name: str) -> bool:
    found = [each for each in some if concerns(each, who, resource, name)]
    if any(each.permission is DENY and each.operation in (operation, ALL) for each in found):
        return False
    enough = {operation, ALL}
    if operation is DESCRIBE:
        enough |= {READ, WRITE, Operation.DELETE, Operation.ALTER}
    if operation is Operation.DESCRIBE_CONFIGS:
        enough |= {Operation.ALTER_CONFIGS}
    return any(each.permission is ALLOW and each.operation in enough for each in found)


@settings(max_examples=50)
@given(rules)
def test_decisions_are_those_of_the_model(some: list[Binding]) -> None:
    made = AclIndex(some)
    for _ in range(2):  # the second time they are remembered
        for who in (ClientIdentity(person, host) for person in PEOPLE for host in HOSTS):
            for resource in RESOURCES:
                for name in [*NAMES, "c"]:
                    for operation in (READ, WRITE, DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.CREATE):
                        expected = model(some, who, operation, resource, name)
                        assert made.allows(who, operation, resource, name) == expected


@given(rules)
def test_some_resource_is_allowed_if_one_of_all_names_is(some: list[Binding]) -> None:
    """Longer names than any rule has stand for the infinitely many that a prefix, or *, allows."""
    names = [first + second for first in ("", *NAMES, "*", "c") for second in ("", "zz")]
    for operation in (READ, WRITE, DESCRIBE):
        expected = any(model(some, ANN, operation, Resource.TOPIC, name) for name in names if name)
        assert AclIndex(some).allows_some(ANN, operation, Resource.TOPIC) == expected


@settings(max_examples=50)
@given(rules)
def test_resources_without_rules_are_open_if_configured(some: list[Binding]) -> None:
    made = AclIndex(some, allow_if_no_acl=True)
    for resource in RESOURCES:
        for name in [*NAMES, "c"]:
            is_ruled = any(concerns(each, ClientIdentity(each.principal, each.host), resource, name) for each in some)
            for operation in (READ, WRITE, DESCRIBE):
                expected = model(some, ANN, operation, resource, name) if is_ruled else True
                assert made.allows(ANN, operation, resource, name) == expected
                assert made.allows_some(ANN, operation, resource) or not expected


def test_nothing_is_allowed_that_no_rule_allows() -> None:
    assert not AclIndex(()).allows(ANN, READ, Resource.TOPIC, "orders")
    assert not AclIndex(()).allows_some(ANN, READ, Resource.TOPIC)


def test_deny_wins_however_special_the_allowing_rule_is() -> None:
    allowing = Binding(Resource.TOPIC, "orders", "User:ann", ALL, host="10.0.0.1")
    denying = Binding(Resource.TOPIC, "*", "User:*", READ, DENY)
    assert not AclIndex([allowing, denying]).allows(ANN, READ, Resource.TOPIC, "orders")
    assert AclIndex([allowing, denying]).allows(ANN, WRITE, Resource.TOPIC, "orders")


def test_the_cache_of_decisions_is_bounded() -> None:
    made = AclIndex([Binding(Resource.TOPIC, "*", "User:ann", READ)])
    for number in range(21_000):
        assert made.allows(ANN, READ, Resource.TOPIC, f"topic-{number}")
    assert len(made._decisions) <= 20_000
    made._decisions.clear()
    assert made.allows(ANN, READ, Resource.TOPIC, "t" * 30_000)
    assert not made.allows(ANN, WRITE, Resource.TOPIC, "t" * 30_000)
    assert not made._decisions


# --- filters

filters = st.builds(
    Filter,
    resource=st.sampled_from([Resource.ANY, *RESOURCES]),
    name=st.sampled_from([None, *NAMES, "*"]),
    principal=st.sampled_from([None, *PEOPLE, "User:*"]),
    operation=st.sampled_from([Operation.ANY, READ, ALL]),
    permission=st.sampled_from([Permission.ANY, ALLOW, DENY]),
    pattern=st.sampled_from(list(Pattern)),
    host=st.sampled_from([None, "10.0.0.1", "*"]),
)


@given(bindings, filters)
def test_filters_find_what_the_model_finds(binding: Binding, wanted: Filter) -> None:
    same = all(
        asked in (None, 1, there)
        for asked, there in (
            (wanted.resource, binding.resource),
            (wanted.principal, binding.principal),
            (wanted.operation, binding.operation),
            (wanted.permission, binding.permission),
            (wanted.host, binding.host),
        )
    )
    if wanted.pattern is Pattern.MATCH:
        who = ClientIdentity(binding.principal, binding.host)
        named = wanted.name is None or concerns(binding, who, binding.resource, wanted.name)
    else:
        named = wanted.name in (None, binding.name) and wanted.pattern in (Pattern.ANY, binding.pattern)
    assert wanted.matches(binding) == (same and named)


# --- values


@given(bindings)
def test_a_binding_survives_its_words(binding: Binding) -> None:
    assert Binding.of(binding.fields) == binding


GOOD = Binding(Resource.TOPIC, "orders", "User:ann", READ)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": "a\nb"},
        {"name": "x" * 1025},
        {"principal": "ann"},
        {"principal": "User:"},
        {"principal": ":ann"},
        {"host": ""},
        {"resource": Resource.ANY},
        {"resource": Resource.CLUSTER},
        {"operation": Operation.ANY},
        {"permission": Permission.ANY},
        {"pattern": Pattern.ANY},
        {"pattern": Pattern.MATCH},
    ],
)
def test_invalid_rules_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        dataclasses.replace(GOOD, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [{}, {**GOOD.fields, "more": "x"}, {**GOOD.fields, "host": 7}])
def test_words_that_are_not_those_of_a_rule_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        Binding.of(fields)


def test_words_are_read_in_every_spelling_and_an_unknown_one_is_answered_with_those_there_are() -> None:
    for text in ("describe-configs", "DESCRIBE_CONFIGS", "DescribeConfigs"):
        assert parse(Operation, text) is Operation.DESCRIBE_CONFIGS
    with pytest.raises(InvalidConfig, match="'reed' is unknown; use one of all, read, write"):
        parse(Operation, "reed")
    assert word(Resource.TRANSACTIONAL_ID) == "transactional-id"


def test_the_numbers_are_kafkas() -> None:
    """Bit sets, as clients print them: 3576 is every operation on a topic, 8096 on a cluster."""
    assert sum(1 << each for each in OPERATIONS[Resource.TOPIC]) == 3576
    assert sum(1 << each for each in OPERATIONS[Resource.CLUSTER]) == 8096
    assert Binding(Resource.CLUSTER, CLUSTER_NAME, "User:ann", ALL).resource == 4
