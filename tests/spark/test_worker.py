"""Settings of a session and its workers. Each has a measured reason."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from sawlog import Store
from sawlog.spark import reading
from sawlog.spark.session import _defaults
from sawlog.spark.writing import stage

from .test_writing import batch, options


def test_what_stays_is_taken_from_the_garbage_collector_once(
    data: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_topic("orders")
    frozen: list[int] = []
    monkeypatch.setattr(reading, "_settled", False)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    for _ in range(2):
        stage(iter([batch(1)]), options(data), "job", None)
    assert frozen == [1]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("spark.sql.streaming.checkpointFileManagerClass", "FileSystemBasedCheckpointFileManager"),
        ("spark.python.unix.domain.socket.enabled", "true"),
        ("spark.sql.session.timeZone", "UTC"),
        ("spark.sql.shuffle.partitions", "3"),
    ],
)
def test_a_session_is_set_up_for_small_micro_batches(name: str, part: str) -> None:
    assert part in _defaults(3, None)[name]
