"""Clients that others wrote, against a broker that asks who is there: each with its own words for it."""

from __future__ import annotations

import asyncio
import gc
import logging
import ssl
import uuid
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sawlog.broker import connection
from sawlog.broker.security import authentication
from sawlog.testing import Broker

from .certificates import Authority, Files
from .talking import Talker

pytestmark = [
    pytest.mark.usefixtures("patient"),
    pytest.mark.group("security-clients"),
    pytest.mark.filterwarnings("ignore:(open|read)_text is deprecated"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PATIENCE_S = 60.0


class Login:
    """Credentials of a client: an authority, perhaps a certificate, perhaps a user."""

    def __init__(self, ca: str | None, files: Files | None = None, mechanism: str = "", password: str = "") -> None:
        self.ca, self.files, self.mechanism, self.password = ca, files, mechanism, password

    @property
    def protocol(self) -> str:
        return ("SASL_" if self.mechanism else "") + ("SSL" if self.ca else "PLAINTEXT")

    @property
    def context(self) -> ssl.SSLContext | None:
        if self.ca is None:
            return None
        made = ssl.create_default_context(cafile=self.ca)
        if self.files is not None:
            made.load_cert_chain(self.files.certificate, self.files.key)
        return made


# --- each client: send a record and read it again


def confluent(address: str, login: Login, topic: str) -> bytes:
    from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

    failed: list[KafkaError] = []
    logger = logging.getLogger("confluent")
    given: dict[str, Any] = {
        "bootstrap.servers": address,
        "security.protocol": login.protocol,
        "error_cb": failed.append,
        "log_level": 0,
    }
    if login.ca is not None:
        given["ssl.ca.location"] = login.ca
    if login.files is not None:
        given |= {"ssl.certificate.location": login.files.certificate, "ssl.key.location": login.files.key}
    if login.mechanism:
        given |= {"sasl.mechanism": login.mechanism, "sasl.username": "ann", "sasl.password": login.password}
    producer = Producer(given)
    producer.produce(topic, b"hello")
    while producer.flush(0.1):
        if any(each.code() == KafkaError._AUTHENTICATION for each in failed):
            producer.purge()
            logger.error("%s", failed[0].str())
            raise PermissionError(failed[0].str())
    consumer = Consumer({**given, "group.id": "g"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(PATIENCE_S)
    consumer.close()
    assert message is not None
    value = message.value()
    assert value is not None
    return bytes(value)


def kafka_python(address: str, login: Login, topic: str) -> bytes:
    from kafka import KafkaConsumer, KafkaProducer

    given: dict[str, Any] = {"bootstrap_servers": address, "security_protocol": login.protocol}
    if login.ca is not None:
        given["ssl_context"] = login.context
    if login.mechanism:
        given |= {
            "sasl_mechanism": login.mechanism,
            "sasl_plain_username": "ann",
            "sasl_plain_password": login.password,
        }
    producer = KafkaProducer(**given, bootstrap_timeout_ms=2000)
    producer.send(topic, b"hello").get(timeout=PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", **given)
    value = next(iter(consumer)).value
    consumer.close()
    return bytes(value)


def aiokafka(address: str, login: Login, topic: str) -> bytes:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def work() -> bytes:
        given: dict[str, Any] = {
            "bootstrap_servers": address,
            "security_protocol": login.protocol,
            "ssl_context": login.context,
        }
        if login.mechanism:
            given |= {
                "sasl_mechanism": login.mechanism,
                "sasl_plain_username": "ann",
                "sasl_plain_password": login.password,
            }
        producer = AIOKafkaProducer(**given)
        try:
            await producer.start()
            await producer.send_and_wait(topic, b"hello")
        finally:
            await producer.stop()
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **given) as consumer:
            return bytes((await consumer.getone()).value)

    return asyncio.run(work())


CLIENTS: dict[str, Callable[[str, Login, str], bytes]] = {
    "confluent": confluent,
    "kafka_python": kafka_python,
    "aiokafka": aiokafka,
}


@pytest.fixture
def patient(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the real delay: a client needs time to read the error."""
    monkeypatch.setattr(authentication, "_DELAY_S", 0.1)
    monkeypatch.setattr(connection, "LINGER_S", 0.1)


@pytest.fixture(autouse=True)
def leftovers() -> Iterator[None]:
    """Collect the sockets of refused clients here, not in a later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def certificate_broker(authority: Authority, server: Files) -> Iterator[Broker]:
    """Certificates instead of passwords."""
    given = {"tls_certificate": server.certificate, "tls_key": server.key, "tls_client_ca": authority.file}
    with Broker(**given) as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4()}"


#: Each client and each mechanism at least once in the quick form.
QUICK = {("confluent", "PLAIN"), ("kafka_python", "SCRAM-SHA-512"), ("aiokafka", "SCRAM-SHA-256")}
PAIRS = [
    pytest.param(client, mechanism, marks=() if (client, mechanism) in QUICK else pytest.mark.slow)
    for client in CLIENTS
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
]


@pytest.mark.parametrize(("client", "mechanism"), PAIRS)
def test_a_client_with_a_password_works_over_tls(
    tls_broker: Broker, authority: Authority, topic: str, client: str, mechanism: str
) -> None:
    login = Login(authority.file, mechanism=mechanism, password="secret of ann")
    assert CLIENTS[client](tls_broker.address, login, topic) == b"hello"


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_a_password_works_without_tls(scram_broker: Broker, topic: str, client: str) -> None:
    login = Login(None, mechanism="SCRAM-SHA-512", password="secret of ann")
    assert CLIENTS[client](scram_broker.address, login, topic) == b"hello"


@pytest.mark.parametrize(
    "client", ["confluent", *(pytest.param(each, marks=pytest.mark.slow) for each in ("kafka_python", "aiokafka"))]
)
def test_a_client_with_a_certificate_works(
    certificate_broker: Broker, authority: Authority, topic: str, client: str
) -> None:
    login = Login(authority.file, authority.client("ann"))
    assert CLIENTS[client](certificate_broker.address, login, topic) == b"hello"


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_a_wrong_password_learns_that_and_not_only_that_the_connection_ended(
    tls_broker: Broker,
    authority: Authority,
    topic: str,
    client: str,
    mechanism: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client logs the response of the broker before it gives up."""
    login = Login(authority.file, mechanism=mechanism, password="wrong")
    with pytest.raises(Exception, match=r"authentication failed with|Unable to bootstrap"):
        CLIENTS[client](tls_broker.address, login, topic)
    said = [record.getMessage() for record in caplog.records if not record.name.startswith("sawlog")]
    assert any(f"authentication failed with {mechanism}" in each for each in said), said


@pytest.mark.slow
def test_an_administrator_of_confluent_manages_users(tls_broker: Broker, authority: Authority, topic: str) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialDeletion,
        UserScramCredentialUpsertion,
    )

    admin = AdminClient(
        {
            "bootstrap.servers": tls_broker.address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": authority.file,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "ann",
            "sasl.password": "secret of ann",
        }
    )
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
    for future in admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion("dave", info, b"secret of dave")]
    ).values():
        future.result(PATIENCE_S)
    [found] = admin.describe_user_scram_credentials(["dave"]).values()
    [credential] = found.result(PATIENCE_S).scram_credential_infos
    assert (credential.mechanism, credential.iterations) == (ScramMechanism.SCRAM_SHA_256, 8192)
    with Talker(tls_broker.address, authority.trusting()) as talker:
        assert talker.log_in("dave", "secret of dave")["error_code"] == 0
    [gone] = admin.alter_user_scram_credentials(
        [UserScramCredentialDeletion("dave", ScramMechanism.SCRAM_SHA_256)]
    ).values()
    gone.result(PATIENCE_S)
    with pytest.raises(Exception, match="no user"):
        admin.describe_user_scram_credentials(["dave"])["dave"].result(PATIENCE_S)
