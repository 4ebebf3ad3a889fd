"""Authentication and users: SaslHandshake, SaslAuthenticate, DescribeUserScramCredentials, AlterUserScramCredentials
and DescribeClientQuotas.
"""

from __future__ import annotations

from collections import Counter

from ...errors import InvalidConfig
from ..security.credentials import StoredUsers, check_name, check_salted
from ..security.mechanisms import BY_NUMBER, MECHANISMS, Mechanism, Salted
from ..security.session import Session
from ..trouble import message_of
from ..wire.apis import Key
from ..wire.errors import ErrorCode
from . import Body, Context, KafkaError


async def handshake(context: Context, request: Body) -> Body:
    """Choose a mechanism."""
    return await _session(context).handshake(request["mechanism"], is_bare=context.header.version == 0)


async def authenticate(context: Context, request: Body) -> Body:
    """Process the next message of the mechanism."""
    return await _session(context).authenticate(bytes(request["auth_bytes"]))


def _session(context: Context) -> Session:
    assert context.session is not None, "every connection has a session"
    return context.session


async def describe_users(context: Context, request: Body) -> Body:
    """Return the users with their mechanisms, without secrets."""
    broker = context.broker
    users = await broker.run(StoredUsers(broker.store.registry).list)
    asked = [each["name"] for each in request["users"] or ()]
    counts = Counter(asked)
    results = []
    for name in dict.fromkeys(asked or users):
        made: Body = {"user": name, "error_code": ErrorCode.NONE, "error_message": None, "credential_infos": []}
        if counts[name] > 1:
            made.update(error_code=ErrorCode.DUPLICATE_RESOURCE, error_message=f"{name!r} is asked for twice")
        elif name not in users:
            made.update(error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message=f"no user {name!r}")
        else:
            made["credential_infos"] = [
                {"mechanism": MECHANISMS[mechanism].number, "iterations": count}
                for mechanism, count in users[name].items()
            ]
        results.append(made)
    return {"error_code": ErrorCode.NONE, "error_message": None, "results": results}


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
    return {"results": [_result(name, wrong.get(name)) for name in names]}


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


def _result(name: str, error: KafkaError | None) -> Body:
    if error is None:
        return {"user": name, "error_code": ErrorCode.NONE, "error_message": None}
    return {"user": name, "error_code": error.code, "error_message": message_of(error)}


def describe_quotas(context: Context, request: Body) -> Body:
    """Return no quotas: there are none. Kafka's tool requests them when it describes users."""
    return {"error_code": ErrorCode.NONE, "error_message": None, "entries": []}


HANDLERS = {
    Key.SASL_HANDSHAKE: handshake,
    Key.SASL_AUTHENTICATE: authenticate,
    Key.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_users,
    Key.ALTER_USER_SCRAM_CREDENTIALS: alter_users,
    Key.DESCRIBE_CLIENT_QUOTAS: describe_quotas,
}
