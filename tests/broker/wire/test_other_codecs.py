"""kafka-python and kio decode our messages, and we decode theirs: every message and version.

Bytes are compared as well: both write a message in the one way that Kafka does.
"""

from __future__ import annotations

from random import Random

import pytest

from sawlog.broker import wire
from sawlog.broker.wire import Api
from sawlog.broker.wire.codec import Sink, decoder, encoder
from sawlog.broker.wire.schema import Fields

from ...looping import for_each
from .bodies import Drawing, present
from .codecs import KafkaPython, Kio

APIS = list(wire.BY_KEY.values())

#: Versions that a codec does not know, as far as it knows the API: Kafka 4 has dropped them.
DROPPED = {
    wire.Key.PRODUCE: {0, 1, 2},
    wire.Key.LIST_OFFSETS: {0},
    wire.Key.OFFSET_COMMIT: {0, 1},
    wire.Key.OFFSET_FETCH: {0},
    wire.Key.DESCRIBE_LOG_DIRS: {0},
}
#: Not in kafka-python: the group protocol of KIP-848.
ONLY_KIO = {wire.Key.CONSUMER_GROUP_HEARTBEAT, wire.Key.CONSUMER_GROUP_DESCRIBE}


def encoded(api: Api, fields: Fields, version: int, body: dict[str, object]) -> bytes:
    sink = Sink()
    encoder(fields, version, flexible=api.flexible(version), what=api.name)(sink, body)
    return b"".join(sink.buffers())


def ends_of(api: Api) -> list[int]:
    """The first version of an API and the last: of most, one that is not flexible and one that is."""
    return sorted({api.versions[0], api.versions[-1]})


@pytest.fixture(scope="module", params=[KafkaPython, Kio], ids=["kafka-python", "kio"])
def codec(request: pytest.FixtureRequest) -> KafkaPython | Kio:
    made: KafkaPython | Kio = request.param()
    return made


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "every"])
@for_each("kind", ["request", "response"])
@for_each("api", APIS)
def test_other_codecs_read_and_write_the_same(codec: KafkaPython | Kio, api: Api, kind: str, every: bool) -> None:
    fields = api.request if kind == "request" else api.response
    # Both compile code for each version, which takes most of the time.
    for version in api.versions if every else ends_of(api):
        if not codec.knows(api.key, kind, version):
            continue
        drawing = Drawing(Random(f"{api.name} {kind} {version}"), version, modest=isinstance(codec, Kio))
        decode = decoder(fields, version, flexible=api.flexible(version))
        for _ in range(4 if every else 1):
            body = drawing.body(fields)
            data = encoded(api, fields, version, body)
            read, written = codec.again(api.key, kind, version, data)
            assert codec.plain(fields, version, read) == body
            assert written == data
            assert present(fields, version, decode(memoryview(written), 0)) == body


@pytest.mark.slow  # loads all of kio; says that the test above has left nothing out
def test_every_version_is_known_to_another_codec() -> None:
    kafka_python, kio = KafkaPython(), Kio()
    for api in APIS:
        for version in api.versions:
            for kind in ("request", "response"):
                assert kafka_python.knows(api.key, kind, version) == (api.key not in ONLY_KIO)
                assert kio.knows(api.key, kind, version) == (version not in DROPPED.get(api.key, ()))
