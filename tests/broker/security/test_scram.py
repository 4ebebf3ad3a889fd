"""SCRAM as bytes: the examples of the RFCs, and everything that can be wrong in an exchange."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog.broker.security.authentication import ScramServer
from sawlog.broker.security.credentials import SHA_256, SHA_512, Credential, Mechanism, Salted
from sawlog.errors import AuthenticationFailed

from ...looping import for_each
from .scram_client import Client

#: Only for the example of RFC 5802: nobody offers it.
SHA_1 = Mechanism("SCRAM-SHA-1", "sha1", 0)

RFC = {
    "RFC 5802": (
        SHA_1,
        ("fyko+d2lbbFgONRv9qkxdawL", "3rfcNHYJY1ZVvWVs7j", "QSXCR+Q6sek8bf92"),
        [
            b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
            b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
            b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
            b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
        ],
    ),
    "RFC 7677": (
        SHA_256,
        ("rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", "W22ZaJ0SNY7soEsUEjb6gQ=="),
        [
            b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
            b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
            b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        ],
    ),
}


def stored(mechanism: Mechanism, password: str = "pencil", salt: bytes = b"s" * 16) -> Credential:
    return Salted(mechanism, 4096, salt, mechanism.salted(password, salt, 4096)).credential()


PENCIL = stored(SHA_256)


def server(find: Callable[[str], Credential] = lambda name: PENCIL) -> ScramServer:
    return ScramServer(SHA_256, find, nonce=lambda: "theirs")


@for_each("name", RFC)
def test_the_example_of_the_standard_is_what_both_sides_say(name: str) -> None:
    mechanism, (ours, theirs, salt), messages = RFC[name]
    credential = stored(mechanism, salt=base64.b64decode(salt))
    client, answering = (
        Client(mechanism, "user", "pencil", nonce=ours),
        ScramServer(mechanism, lambda user: credential, nonce=lambda: theirs),
    )
    said = [client.first()]
    said.append(answering.respond(said[-1]))
    said.append(client.final(said[-1]))
    assert not answering.is_done
    said.append(answering.respond(said[-1]))
    client.verify(said[-1])
    assert said == messages
    assert (answering.user, answering.is_done) == ("user", True)


@given(user=st.text(min_size=1).filter(lambda name: "\0" not in name), password=st.text(min_size=1))
def test_every_name_and_password_comes_through(user: str, password: str) -> None:
    if not _is_text(user + password):
        return
    credential = Salted(SHA_512, 1, b"salt", SHA_512.salted(password, b"salt", 1)).credential()
    client, answering = Client(SHA_512, user, password, min_iterations=1), ScramServer(SHA_512, lambda name: credential)
    client.verify(answering.respond(client.final(answering.respond(client.first()))))
    assert answering.user == user


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


FIRST = {
    "nothing": b"",
    "no header": b"n=user,r=abc",
    "half a header": b"n,n=user,r=abc",
    "channel binding": b"p=tls-unique,,n=user,r=abc",
    "unknown binding": b"x,,n=user,r=abc",
    "as somebody else": b"n,a=root,n=user,r=abc",
    "mandatory extension": b"n,,m=x,n=user,r=abc",
    "no name": b"n,,n=,r=abc",
    "no nonce": b"n,,n=user,r=",
    "nonce with spaces": b"n,,n=user,r=a c",
    "wrong order": b"n,,r=abc,n=user",
    "wrong quoting": b"n,,n=us=2cer,r=abc",
    "bare equals": b"n,,n=us=er,r=abc",
    "not text": b"n,,n=\xff\xfe,r=abc",
    "a token instead of a password": b"n,,n=user,r=abc,tokenauth=true",
    "long": b"n,,n=user,r=" + b"a" * 5000,
    "a line": b"n,,n=user,r=abc\n",
}


@for_each("name", FIRST)
def test_a_first_message_that_is_wrong_ends_the_exchange(name: str) -> None:
    answering = server()
    with pytest.raises(AuthenticationFailed):
        answering.respond(FIRST[name])
    with pytest.raises(AuthenticationFailed, match="ended"):
        answering.respond(b"n,,n=user,r=abc")
    assert not answering.is_done


@for_each("first", [b"y,,n=user,r=abc", b"n,a=user,n=user,r=abc", b"n,,n=user,r=abc,x=ignored"])
def test_every_first_message_of_the_standard_is_accepted(first: bytes) -> None:
    assert server().respond(first) == b"r=abctheirs,s=" + base64.b64encode(b"s" * 16) + b",i=4096"


def proof() -> tuple[ScramServer, bytes]:
    """A server that waits for the last message, and the right one."""
    answering, client = server(), Client(SHA_256, "user", "pencil", nonce="abc")
    return answering, client.final(answering.respond(client.first()))


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "another nonce": lambda said: said.replace(b"abctheirs", b"abcothers"),
    "the client's nonce alone": lambda said: said.replace(b"abctheirs", b"abc"),
    "a longer nonce": lambda said: said.replace(b"abctheirs", b"abctheirs2"),
    "no proof": lambda said: said.partition(b",p=")[0],
    "an empty proof": lambda said: said.partition(b",p=")[0] + b",p=",
    "a short proof": lambda said: said.partition(b",p=")[0] + b",p=AAAA",
    "a proof of zeros": lambda said: said.partition(b",p=")[0] + b",p=" + base64.b64encode(bytes(32)),
    "a proof that is not base64": lambda said: said.partition(b",p=")[0] + b",p=!!!!",
    "another binding": lambda said: said.replace(b"c=biws", b"c=eSws"),
    "no binding": lambda said: said.replace(b"c=biws", b"c="),
    "something after the proof": lambda said: said + b",x=y",
    "an extension that was not proved": lambda said: said.replace(b",p=", b",x=y,p="),
    "not text": lambda said: b"\xff" + said,
    "the first message again": lambda said: b"n,,n=user,r=abc",
    "nothing": lambda said: b"",
}


def test_the_right_proof_is_accepted_once() -> None:
    answering, right = proof()
    assert answering.respond(right).startswith(b"v=")
    assert answering.is_done
    with pytest.raises(AuthenticationFailed, match="ended"):
        answering.respond(right)


@for_each("name", CHANGES)
def test_a_last_message_that_is_wrong_ends_the_exchange(name: str) -> None:
    answering, right = proof()
    with pytest.raises(AuthenticationFailed):
        answering.respond(CHANGES[name](right))
    with pytest.raises(AuthenticationFailed, match="ended"):
        answering.respond(right)
    assert not answering.is_done


@for_each("binding", [b"n,,", b"y,,", b"n,a=root,", b"p=tls-unique,,", b""])
def test_a_proof_that_is_right_for_another_binding_is_refused(binding: bytes) -> None:
    """Somebody in between has changed the first message."""
    answering, credential = server(), Salted(SHA_256, 4096, b"s" * 16, SHA_256.salted("pencil", b"s" * 16, 4096))
    first = answering.respond(b"n,,n=user,r=abc")
    unproved = b"c=" + base64.b64encode(binding) + b",r=abctheirs"
    said = b",".join((b"n=user,r=abc", first, unproved))
    key, signature = SHA_256.sign(credential.password, b"Client Key"), SHA_256.sign(PENCIL.stored_key, said)
    made = unproved + b",p=" + base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
    if binding == b"n,,":
        assert answering.respond(made).startswith(b"v=")
        return
    with pytest.raises(AuthenticationFailed, match="binding"):
        answering.respond(made)


def test_a_recorded_exchange_cannot_be_replayed() -> None:
    recorded = Client(SHA_256, "user", "pencil", nonce="abc")
    first = ScramServer(SHA_256, lambda name: PENCIL)
    last = recorded.final(first.respond(recorded.first()))
    first.respond(last)
    again = ScramServer(SHA_256, lambda name: PENCIL)  # with a nonce of its own
    again.respond(recorded.first())
    with pytest.raises(AuthenticationFailed, match="nonce"):
        again.respond(last)


def test_a_wrong_password_is_refused() -> None:
    answering, client = server(), Client(SHA_256, "user", "pencil ")
    with pytest.raises(AuthenticationFailed, match="wrong"):
        answering.respond(client.final(answering.respond(client.first())))


def test_a_user_that_is_deleted_during_the_exchange_is_refused() -> None:
    users = {"user": PENCIL}
    answering = server(lambda name: users.get(name, stored(SHA_256, "nobody's")))
    client = Client(SHA_256, "user", "pencil")
    last = client.final(answering.respond(client.first()))
    del users["user"]
    with pytest.raises(AuthenticationFailed, match="wrong"):
        answering.respond(last)
    assert not answering.is_done


SERVER_FIRST = {
    "nothing": b"",
    "another nonce": b"r=xyztheirs,s=c2FsdA==,i=4096",
    "no nonce of its own": b"r=abc,s=c2FsdA==,i=4096",
    "few iterations": b"r=abctheirs,s=c2FsdA==,i=4095",
    "many iterations": b"r=abctheirs,s=c2FsdA==,i=999999999",
    "no salt": b"r=abctheirs,s=,i=4096",
    "a salt that is not base64": b"r=abctheirs,s=x,i=4096",
    "an error": b"e=unknown-user",
}


@for_each("name", SERVER_FIRST)
def test_a_client_does_not_answer_a_broker_that_cheats(name: str) -> None:
    with pytest.raises(AuthenticationFailed):
        Client(SHA_256, "user", "pencil", nonce="abc").final(SERVER_FIRST[name])


@for_each("last", [b"", b"v=", b"v=AAAA", b"e=other-error", b"v=" + base64.b64encode(bytes(32))])
def test_a_client_notices_a_broker_that_does_not_know_the_user(last: bytes) -> None:
    client = Client(SHA_256, "user", "pencil")
    client.final(server().respond(client.first()))
    with pytest.raises(AuthenticationFailed, match=r"prove|base64"):
        client.verify(last)


def test_no_repr_shows_a_secret() -> None:
    salted = Salted.new(SHA_256, "pencil", 4096)
    for each in (salted, salted.credential()):
        for secret in (salted.salt, salted.password, salted.credential().stored_key, salted.credential().server_key):
            assert repr(secret)[2:-1] not in repr(each)
    assert "pencil" not in repr(Client(SHA_256, "user", "pencil"))
