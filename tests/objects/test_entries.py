"""The digest of a state depends only on its entries, not on the order of changes or on the form of a checkpoint."""

from __future__ import annotations

import hashlib
import json
import random
import zlib
from typing import Any

import pytest

from sawlog.errors import CorruptData, InvalidConfig
from sawlog.store.objects import checkpoints
from sawlog.store.objects.bucket import Bucket
from sawlog.store.objects.checkpoints import Checkpoint
from sawlog.store.objects.session import results
from sawlog.store.objects.state import State
from sawlog.store.objects.state.commit import Commit, Extent, Nonce, UpgradeRequired, canonical
from sawlog.store.objects.state.entries import Entries, entry_text

from ..looping import for_each

NAMES = ["floor", "topic/a", 'topic/"', "topic/\\", "document/é\n", "document/a,\n", 'extent/",/0/1', "nonce/ ]"]
VALUES: list[Any] = [0, 1.5, None, "", 'a"],\n["b', [], [1, ["é"]], {"b": 1, "a": [None]}]


def digest(content: dict[str, Any]) -> str:
    """Compute the digest by its definition."""
    hashes = (hashlib.sha256(canonical([name, value])).digest() for name, value in content.items())
    return f"{sum(int.from_bytes(each, 'big') for each in hashes) % (1 << 256):064x}"


@for_each("seed", range(20))
def test_the_digest_follows_every_change(seed: int) -> None:
    chance = random.Random(seed)
    entries, wanted = Entries(), dict[str, Any]()
    for _ in range(300):
        name, value = chance.choice(NAMES), chance.choice(VALUES)
        if chance.random() < 0.3:
            entries.drop(name)
            wanted.pop(name, None)
        else:
            entries.put(name, canonical(value) if chance.random() < 0.3 else value)
            wanted[name] = value
        if chance.random() < 0.2:
            assert entries.digest == digest(wanted)
        if chance.random() < 0.05:
            entries = Entries.of_lines(list(entries.lines()))
        if chance.random() < 0.1:
            assert entries.get(name) == wanted.get(name)
    assert entries.digest == digest(wanted)
    assert dict(entries) == wanted
    assert [json.loads(line) for line in entries.lines()] == sorted([name, value] for name, value in wanted.items())
    assert entries.kinds == {name.partition("/")[0] for name in wanted}
    assert len(entries) == len(wanted)


def test_a_value_that_json_cannot_express_is_refused_at_once() -> None:
    """Later every process would raise the exception when it computes the digest."""
    entries = Entries([("floor", 1)])
    for wrong in (float("nan"), object()):
        with pytest.raises((ValueError, TypeError)):
            entries.put("floor", wrong)
    assert entries.digest == digest({"floor": 1})


def test_a_request_with_a_value_that_cannot_be_stored_is_rejected() -> None:
    state = State()
    fields = {"do": "change document", "name": "a", "version": 0, "fields": {"b": float("nan")}}
    before = state.digest
    [outcome] = state.apply(Commit(Nonce("w", 1), 0, before, ((fields,),)), "commits/0", 0)
    with pytest.raises(InvalidConfig):
        results(outcome)
    assert state.document("a") == (0, {})
    assert state.digest == digest(dict(state.entries))


def test_the_text_of_an_extent_is_canonical() -> None:
    for key in ("staged/1-é", 'a"\\\n', "commits/0"):
        assert entry_text(Extent(1, 2, key, 3, 4, -1, "5a")) == canonical([key, 3, 4, 2, -1, "5a"])


# --- checkpoints


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Bucket:
    return Bucket(f"memory://{request.node.name}")


#: Kinds of entries that a checkpoint may have; a state may have any.
CONTENT = {name: value for name, value in zip(NAMES, VALUES, strict=True) if not name.startswith("extent/")}
CONTENT["extent/a/0/00000000000000000005"] = ["commits/0", 1, 2, 7, -1, "5a"]


def test_a_loaded_checkpoint_equals_the_stored_state(bucket: Bucket) -> None:
    for content in ({}, CONTENT):
        state = State(Entries(content.items()), 7)
        assert checkpoints.stored(bucket, state)
        [found] = checkpoints.listed(bucket)
        loaded = checkpoints.loaded(bucket, found)
        assert (dict(loaded.entries), loaded.number, loaded.digest) == (content, 7, digest(content))
        bucket.delete(found.key)
    assert [each.base_offset for each in loaded.extents("a", 0, 0)] == [5]


def test_checkpoints_are_plain_json_with_or_without_lines(bucket: Bucket) -> None:
    checkpoints.stored(bucket, State(Entries(CONTENT.items()), 7))
    [found] = checkpoints.listed(bucket)
    data = bucket.get(found.key)
    assert data is not None
    entries = [[name, value] for name, value in sorted(CONTENT.items())]
    text = {"version": 2, "number": 7, "entries": entries}
    assert json.loads(zlib.decompress(data)) == text
    bucket.put(found.key, zlib.compress(canonical(text)))
    loaded = checkpoints.loaded(bucket, found)
    assert (dict(loaded.entries), loaded.digest) == (CONTENT, digest(CONTENT))


@pytest.mark.parametrize("old", [False, True])
def test_a_checkpoint_that_contradicts_its_name_is_not_used(bucket: Bucket, old: bool) -> None:
    checkpoints.stored(bucket, State(Entries(CONTENT.items()), 7))
    [found] = checkpoints.listed(bucket)
    data = bucket.get(found.key)
    assert data is not None
    text = zlib.decompress(data)
    text = text.replace(b",\n", b",").replace(b"[\n", b"[").replace(b"\n]", b"]") if old else text

    def load(wrong: bytes, checkpoint: Checkpoint = found) -> State:
        bucket.put(found.key, zlib.compress(wrong))
        return checkpoints.loaded(bucket, checkpoint)

    assert load(text).digest == digest(CONTENT)
    with pytest.raises(CorruptData, match="another digest"):
        load(text.replace(b"commits/0", b"commits/1"))
    with pytest.raises(CorruptData, match="another digest"):
        load(text.replace(b'["floor",0]', b'["floor",0],["floor",0],["floor",1]'))
    with pytest.raises(CorruptData, match="it is of commit 8"):
        load(text.replace(b'"number":7', b'"number":8'))
    with pytest.raises(UpgradeRequired, match="version 3"):
        load(text.replace(b'"version":2', b'"version":3'))
    with pytest.raises(UpgradeRequired, match="colour"):
        load(text.replace(b'["floor",0]', b'["colour/red",0]'))
    with pytest.raises(CorruptData, match="cannot be read"):
        load(text[:-5])
