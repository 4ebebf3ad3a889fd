"""Users: stored without their passwords, seen by other processes, and unknown ones in the same shape as known ones."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sawlog.broker.security.credentials import DOCUMENT, SHA_256, SHA_512, Salted, StoredUsers, UserCache
from sawlog.broker.wire import ErrorCode, Key
from sawlog.errors import CorruptFile, InvalidConfig, UserNotFound
from sawlog.store.directory.store import DirectoryStore
from sawlog.testing import Broker

from .talking import Talker


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DirectoryStore]:
    with DirectoryStore.open(tmp_path / "data") as made:
        yield made


@pytest.fixture
def users(store: DirectoryStore) -> StoredUsers:
    return StoredUsers(store._registry)


def salted(password: str = "secret", mechanism: Any = SHA_256) -> Salted:
    return Salted.new(mechanism, password, 4096)


def test_a_user_that_was_added_is_listed_and_can_be_deleted(users: StoredUsers) -> None:
    users.put("bob", [salted()])
    users.put("ann", [salted(), salted(mechanism=SHA_512)])
    assert users.list() == {"ann": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}, "bob": {"SCRAM-SHA-256": 4096}}
    users.delete("ann")
    assert list(users.list()) == ["bob"]
    with pytest.raises(UserNotFound, match="no user 'ann'"):
        users.delete("ann")


def test_a_new_password_replaces_the_old_one(users: StoredUsers) -> None:
    users.put("ann", [salted("old"), salted("old", SHA_512)])
    users.put("ann", [salted("new")])
    found = users.read().users["ann"]
    assert list(found) == ["SCRAM-SHA-256"]
    assert [found["SCRAM-SHA-256"].matches(SHA_256, each) for each in ("old", "new")] == [False, True]


def test_no_password_is_stored(store: DirectoryStore, users: StoredUsers) -> None:
    made = salted("correct horse battery staple")
    users.put("ann", [made])
    for file in Path(store.path).rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert b"horse" not in content
            assert made.password not in content
            assert made.password.hex().encode() not in content


@pytest.mark.parametrize("name", ["", " ann", "a\nb", "a" * 256, "ANONYMOUS", "a\0b"])
def test_a_name_that_would_confuse_is_refused(users: StoredUsers, name: str) -> None:
    with pytest.raises(InvalidConfig):
        users.put(name, [salted()])


@pytest.mark.parametrize("iterations", [0, 4095, 16385, 2**31 - 1, -1])
def test_iterations_outside_of_kafkas_range_are_refused(users: StoredUsers, iterations: int) -> None:
    with pytest.raises(InvalidConfig, match="from 4096 to 16384"):
        users.put("ann", [Salted(SHA_256, iterations, b"s" * 16, bytes(32))])


@pytest.mark.parametrize(
    "fields", [{"users": 7}, {"users": {"ann": {"SCRAM-SHA-256": {}}}}, {"users": {"ann": 1}}, {"secret": 5}]
)
def test_stored_users_that_make_no_sense_are_an_error_and_not_an_empty_list(
    store: DirectoryStore, users: StoredUsers, fields: dict[str, Any]
) -> None:
    store._registry.change(DOCUMENT, lambda before: fields)
    with pytest.raises(CorruptFile, match="users"):
        users.read()


# --- what a broker knows


def test_unknown_users_look_like_the_users_that_there_are(users: StoredUsers) -> None:
    """No shape gives away that a name exists, neither the usual one nor a rare one."""
    for name in ("ann", "bob", "eve"):
        users.put(name, [Salted(SHA_256, 8192, name.encode() * 8, bytes(32))])
    users.put("odd", [Salted(SHA_256, 4096, b"odd " * 4, bytes(32))])
    known = UserCache(users.read())
    seen = Counter((each.iterations, len(each.salt)) for n in range(400) for each in [known.find(f"no {n}", SHA_256)])
    assert set(seen) == {(8192, 24), (4096, 16)}
    assert 50 < seen[4096, 16] < 150  # a quarter, as among the users
    users.put("new", [Salted(SHA_256, 5000, b"new " * 5, bytes(32))])
    later = UserCache(users.read())
    moved = [n for n in range(400) if later.find(f"no {n}", SHA_256) != known.find(f"no {n}", SHA_256)]
    assert {later.find(f"no {n}", SHA_256).iterations for n in moved} == {5000}  # nobody else changes


def test_an_unknown_user_is_the_same_each_time(users: StoredUsers) -> None:
    for name in ("ann", "bob", "eve"):
        users.put(name, [Salted(SHA_256, 8192, name.encode() * 8, bytes(32))])
    known = UserCache(users.read())
    pretended, real = known.find("nobody", SHA_256), known.find("ann", SHA_256)
    assert (pretended.iterations, len(pretended.salt)) == (real.iterations, len(real.salt)) == (8192, 24)
    assert len(pretended.stored_key) == len(real.stored_key)
    assert known.find("nobody", SHA_256) == pretended
    assert UserCache(users.read()).find("nobody", SHA_256) == pretended  # also after a restart
    assert known.find("nobody else", SHA_256).salt != pretended.salt
    assert known.find("nobody", SHA_512).salt != pretended.salt


def test_pretended_salts_are_those_of_one_store(tmp_path: Path) -> None:
    salts = set()
    for name in ("one", "two"):
        with DirectoryStore.open(tmp_path / name) as store:
            salts.add(UserCache(StoredUsers(store._registry).prepare()).find("nobody", SHA_256).salt)
    assert len(salts) == 2


def test_an_unknown_user_is_refused_in_the_shape_of_a_wrong_password(scram_broker: Broker) -> None:
    answers = []
    for user in ("ann", "nobody"):
        with Talker(scram_broker.address) as talker:
            talker.handshake("SCRAM-SHA-256")
            first = bytes(talker.say(b"n,,n=%s,r=abc" % user.encode())["auth_bytes"])
            nonce, salt, count = first.decode().split(",")
            assert nonce.startswith("r=abc")
            last = talker.say(f"c=biws,{nonce},p={'A' * 43}=".encode())
            answers.append((len(nonce), len(salt), count, last))
            assert talker.is_closed()
    assert answers[0] == answers[1]
    assert answers[0][3]["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_users_that_another_process_adds_and_deletes_are_noticed(scram_broker: Broker) -> None:
    def logs_in() -> int:
        with Talker(scram_broker.address) as talker:
            return int(talker.log_in("new", "one")["error_code"])

    other = StoredUsers(scram_broker.store._registry)  # as `sawlog user add -d` does it
    other.put("new", [salted("one")])
    _until(lambda: logs_in() == ErrorCode.NONE)
    other.delete("new")
    _until(lambda: logs_in() == ErrorCode.SASL_AUTHENTICATION_FAILED)


def _until(true: Any) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline


# --- Kafka's calls


@pytest.fixture
def admin(scram_broker: Broker) -> Iterator[Talker]:
    with Talker(scram_broker.address) as talker:
        talker.log_in("ann", "secret of ann")
        yield talker


def describe(talker: Talker, *names: str) -> dict[str, Any]:
    asked = [{"name": each} for each in names] or None
    answer = talker.ask(Key.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": asked})
    assert answer["error_code"] == ErrorCode.NONE
    return {
        each["user"]: each["error_code"] or {info["mechanism"]: info["iterations"] for info in each["credential_infos"]}
        for each in answer["results"]
    }


def change(talker: Talker, deletions: Any = (), upsertions: Any = ()) -> dict[str, int]:
    body = {
        "deletions": [{"name": name, "mechanism": mechanism} for name, mechanism in deletions],
        "upsertions": [
            {"name": name, "mechanism": mechanism, "iterations": count, "salt": b"s" * 16, "salted_password": key}
            for name, mechanism, count, key in upsertions
        ],
    }
    results = talker.ask(Key.ALTER_USER_SCRAM_CREDENTIALS, 0, body)["results"]
    return {each["user"]: each["error_code"] for each in results}


def test_an_administrator_adds_describes_and_deletes_users(admin: Talker, scram_broker: Broker) -> None:
    key = SHA_256.salted("of eve", b"s" * 16, 4096)
    assert change(admin, upsertions=[("eve", 1, 4096, key), ("mallory", 2, 8192, bytes(64))]) == {
        "eve": 0,
        "mallory": 0,
    }
    assert describe(admin, "eve", "mallory") == {"eve": {1: 4096}, "mallory": {2: 8192}}
    assert {"ann", "bob", "eve", "mallory"} <= set(describe(admin))
    with Talker(scram_broker.address) as talker:
        assert talker.log_in("eve", "of eve")["error_code"] == ErrorCode.NONE
        assert talker.works()
    assert change(admin, deletions=[("eve", 1), ("mallory", 2)]) == {"eve": 0, "mallory": 0}
    assert describe(admin, "eve") == {"eve": ErrorCode.RESOURCE_NOT_FOUND}


@pytest.mark.parametrize(("size", "code"), [(0, 93), (1, 0), (7, 0), (1024, 0), (1025, 93)])
def test_a_salt_may_be_short(admin: Talker, scram_broker: Broker, size: int, code: int) -> None:
    """Like Kafka: the client that creates the salt chooses its length."""
    salt, name = b"s" * size, f"salted-{size}"
    given = {"name": name, "mechanism": 1, "iterations": 4096, "salt": salt}
    given["salted_password"] = SHA_256.salted("of pat", salt, 4096)
    body = {"deletions": [], "upsertions": [given]}
    (found,) = admin.ask(Key.ALTER_USER_SCRAM_CREDENTIALS, 0, body)["results"]
    assert found["error_code"] == code
    if code == ErrorCode.NONE:
        with Talker(scram_broker.address) as talker:
            assert talker.log_in(name, "of pat")["error_code"] == ErrorCode.NONE


def test_an_invalid_change_of_one_user_does_not_affect_the_others(admin: Talker) -> None:
    good = bytes(32)
    assert change(
        admin,
        deletions=[("nobody", 1), ("ann", 7)],
        upsertions=[
            ("good", 1, 4096, good),
            ("few", 1, 4095, good),
            ("many", 1, 16385, good),
            ("short", 1, 4096, b"x"),
            ("unknown", 3, 4096, good),
            ("twice", 1, 4096, good),
            ("twice", 1, 8192, good),
            ("", 1, 4096, good),
            ("half", 1, 4096, good),
            ("half", 2, 4096, good),
        ],
    ) == {
        "nobody": ErrorCode.RESOURCE_NOT_FOUND,
        "ann": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        "good": ErrorCode.NONE,
        "few": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "many": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "short": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "unknown": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        "twice": ErrorCode.DUPLICATE_RESOURCE,
        "": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "half": ErrorCode.UNACCEPTABLE_CREDENTIAL,
    }
    assert {"few", "many", "short", "unknown", "twice", "half", "nobody"}.isdisjoint(describe(admin))
    assert change(admin, deletions=[("good", 1)]) == {"good": 0}


def test_a_user_that_is_asked_for_twice_is_an_error(admin: Talker) -> None:
    assert describe(admin, "ann", "ann", "bob") == {"ann": ErrorCode.DUPLICATE_RESOURCE, "bob": {1: 4096, 2: 4096}}
