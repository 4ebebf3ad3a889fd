"""`sawlog user` and `sawlog acl`: add, list and delete the users and the access control rules of a broker."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..broker.security.acls import (
    CLUSTER_NAME,
    EVERY,
    EVERYBODY,
    OPERATIONS,
    Binding,
    Filter,
    Operation,
    Pattern,
    Permission,
    Resource,
    check_principal,
    parse,
    word,
)
from ..broker.security.authorizer import StoredAcls, sorted_bindings
from ..broker.security.credentials import MAX_ITERATIONS, MECHANISMS, MIN_ITERATIONS, Salted, StoredUsers
from ..display import counted
from ..errors import InvalidConfig
from ..store.base import Store
from .options import BrokerAt, MaybeData, Output, Yes, argument, complete_group, complete_topic, flag, option, parsed
from .output import Column, Printer, columns, confirm
from .program import Command, command_group
from .stores import open_store

if TYPE_CHECKING:
    from ..broker.remote import RemoteAcls, RemoteUsers
    from .stores import AnyStore


def _users_of(store: AnyStore) -> StoredUsers | RemoteUsers:
    """Return the users of a store's brokers."""
    return StoredUsers(store._registry) if isinstance(store, Store) else store.users


def _acls_of(store: AnyStore) -> StoredAcls | RemoteAcls:
    """Return the access control rules of a store's brokers."""
    return StoredAcls(store._registry) if isinstance(store, Store) else store.acls


users = command_group("Add, list and delete users of the broker.")

Name = Annotated[str, argument("USER", "The name of the user.", ...)]


@users.command("add", cls=Command)
def add_user(
    name: Name,
    data: MaybeData = None,
    broker: BrokerAt = None,
    password_file: Path | None = option(
        "--password-file FILE",
        "A file that contains the password; - is stdin.  [default: ask, or stdin if it is not a terminal]",
    ),
    mechanism: list[str] | None = option(
        "--mechanism -m NAME", "SCRAM-SHA-256 or SCRAM-SHA-512; can be repeated. [default: both]"
    ),
    iterations: int = option(
        "--iterations N",
        "The iteration count, which makes guessing passwords expensive.",
        MAX_ITERATIONS,
        min=MIN_ITERATIONS,
        max=MAX_ITERATIONS,
    ),
    output: Output = "table",
) -> None:
    """Add a user, or change an existing user's password.

    The store keeps only a salted hash, never the password. A running broker accepts the user within a second. A broker
    authenticates users if its setting sasl_mechanisms is set.

    \b
    Examples:
      sawlog user add ann -d data
      sawlog user add ann -d data --password-file ann.password
      cat ann.password | sawlog user add ann -b 127.0.0.1:9092
    """
    for each in mechanism or ():
        if each not in MECHANISMS:
            raise typer.BadParameter(f"{' or '.join(sorted(MECHANISMS))}, not {each!r}", param_hint="--mechanism")
    chosen = sorted(set(mechanism or MECHANISMS))
    password = _new_password(name, password_file)
    with open_store(data, broker, "w", create=True) as store:
        users = _users_of(store)
        existed = name in users.list()
        users.put(name, [Salted.new(MECHANISMS[each], password, iterations) for each in chosen])
    fields = {"user": name, "mechanisms": chosen, "iterations": iterations, "existed": existed}
    Printer(output).outcome(f"{name}: {'has a new password' if existed else 'added'}", fields)


@users.command("list", cls=Command)
def list_users(data: MaybeData = None, broker: BrokerAt = None, output: Output = "table") -> None:
    """List the users and their authentication mechanisms.

    \b
    Examples:
      sawlog user list -d data
      sawlog user list -b 127.0.0.1:9092 --output json
    """
    with open_store(data, broker) as store:
        found = _users_of(store).list()
    rows = [{"user": name, "mechanisms": list(each), "iterations": list(each.values())} for name, each in found.items()]
    shown = columns(
        "user",
        Column("mechanisms", shown=lambda names: " ".join(names or ())),
        Column("iterations", shown=lambda counts: " ".join(map(str, counts or ()))),
    )
    Printer(output).rows(rows, shown, empty="no users yet; `sawlog user add NAME` adds one")


