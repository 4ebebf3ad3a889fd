"""Authentication, users and access control rules: SaslHandshake, SaslAuthenticate, DescribeUserScramCredentials,
AlterUserScramCredentials, DescribeAcls, CreateAcls and DeleteAcls.

A broker without access control refuses requests about rules with SECURITY_DISABLED, as Kafka does without an
authorizer. Rules added in the data directory are in force even there, so once there are some, the requests are served.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import groupby

from ...errors import InvalidConfig, SawlogError
from ..security.acls import CREATED, DESCRIBED, FILTERED, Binding, Filter, from_wire, to_wire
from ..security.authentication import Session
from ..security.credentials import BY_NUMBER, MECHANISMS, Mechanism, Salted, StoredUsers, check_name, check_salted
from ..wire import Body, ErrorCode, Key
from . import ALTER_CLUSTER, DESCRIBE_CLUSTER, Context, KafkaError, answer_each, code_of, handles, message_of


@handles(Key.SASL_HANDSHAKE)
async def handshake(context: Context, request: Body) -> Body:
    """Choose a mechanism."""
    return await _session(context).handshake(request["mechanism"], is_bare=context.header.version == 0)


@handles(Key.SASL_AUTHENTICATE)
async def authenticate(context: Context, request: Body) -> Body:
    """Process the next message of the mechanism."""
    return await _session(context).authenticate(bytes(request["auth_bytes"]))


def _session(context: Context) -> Session:
    assert context.session is not None, "every connection has a session"
    return context.session


@handles(Key.DESCRIBE_USER_SCRAM_CREDENTIALS, DESCRIBE_CLUSTER)
async def describe_users(context: Context, request: Body) -> Body:
    """Return the users with their mechanisms, without secrets."""
    broker = context.broker
    users = await broker.run(StoredUsers(broker.store.registry).list)
    asked = [each["name"] for each in request["users"] or ()]
    counts = Counter(asked)

    async def describe(name: str, answer: Body) -> None:
        if counts[name] > 1:
            raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, f"{name!r} is asked for twice")
        if name not in users:
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"no user {name!r}")
        answer["credential_infos"] = [
            {"mechanism": MECHANISMS[mechanism].number, "iterations": count} for mechanism, count in users[name].items()
        ]

    wanted = {"users": dict.fromkeys(asked or users)}
    return await answer_each(Key.DESCRIBE_USER_SCRAM_CREDENTIALS, wanted, describe)


@handles(Key.ALTER_USER_SCRAM_CREDENTIALS, ALTER_CLUSTER)
async def alter_users(context: Context, request: Body) -> Body:
    """Add, change and delete credentials. If one change of a user is invalid, none of that user's changes apply."""
    broker = context.broker
    deletions, upsertions = request["deletions"], request["upsertions"]
    names = list(dict.fromkeys(each["name"] for each in (*deletions, *upsertions)))
    wrong = _wrong(deletions, upsertions)
    lacking = await broker.run(
        StoredUsers(broker.store.registry).alter,
        [(each["name"], _mechanism(each)) for each in deletions if each["name"] not in wrong],
        [(each["name"], _salted(each)) for each in upsertions if each["name"] not in wrong],
    )
    for name in lacking:
        wrong[name] = KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "the user has no such credential")
    await broker.authenticator.refresh()

    async def tell(name: str, answer: Body) -> None:
        if name in wrong:
            raise wrong[name]

    return await answer_each(Key.ALTER_USER_SCRAM_CREDENTIALS, {"users": names}, tell)


def _wrong(deletions: list[Body], upsertions: list[Body]) -> dict[str, KafkaError]:
    """Return the first error of each user's changes."""
    counts = Counter((each["name"], each["mechanism"]) for each in (*deletions, *upsertions))
    found: dict[str, KafkaError] = {}
    for each in (*deletions, *upsertions):
        name = each["name"]
        try:
            if counts[name, each["mechanism"]] > 1:
                raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, "a credential is changed twice in one request")
            _mechanism(each)
            if "salt" in each:
                check_name(name)
                check_salted(_salted(each))
        except InvalidConfig as error:
            found.setdefault(name, KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error)))
        except KafkaError as error:
            found.setdefault(name, error)
    return found


