"""Small files with a checksum: a damaged one is never believed, and the bytes are those of earlier versions."""

from __future__ import annotations

import pytest

from sawlog.errors import CorruptFile
from sawlog.log.checkpoint import Checkpoint
from sawlog.log.maintenance_state import MaintenanceState
from sawlog.storage import MemoryDirectory, checksummed
from sawlog.storage.checksummed import FIELD, LINE, ChecksumTrailer, TitledFile

FILE = TitledFile("the file", "a title 1")


@pytest.mark.parametrize("trailer", [LINE, FIELD])
@pytest.mark.parametrize("body", [b"", b"text", b"crc32c 00000001\n", b'  "crc32c": "', b"\0\xff" * 50])
def test_a_body_comes_back_unless_a_bit_has_changed(trailer: ChecksumTrailer, body: bytes) -> None:
    good = trailer.append_to(body)
    assert trailer.strip_from(good) == body
    for position in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[position] ^= 1 << bit
            assert trailer.strip_from(bytes(bad)) is None
    for size in range(len(good)):
        assert trailer.strip_from(good[:size]) is None
    assert trailer.strip_from(good + b"\n") is None


def test_a_file_with_another_title_is_refused() -> None:
    other = TitledFile("the file", "another title 1")
    assert FILE.decode(FILE.encode(" text\n")) == b" text\n"
    with pytest.raises(CorruptFile, match="checksum of the file"):
        FILE.decode(other.encode(" text\n"))


def test_a_text_that_is_no_json_is_refused() -> None:
    assert FILE.decode_fields(FILE.encode_fields({"number": 1})) == {"number": 1}
    with pytest.raises(CorruptFile, match="the file does not parse"):
        FILE.decode_fields(FILE.encode("\n{\n"))


def test_a_file_that_is_missing_is_none() -> None:
    directory = MemoryDirectory()
    assert FILE.find(directory, "name") is None
    directory.replace("name", FILE.encode(" text\n"))
    assert FILE.find(directory, "name") == FILE.encode(" text\n")


def test_the_bytes_on_disk_are_those_of_earlier_versions() -> None:
    assert Checkpoint(True, 7, 0, 90, 3, 1, 5).encode() == (
        b"sawlog checkpoint 1\n"
        b'{"clean": true, "durable_offset": 7, "segment": 0, "position": 90, "log_start": 3, "leader_epoch": 1, '
        b'"epochs_crc": 5}\n'
        b"crc32c 393bd37d\n"
    )
    assert MaintenanceState([(5, 6)], False, 2, 3, {0: 9}).encode() == (
        b"sawlog maintenance 1\n"
        b'{"cleaned": [[5, 6]], "damaged": false, "tombstones": 2, "recompressed_offset": 3, "scrubbed": {"0": 9}}\n'
        b"crc32c 7b1e610b\n"
    )
    assert checksummed.encode({"format": 2}) == b'{\n  "format": 2,\n  "crc32c": "59fd5684"\n}\n'