@users.command("delete", cls=Command)
def delete_user(
    name: Name, data: MaybeData = None, broker: BrokerAt = None, yes: Yes = False, output: Output = "table"
) -> None:
    """Delete a user. Open connections stay authenticated until they close. Asks for confirmation unless --yes is given.

    \b
    Examples:
      sawlog user delete ann -d data --yes
      sawlog user delete ann -b 127.0.0.1:9092 --yes
    """
    confirm(f"delete the user {name}", yes)
    with open_store(data, broker, "w") as store:
        _users_of(store).delete(name)
    Printer(output).outcome(f"{name}: deleted", {"user": name, "deleted": True})


def _new_password(user: str, file: Path | None) -> str:
    """Read a user's new password from a file, else twice from the terminal, else from the first line of stdin; never
    from the command line, where every user of the machine could read it."""
    if file is not None and str(file) != "-":
        from ..broker.security.tls import read_password

        return read_password(file)
    if file is None and sys.stdin.isatty():
        return str(typer.prompt(f"new password of {user}", hide_input=True, confirmation_prompt=True, err=True))
    line = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not line:
        raise typer.BadParameter("stdin has no password in its first line", param_hint="--password-file")
    return line


acls = command_group("Manage a broker's access control rules: add, list and delete them.")

OnlyPrincipal = Annotated[str | None, option("--principal User:NAME", "Only rules for this principal.", ...)]
Topics = Annotated[
    list[str] | None,
    option("--topic -t TOPIC", "A topic; * is every topic. Can be repeated.", ..., autocompletion=complete_topic),
]
Groups = Annotated[
    list[str] | None,
    option(
        "--group -g GROUP", "A consumer group; * is every group. Can be repeated.", ..., autocompletion=complete_group
    ),
]
TransactionalIds = Annotated[
    list[str] | None,
    option("--transactional-id ID", "A transactional id; * is every one. Can be repeated.", ...),
]
IsCluster = Annotated[bool, flag("--cluster", "The broker as a whole: rules, users, and creating any topic.", ...)]
Operations = Annotated[
    list[str] | None,
    option("--operation OPERATION", "read, write, create, delete, alter, describe, all, ... Can be repeated.", ...),
]
IsPrefixed = Annotated[bool, flag("--prefixed", "Names are prefixes: orders- means orders-1, orders-eu.", ...)]

#: The principal of an unauthenticated client.
_ANONYMOUS = "User:ANONYMOUS"
_RULE_COLUMNS = columns("resource name pattern principal permission operation", Column("host", rank=1))