def _mechanism(asked: Body) -> Mechanism:
    found = BY_NUMBER.get(asked["mechanism"])
    if found is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "the mechanism must be SCRAM-SHA-256 or SCRAM-SHA-512")
    return found


def _salted(asked: Body) -> Salted:
    return Salted(_mechanism(asked), asked["iterations"], bytes(asked["salt"]), bytes(asked["salted_password"]))


# --- access control rules


def _check_enabled(context: Context) -> None:
    """Raise `KafkaError` on a broker without access control."""
    broker = context.broker
    if broker.authorizer.is_open and not broker.config.has_access_control:
        raise KafkaError(
            ErrorCode.SECURITY_DISABLED,
            "access control is disabled: this broker authenticates no clients and has no super users. Configure"
            " sasl_mechanisms, tls_client_ca or super_users first; `sawlog acl` in the data directory always works",
        )


@handles(Key.DESCRIBE_ACLS, DESCRIBE_CLUSTER)
async def describe_acls(context: Context, request: Body) -> Body:
    """Return the bindings that match a filter, as stored now: another process may have added some."""
    authorizer = context.broker.authorizer
    try:
        wanted = from_wire(Filter, request, FILTERED)
    except InvalidConfig as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
    await authorizer.refresh()
    _check_enabled(context)
    if authorizer.unreadable is not None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, authorizer.unreadable)
    return {"resources": _by_pattern(authorizer.bindings(wanted))}


#: Fields of a binding that differ among those of one resource.
_ENTRY = ("principal", "host", "operation", "permission_type")


def _by_pattern(bindings: Iterable[Binding]) -> list[Body]:
    """Group sorted bindings by the resources they cover."""
    found: list[Body] = []
    for (resource, name, pattern), some in groupby(bindings, key=lambda each: (each.resource, each.name, each.pattern)):
        acls = [{field: to_wire(each, DESCRIBED)[field] for field in _ENTRY} for each in some]
        found.append({"resource_type": resource, "resource_name": name, "pattern_type": pattern, "acls": acls})
    return found


@handles(Key.CREATE_ACLS, ALTER_CLUSTER)
async def create_acls(context: Context, request: Body) -> Body:
    """Add bindings. Invalid ones are refused individually; the others are added together."""
    _check_enabled(context)
    results: list[Body] = []
    made: list[Binding] = []
    for creation in request["creations"]:
        try:
            made.append(from_wire(Binding, creation, CREATED))
            results.append(_NO_ERROR)
        except SawlogError as error:
            results.append(_failed(error))
    try:
        if made:
            await context.broker.authorizer.add(made)
    except SawlogError as error:
        results = [_failed(error) if each is _NO_ERROR else each for each in results]
    return {"results": results}


@handles(Key.DELETE_ACLS, ALTER_CLUSTER)
async def delete_acls(context: Context, request: Body) -> Body:
    """Delete the bindings that match filters. Invalid filters are refused individually; the others are applied
    together."""
    _check_enabled(context)
    filters: list[Filter | SawlogError] = []
    for given in request["filters"]:
        try:
            filters.append(from_wire(Filter, given, FILTERED))
        except SawlogError as error:
            filters.append(error)
    try:
        matched = iter(await context.broker.authorizer.delete([each for each in filters if isinstance(each, Filter)]))
    except SawlogError as error:
        return {"filter_results": [_failed(error) for _ in filters]}
    return {
        "filter_results": [
            {**_NO_ERROR, "matching_acls": [{**_NO_ERROR, **to_wire(binding, DESCRIBED)} for binding in next(matched)]}
            if isinstance(each, Filter)
            else _failed(each)
            for each in filters
        ]
    }


_NO_ERROR: Body = {"error_code": ErrorCode.NONE, "error_message": None}


def _failed(error: SawlogError) -> Body:
    """Return the error for a binding or a filter; an invalid one is an invalid request."""
    code = ErrorCode.INVALID_REQUEST if isinstance(error, InvalidConfig) else code_of(error)
    return {"error_code": code, "error_message": message_of(error)}
