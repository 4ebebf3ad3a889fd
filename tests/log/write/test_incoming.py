"""One encoded batch has a way of its own into the log. It ends like the ordinary one: the same bytes, or the error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sawlog import Log, LogConfig
from sawlog.batch import kernel
from sawlog.batch.build import Producer, encode
from sawlog.batch.checksum import crc32c
from sawlog.batch.read import malformed
from sawlog.errors import SawlogError
from sawlog.log import appender, ingest
from sawlog.storage import MemoryDirectory

from ...batch.twins import BOTH

T = 1_700_000_000_000
RECORDS = [(b"value", b"key", {"a": b"1", "b": None}, T), (b"", None, (), T + 1), (None, b"", {"": b""}, T + 2)]


def batch(*, producer: Producer | None = None, compression: str = "none", count: int = 3, **changes: Any) -> bytes:
    given = {} if producer is None else {"producer": producer}
    made = bytearray(encode(RECORDS[:count], compression=compression, **given))
    for at, some in changes.pop("at", {}).items():
        made[at : at + len(some)] = some
    if changes.pop("resealed", True):
        kernel.patch_crc(memoryview(made), 0, crc32c(memoryview(made)[21:]))
    return bytes(made)


def first(sequence: int = 0, epoch: int = 0) -> Producer:
    return Producer(7, epoch, sequence)


#: Incoming batches, in order.
ARRIVALS: dict[str, list[bytes]] = {
    "plain": [batch(), batch(count=1)],
    "compressed": [batch(compression=each) for each in ("gzip", "snappy", "lz4", "zstd")],
    "of a producer": [batch(producer=first()), batch(producer=first(3)), batch(producer=first(6))],
    "sent twice": [
        batch(producer=first()),
        batch(producer=first(3)),
        batch(producer=first()),
        batch(producer=first(3)),
    ],
    "a gap": [batch(producer=first()), batch(producer=first(5))],
    "a new epoch": [batch(producer=first()), batch(producer=first(0, 1)), batch(producer=first(3, 0))],
    "a new epoch that begins late": [batch(producer=first()), batch(producer=first(3, 1))],
    "a producer without a sequence": [batch(producer=first(), at={53: b"\xff" * 4})],
    "a producer without an epoch": [batch(producer=first(), at={51: b"\xff" * 2}), batch(producer=first())],
    "a wrong checksum": [batch(at={70: b"\x00"}, resealed=False)],
    "records that do not parse": [batch(at={61: b"\x7f"})],
    "headers that do not parse": [batch(at={77: b"\x7f"})],
    "too many records": [batch(at={57: b"\x00\x00\x00\x04", 23: b"\x00\x00\x00\x03"})],
    "offsets that are missing": [batch(at={23: b"\x00\x00\x00\x09"}), batch()],
    "compressed rubbish": [batch(compression="gzip", at={65: b"rubbish"})],
    "another offset": [batch(at={0: (99).to_bytes(8, "big")}), batch()],
    "a transaction": [batch(producer=first(), at={21: b"\x00\x10"}), batch(), batch(producer=first(3))],
    "a control batch": [batch(producer=first(), at={21: b"\x00\x30"})],
    "an unknown format": [batch(at={16: b"\x01"})],
    "half of a batch": [batch()[:-1]],
    "two batches": [batch() + batch(), batch()],
    "nothing": [b""],
    "too large for a segment": [bytes(encode([bytes(3000)])), batch()],
    "several segments": [bytes(encode([bytes(900)])) for _ in range(5)],
}


def outcome(arrivals: list[bytes], config: LogConfig, *, trusted: bool) -> tuple[list[object], dict[str, bytes]]:
    directory, said = MemoryDirectory(), []
    with Log.open(directory, config) as log:
        for each in arrivals:
            try:
                said.append(log._place_batches(bytearray(each), trusted=trusted))
            except SawlogError as error:
                said.append((type(error), str(error)))
        said.append(log.next_offset)
    return said, {name: directory.read(name) for name in directory.names() if name.endswith((".log", "index"))}


@pytest.mark.alternating
@pytest.mark.parametrize("trusted", [False, True], ids=["checked", "trusted"])
@pytest.mark.parametrize("times", ["create", "append"])
@pytest.mark.parametrize("name", ARRIVALS)
def test_one_batch_is_stored_or_refused_like_several(
    name: str, times: str, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (ingest, appender):
        monkeypatch.setattr(module, "now_ms", lambda: T)
    config = LogConfig(segment_bytes=2000, timestamp_type=times, checkpoint_interval_ms=3_600_000)
    quick = outcome(ARRIVALS[name], config, trusted=trusted)
    monkeypatch.setattr(ingest, "_place_sole", lambda *given: None)
    assert quick == outcome(ARRIVALS[name], config, trusted=trusted)


def test_one_batch_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "rows_of", lambda data: pytest.fail("the long way"))
    for name in ("plain", "compressed", "of a producer", "sent twice"):
        assert all(isinstance(each, range) for each in outcome(ARRIVALS[name], LogConfig(), trusted=False)[0][:-1])


@pytest.mark.parametrize("unit", BOTH)
def test_a_byte_that_is_wrong_is_noticed_as_by_those_who_read(unit: Any) -> None:
    """Every byte of the header and the records, changed in a few ways: the records parse if they can be decoded."""
    good = batch()
    found = set()
    for place in range(len(good)):
        for mask in (0x01, 0x02, 0x80, 0xFF):
            data = memoryview(good[:place] + bytes([good[place] ^ mask]) + good[place + 1 :])
            header = unit.sole_batch(data)
            rows = _or_none(lambda data=data: ingest.rows_of(data))
            if rows is None or len(rows) != 1:
                assert header is None
            elif header is not None and not header[0] & (0x27):
                parses = unit.records_parse(data[61:], 0, header[1], header[2])
                assert parses is not any(malformed(data, rows, 1 << 20)), (place, mask)
                found.add(parses)
    assert found == {True, False}


def _or_none(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except SawlogError:
        return None


@pytest.mark.parametrize("unit", BOTH)
def test_a_range_outside_the_buffer_is_refused(unit: Any) -> None:
    for start, count in ((-1, 1), (5, 1), (0, -1)):
        with pytest.raises(ValueError, match="outside"):
            unit.records_parse(memoryview(b"1234"), start, count, 0)
    assert unit.records_parse(memoryview(b""), 0, 0, 0)
    assert not unit.records_parse(memoryview(b""), 0, 1, 0)
    assert unit.sole_batch(memoryview(b"")) is None
