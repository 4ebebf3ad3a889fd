"""Fields out of JSON texts: compiled and interpreted agree, and no text makes either leave its buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from .twins import BOTH, interpreted, packaged

#: a: long, b: double, c: boolean, d: string, e: struct of f: long.
NODES = np.array(
    [
        [0, 0, 1, 5, 0, 0],
        [1, 0, 0, 0, 0, 1],
        [2, 0, 0, 0, 1, 1],
        [3, 1, 0, 0, 2, 1],
        [4, 2, 0, 0, 3, 1],
        [0, 0, 6, 1, 4, 1],
        [1, 4, 0, 0, 5, 1],
    ],
    np.int32,
)
NAMES = b"abcdef"
#: The number of each cell of that table.
CELLS = np.arange(NODES.size).reshape(NODES.shape)


def fields(kernel: Any, texts: list[bytes], **changed: Any) -> Any:
    """Return the fields that a kernel reads from some texts."""
    count = len(texts)
    data = b"".join(texts)
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    state = np.zeros((7, count), np.uint8)
    longs, doubles, odd = np.zeros((5, count), np.int64), np.zeros((1, count)), np.zeros(count, np.uint8)
    given_ = {"data": data, "offsets": offsets, "nodes": NODES, "names": NAMES, "first": 0, "count": count, **changed}
    strange = kernel.json_fields(
        memoryview(given_["data"]),
        memoryview(given_["offsets"]),
        memoryview(b""),
        given_["first"],
        given_["count"],
        memoryview(given_["nodes"]),
        memoryview(given_["names"]),
        memoryview(state),
        memoryview(longs),
        memoryview(doubles),
        memoryview(odd),
    )
    usual = odd == 0
    return strange, odd.tolist(), state[:, usual].tolist(), longs[:, usual].tolist(), doubles[:, usual].tolist()


BRACKETS = [b"{", b"}", b"[", b"]", b":", b",", b'"', b" ", b"\\", b"\n", b"\x00"]
FIELDS = [b"a", b"b", b"d", b'"a"', b'"b":', b'"d":"x"', b'"e":{"f":1}', b"\xc3\xa4", b"\xff", b"\xe2\x82"]
WORDS = [b"1", b"-", b"0", b".", b"2.5", b"e", b"true", b"false", b"null"]
pieces = st.sampled_from([*BRACKETS, *FIELDS, *WORDS])
texts = st.lists(st.lists(pieces, max_size=12).map(b"".join) | st.binary(max_size=12), max_size=4)


@given(texts=texts)
def test_both_kernels_read_the_same_fields(texts: list[bytes]) -> None:
    assert fields(packaged, texts) == fields(interpreted, texts)


@pytest.mark.parametrize("kernel", BOTH)
def test_usual_texts_are_read(kernel: Any) -> None:
    strange, odd, state, longs, doubles = fields(
        kernel, [b'{"a": -7, "b": 2.5, "c": true, "d": "xy", "e": {"f": 9}, "z": [1, {"a": 2}]}', b'{"d": null}', b"{}"]
    )
    assert (strange, odd) == (0, [0, 0, 0])
    assert state == [[1, 1, 1], [1, 0, 0], [1, 0, 0], [1, 0, 0], [1, 2, 0], [1, 0, 0], [1, 0, 0]]
    assert [row[0] for row in longs] == [-7, 1, 37, 2, 9]
    assert doubles[0][0] == 2.5


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize(
    "changed",
    [
        {"count": 3},
        {"first": 1},
        {"first": -1},
        {"names": b"abc"},
        {"offsets": np.array([0, 9_999, 2], np.int32)},
        {"offsets": np.array([2, 0, 2], np.int32)},
        *(
            {"nodes": np.where(np.arange(42).reshape(7, 6) == at, 99, NODES).astype(np.int32)}
            for at in (0, 2, 3, 7, 28, 32, 33)
        ),
        {"nodes": np.array([[0, 0, 0, 1, 0, 0]], np.int32)},
        {"nodes": np.array([[0, 0, 1, 1, 0, 0]], np.int32)},
    ],
)
def test_tables_that_lead_outside_of_buffers_are_refused(kernel: Any, changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="outside"):
        fields(kernel, [b"{}", b"{}"], **changed)


@pytest.mark.parametrize("kernel", BOTH)
def test_pieces_outside_of_their_buffer_are_refused(kernel: Any) -> None:
    def gather(start: int, size: int, room: int) -> int:
        return int(
            kernel.gather_slices(
                memoryview(b"abcdef"),
                memoryview(np.array([start], np.int64)),
                memoryview(np.array([size], np.int64)),
                memoryview(b"\x01"),
                1,
                memoryview(np.zeros(2, np.int32)),
                memoryview(bytearray(room)),
            )
        )

    assert gather(2, 3, 3) == 3
    for bad in ((-1, 1, 9), (0, 7, 9), (6, 1, 9), (0, -1, 9), (0, 3, 2), (2**62, 2**62, 9)):
        with pytest.raises(ValueError, match="outside"):
            gather(*bad)
