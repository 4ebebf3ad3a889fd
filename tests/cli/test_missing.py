"""A store that has lost files: `verify`, `doctor` and `repair` report it, before and after the repair."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sawlog.errors import CorruptBatch, SawlogError
from sawlog.store.directory.store import DirectoryStore

from .conftest import Cli
from .damage import flip_bit, segment_of


@pytest.fixture
def store(data: Path) -> Path:
    """Sixty records in seven segments, and a group that has committed."""
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        topic = store.create_topic("orders", 1, durability="os", segment_bytes=700)
        for number in range(60):
            topic.append(b"value %d" % number)
        store.groups.commit("billing", {("orders", 0): 5})
    assert len(segments(data)) == 7
    return data


def segments(data: Path) -> list[Path]:
    return sorted((data / "topics/orders/partition-0").glob("*.log"))


def _groups(data: Path) -> Path:
    return data / "groups/00000000000000000000.log"


#: Damage to the store, and the offsets that are lost with it.
LOSSES: dict[str, tuple[Callable[[Path], None], str]] = {
    "first segment": (lambda data: segments(data)[0].unlink(), "offsets 0 to 8 are missing"),
    "middle segment": (lambda data: segments(data)[3].unlink(), "offsets 27 to 35 are missing"),
    "last segment": (lambda data: segments(data)[-1].unlink(), "offsets 54 to 59 are missing"),
    "end of the last segment": (lambda data: os.truncate(segments(data)[-1], 100), "reading continues at offset 60"),
    "content of the last segment": (lambda data: os.truncate(segments(data)[-1], 0), "offsets 54 to 59 are missing"),
    "all segments": (lambda data: [each.unlink() for each in segments(data)] and None, "offsets 0 to 59 are missing"),
    "groups' log, all of it": (lambda data: _groups(data).unlink(), "offset 0 is missing"),
    "groups' log and what is published": (
        lambda data: _groups(data).unlink() or (data / "groups/visible").unlink(),
        "offset 0 is missing",
    ),
    "groups' log and its checkpoint": (
        lambda data: _groups(data).unlink() or (data / "groups/checkpoint").unlink(),
        "offset 0 is missing",
    ),
    "groups' log": (lambda data: os.truncate(_groups(data), 50), "reading continues at offset 1"),
}


@pytest.mark.alternating
@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_is_reported_by_every_command_before_and_after_the_repair(sawlog: Cli, store: Path, kind: str) -> None:
    damage, offsets = LOSSES[kind]
    damage(store)
    for _ in range(2):
        found = sawlog("verify")
        assert found.code == 4
        assert offsets in found.err
        assert "orders" in found.out
        found = sawlog("doctor")
        assert found.code == 1
        (line,) = [line for line in found.lines if line.startswith("bad") and "logs" in line]
        assert offsets in line or "reading continues" in offsets
        found = sawlog("repair", "--plan")
        assert found.code == 4
        assert offsets in found.out or "reading continues" in offsets
        assert sawlog("repair", "--apply").code == 4


@pytest.mark.alternating
@pytest.mark.parametrize("kind", [each for each in LOSSES if each.startswith("groups'")])
def test_lost_commits_are_reported_to_everyone_who_asks_for_the_group(sawlog: Cli, store: Path, kind: str) -> None:
    LOSSES[kind][0](store)
    for command in (["list"], ["describe", "billing"]):
        found = sawlog("groups", *command)
        assert found.code == 4, command
        assert "commits may be lost" in found.err
    with DirectoryStore.open(store, maintenance_interval_s=None) as opened:
        with pytest.raises(CorruptBatch, match="commits may be lost"):
            list(opened.consumer("billing", ["orders"], start="latest").drain())
        with opened.consumer("billing", ["orders"], start="earliest") as consumer:
            assert len(list(consumer.drain())) == 60
    sawlog("groups", "seek", "audit", "--topic", "orders", "--to", "50").ok()
    with (
        DirectoryStore.open(store, maintenance_interval_s=None) as opened,
        opened.consumer("audit", ["orders"], start="latest") as consumer,
    ):
        assert len(list(consumer.drain())) == 10


def test_a_reported_loss_is_reported_until_it_is_trimmed(sawlog: Cli, store: Path) -> None:
    segments(store)[0].unlink()
    assert sawlog("repair", "--apply").code == 4
    shutil.rmtree(store / "members", ignore_errors=True)
    with DirectoryStore.open(store, maintenance_interval_s=None) as opened:
        log = opened["orders"].partition(0)
        with pytest.raises(CorruptBatch):
            next(iter(log))
        log.trim(9)
    sawlog("verify").ok()
    assert "nothing to repair" in sawlog("repair").ok().err


def test_bit_rot_is_reported_by_verify_and_repair_alike(sawlog: Cli, store: Path) -> None:
    flip_bit(segments(store)[2], 100)
    for command in (["verify"], ["repair"], ["repair", "--apply"], ["verify"]):
        found = sawlog(*command)
        assert found.code == 4
        assert "the checksum of a batch does not match" in found.out + found.err


def test_a_consumer_reads_up_to_a_lost_tail_then_raises(store: Path) -> None:
    os.truncate(segments(store)[-1], 100)
    seen: list[int] = []
    with (
        DirectoryStore.open(store, maintenance_interval_s=None) as opened,
        opened.consumer("new", ["orders"]) as consumer,
    ):
        with pytest.raises(CorruptBatch) as lost:
            seen.extend(record.offset for record in consumer.drain())
        assert seen == list(range(55))
        assert lost.value.next_offset == 60
        consumer.seek("orders", 0, 60)
        assert opened["orders"].append(b"next").offset == 60
        assert [record.offset for record in consumer.drain()] == [60]


def test_verify_lists_a_missing_partition_and_checks_the_rest(sawlog: Cli, store: Path) -> None:
    with DirectoryStore.open(store, maintenance_interval_s=None) as opened:
        opened.create_topic("later", partitions=1).append(b"value")
    shutil.rmtree(store / "topics/orders/partition-0")
    flip_bit(segment_of(store, "later"), -1)
    result = sawlog("verify", "--output", "json")
    assert result.code == 4
    wrong = {(row["topic"], row["partition"]): len(row["problems"]) for row in result.json if row["problems"]}
    assert wrong == {("orders", 0): 1, ("later", 0): 1}


@pytest.mark.parametrize("gone", ["topics/orders/partition-0", "topics/orders/topic.json", "topics", "sawlog.json"])
def test_a_missing_part_of_the_catalogue_is_an_error_for_every_command(sawlog: Cli, store: Path, gone: str) -> None:
    path = store / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    for command in ("verify", "doctor", "repair"):
        assert sawlog(command).code != 0, command
    with pytest.raises(SawlogError), DirectoryStore.open(store, maintenance_interval_s=None) as opened:
        opened["orders"].append(b"more", partition=0)
    assert not (store / "topics/orders/partition-0/checkpoint").exists() or gone != "topics/orders/partition-0"