@acls.command("add", cls=Command)
def add_rules(
    data: MaybeData = None,
    broker: BrokerAt = None,
    allow: list[str] | None = option("--allow User:NAME", "A principal to allow; User:* is everyone. Can be repeated."),
    deny: list[str] | None = option(
        "--deny User:NAME", "A principal to deny, regardless of what other rules allow. Can be repeated."
    ),
    operation: Operations = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: IsCluster = False,
    prefixed: IsPrefixed = False,
    host: list[str] | None = option("--host ADDRESS", "Only from this IP address. Can be repeated.  [default: any]"),
    output: Output = "table",
) -> None:
    """Add rules, one for each combination of principal, operation, resource and host.

    A principal is a user, User:NAME; clients that do not authenticate are User:ANONYMOUS. A resource is a topic, a
    group, a transactional id or the broker as a whole.

    While a store has no rules, every operation is allowed. From the first rule on, its brokers refuse every operation
    that no rule allows or that a rule denies; super users (the broker setting `super_users`) are exempt. Running
    brokers apply new rules within a second. With -d this command is not subject to the rules, so an administrator
    cannot be locked out. With -b, a broker that neither authenticates its clients nor has super users refuses the
    first rule.

    A consumer needs read on its topics and its group. A producer needs write on its topics, and on its transactional
    id if it has one. Permission to read, write, delete or alter includes permission to describe.

    \b
    Examples:
      sawlog acl add -d data --allow User:ann --operation read --topic orders --group billing
      sawlog acl add -d data --allow User:shop --operation write --topic orders- --prefixed
      sawlog acl add -d data --deny User:shop --operation delete --topic '*'
      sawlog acl add -d data --allow User:ops --operation all --cluster --topic '*' --group '*'
    """
    operations = _operations(operation)
    pattern = Pattern.PREFIXED if prefixed else Pattern.LITERAL
    resources = _resources(topic, group, transactional_id, cluster, pattern)
    people = [(Permission.ALLOW, parsed("--allow", each, _user)) for each in allow or ()]
    people += [(Permission.DENY, parsed("--deny", each, _user)) for each in deny or ()]
    for given, needed in ((people, "--allow"), (operations, "--operation"), (resources, "--topic")):
        if not given:
            raise typer.BadParameter(_MISSING[needed], param_hint=needed)
    _check_operations(operations, resources)
    hosts = [parsed("--host", each, _address) for each in host or [EVERY]]
    combinations = product(people, resources, operations, hosts)
    made = list(
        dict.fromkeys(
            Binding(resource, name, principal, operation, permission, by, host)
            for (permission, principal), (resource, name, by), operation, host in combinations
        )
    )
    with open_store(data, broker, "w") as store:
        rules = _acls_of(store)
        before = frozenset(rules.find(Filter()))
        rules.add(made)
    printer = Printer(output)
    printer.rows([each.fields for each in made], _RULE_COLUMNS)
    old = len(before.intersection(made))
    printer.remark(f"added {counted(len(made) - old, 'rule')}" + (f"; {old} existed already" if old else ""))
    if not before:
        printer.remark("these are the first rules: from now on brokers refuse everything else, except to super users")
        if not any(principal in (EVERYBODY, _ANONYMOUS) for _, principal in people):
            others = "none of these rules applies to that principal"
            printer.remark(f"unauthenticated clients are {_ANONYMOUS}, and {others}")


@acls.command("list", cls=Command)
def list_rules(
    data: MaybeData = None,
    broker: BrokerAt = None,
    principal: OnlyPrincipal = None,
    operation: Operations = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: IsCluster = False,
    output: Output = "table",
) -> None:
    """List all rules, or only the rules for a topic, a group or a principal.

    --topic orders also lists the rules for prefixes of that name and for all topics, because they apply to it too.

    \b
    Examples:
      sawlog acl list -d data
      sawlog acl list -d data --topic orders --output json
      sawlog acl list -b 127.0.0.1:9092 --principal User:ann
    """
    resources = _resources(topic, group, transactional_id, cluster, Pattern.MATCH)
    wanted = _filters(principal, None, _operations(operation), resources)
    with open_store(data, broker) as store:
        rules = _acls_of(store)
        found = [rules.find(each) for each in wanted]
    rows = [each.fields for each in _joined(found)]
    Printer(output).rows(rows, _RULE_COLUMNS, empty="no rules match; a store without rules allows every operation")


@acls.command("delete", cls=Command)
def delete_rules(
    data: MaybeData = None,
    broker: BrokerAt = None,
    principal: OnlyPrincipal = None,
    permission: Literal["allow", "deny"] | None = option(
        "--permission allow|deny", "Only rules that allow, or that deny.", case_sensitive=False
    ),
    operation: Operations = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: IsCluster = False,
    prefixed: IsPrefixed = False,
    every: bool = flag("--all", "Delete all rules, which allows every operation again."),
    yes: Yes = False,
    output: Output = "table",
) -> None:
    """Delete rules. Asks for confirmation unless --yes is given.

    --topic orders deletes the rules for exactly that name, not the rules for all topics or for a prefix. To delete the
    rules for a prefix, add --prefixed. Deleting the last rule allows every operation again.

    \b
    Examples:
      sawlog acl delete -d data --principal User:ann --yes
      sawlog acl delete -d data --topic orders- --prefixed --operation write --yes
      sawlog acl delete -d data --all --yes
    """
    given = (principal, permission, operation, topic, group, transactional_id, cluster or None)
    if every == any(each is not None for each in given):
        raise typer.BadParameter("select rules with --principal, --topic, ..., or give --all", param_hint="--all")
    pattern = Pattern.PREFIXED if prefixed else Pattern.LITERAL
    wanted = [Filter()]
    if not every:
        resources = _resources(topic, group, transactional_id, cluster, pattern)
        wanted = _filters(principal, permission, _operations(operation), resources)
    with open_store(data, broker) as store:
        rules = _acls_of(store)
        found = _joined([rules.find(each) for each in wanted])
        left = len(rules.find(Filter())) - len(found)
    if found:
        confirm(f"delete {counted(len(found), 'rule')}", yes)
        with open_store(data, broker, "w") as store:
            found = _joined(_acls_of(store).delete(wanted))
    printer = Printer(output)
    printer.rows([each.fields for each in found], _RULE_COLUMNS, empty="no rules match; nothing was deleted")
    if found:
        printer.remark(f"deleted {counted(len(found), 'rule')}")
        if not left:
            printer.remark("no rules are left: every operation is allowed")


