"""Opening a store removes the files of dead processes only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sawlog
from sawlog import Store
from sawlog.batch.build import encode

from .. import warm


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with sawlog.open(tmp_path / "data", maintenance_interval_s=None) as made:
        made.create_topic("t", 2)
        yield made


def opened_in_another_process(path: str) -> None:
    script = "import sawlog, sys; sawlog.open(sys.argv[1], maintenance_interval_s=None).close()"
    assert warm.run(["-c", script, path], timeout=60).returncode == 0


def before_renaming(monkeypatch: pytest.MonkeyPatch, suffix: str, path: str) -> list[str]:
    """Another process opens the store in the moment before such a file gets its name."""
    real, seen = os.rename, []

    def rename(old: str, new: str, **more: Any) -> None:
        if old.endswith(suffix):
            seen.append(old)
            opened_in_another_process(path)
        real(old, new, **more)

    monkeypatch.setattr(os, "rename", rename)
    return seen


@pytest.mark.alternating
@pytest.mark.parametrize("size", [10, 200_000, 2_000_000], ids=["inline", "staged", "spilled"])
def test_a_transaction_that_is_being_committed_is_not_swept(
    store: Store, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    seen = before_renaming(monkeypatch, ".intent.tmp", store.path)
    with store.transaction() as tx:
        tx.append("t", b"a" * size, partition=0)
        tx.append("t", b"b", partition=1)
    assert seen
    assert [len(record.value or b"") for record in store["t"].scan()] == [size, 1]
    assert os.listdir(f"{store.path}/staging") == []


@pytest.mark.alternating
def test_a_lease_that_is_being_written_is_not_swept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = before_renaming(monkeypatch, ".lease.tmp", store.path)
    batch = encode([b"x"])
    name = store._staging.put("job1", batch)
    assert seen
    assert (Path(store.path) / "staging" / name).read_bytes() == batch
    assert any(each.endswith(".lease") for each in os.listdir(f"{store.path}/staging"))