# --- parsing options

_MISSING = {
    "--allow": "give a principal with --allow User:NAME or --deny User:NAME",
    "--operation": "give an operation: read, write, create, delete, alter, describe, all, ...",
    "--topic": "give a resource with --topic, --group, --transactional-id or --cluster",
}


def _user(text: str) -> str:
    """Parse a principal. Only users are accepted, because no other type would ever match."""
    check_principal(text)
    if not text.startswith("User:"):
        raise InvalidConfig(f"a principal is User:NAME, not {text!r}")
    return text


def _operations(given: list[str] | None) -> list[Operation]:
    found = [parsed("--operation", each, lambda text: parse(Operation, text)) for each in given or ()]
    if Operation.ANY in found:
        raise typer.BadParameter("any is not an operation; all stands for every one", param_hint="--operation")
    return found


def _resources(
    topics: list[str] | None,
    groups: list[str] | None,
    transactional_ids: list[str] | None,
    cluster: bool,
    pattern: Pattern,
) -> list[tuple[Resource, str, Pattern]]:
    """Return the selected resources. The pattern does not apply to the cluster, nor to *, which is every name."""
    named = [
        (Resource.TOPIC, topics),
        (Resource.GROUP, groups),
        (Resource.TRANSACTIONAL_ID, transactional_ids),
        (Resource.CLUSTER, [CLUSTER_NAME] if cluster else None),
    ]
    return [
        (resource, name, Pattern.LITERAL if resource is Resource.CLUSTER or name == EVERY else pattern)
        for resource, names in named
        for name in names or ()
    ]


def _check_operations(operations: list[Operation], resources: list[tuple[Resource, str, Pattern]]) -> None:
    """Refuse an operation that its resource does not have: the rule would never match."""
    for resource in dict.fromkeys(resource for resource, _, _ in resources):
        valid = (*OPERATIONS[resource], Operation.ALL)
        for each in operations:
            if each not in valid:
                raise typer.BadParameter(
                    f"{word(each)} is not an operation on a {word(resource)}; use {', '.join(map(word, valid))}",
                    param_hint="--operation",
                )


def _address(text: str) -> str:
    """Parse an IP address. Brokers compare addresses, so a host name would never match."""
    try:
        return str(ipaddress.ip_address(text)) if text != "*" else text
    except ValueError:
        raise InvalidConfig(f"{text!r} is not an IP address; host names are not resolved") from None


def _filters(
    principal: str | None,
    permission: str | None,
    operations: list[Operation],
    resources: list[tuple[Resource, str, Pattern]],
) -> list[Filter]:
    """Return one filter for each combination."""
    kind = Permission.ANY if permission is None else parse(Permission, permission)
    places: Sequence[tuple[Resource, str | None, Pattern]] = resources or [(Resource.ANY, None, Pattern.ANY)]
    return [
        Filter(resource, name, principal, operation, kind, pattern)
        for operation in operations or [Operation.ANY]
        for resource, name, pattern in places
    ]


def _joined(found: Sequence[Sequence[Binding]]) -> list[Binding]:
    """Return the rules that any filter matched, without duplicates, in order."""
    return sorted_bindings({each for some in found for each in some})
