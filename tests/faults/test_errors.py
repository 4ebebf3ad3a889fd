"""Whatever call fails, however: success or a typed error, nothing acknowledged is lost, nothing stays open.

Of all troubles some are tried here: of every operation one, then as many as the time box allows, chosen by the seed of
the run (see seeds.py). The slow form and `python -m tests.faults errors` try all of them.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

import pytest

from sawlog.testing import Call

from .errors import (
    ERRNOS,
    TARGETS,
    Trouble,
    _check_not_synced_again,
    calls_of,
    disturb,
    failures,
    in_files,
    troubles,
)
from .seeds import Box, in_turn, repeat, shuffled

#: Operations that make no call to the disk where everything is durable and saved already.
IDLE = {"sync", "tick"}
NAMES = [name for name in TARGETS if name not in IDLE]
#: The operations share these time boxes.
PARTS = 3


def chosen(name: str, count: int, what: str) -> list[Trouble]:
    """Return `count` of the faults for one operation."""
    return shuffled(troubles(name, calls_of(TARGETS[name])), f"{what} of {name}")[:count]


def check_some(names: list[str], what: str, run: Callable[[Trouble], None], cpu_s: float) -> None:
    """One trouble of each operation, and more of them while there is room in the time box."""
    box = Box(cpu_s, len(names))
    rows = [chosen(name, 20, what) for name in shuffled(names, what)]
    assert all(rows)
    count, found = failures(box.fill(in_turn(rows)), run)
    assert not found, f"{len(found)} of {count} troubles; {repeat()}:\n" + "\n".join(found)
    box.check()


@pytest.mark.costly  # a time box
@pytest.mark.parametrize("part", range(PARTS))
def test_any_call_may_fail_in_any_way(part: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "sawlog")
    check_some(NAMES[part::PARTS], "errors", disturb, cpu_s=0.5)


@pytest.mark.costly  # a time box
@pytest.mark.parametrize("part", range(PARTS))
def test_no_descriptor_stays_open(part: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "sawlog")
    check_some(NAMES[part::PARTS], "files", in_files, cpu_s=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_descriptor_stays_open_whatever_was_done(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "sawlog")
    count, found = failures(chosen(name, 60, "files"), in_files)
    assert count
    assert not found, f"{len(found)} of {count} troubles:\n" + "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_call_may_fail_in_every_way(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "sawlog")
    count, found = failures(troubles(name, calls_of(TARGETS[name])), disturb)
    assert count >= len(ERRNOS)
    assert not found, f"{len(found)} of {count} troubles:\n" + "\n".join(found[:25])


# --- the sweep itself


def test_all_operations_but_the_idle_ones_make_calls() -> None:
    assert {name for name, target in TARGETS.items() if not calls_of(target)} == IDLE


def test_troubles_are_every_call_with_every_errno_once_and_for_ever() -> None:
    calls = [Call("append", "a"), Call("view", "a"), Call("sync", "a")]
    made = list(troubles("append", calls))
    for number in (1, 2, 3):
        for code in ERRNOS:
            times = {each.times for each in made if (each.number, each.errno) == (number, code)}
            assert {"once", "forever"} <= times
    assert {errno.errorcode[each.errno] for each in made} == {"EIO", "ENOSPC", "EDQUOT", "EMFILE", "EROFS", "EINTR"}
    assert {(each.effect, each.undo) for each in made if each.call.operation == "append" and each.times == "once"} == {
        ("part", True),
        ("part", False),
        ("all", True),
    }


def test_a_log_that_syncs_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """fsync that is retried until it succeeds: the disk says that all is well, and nothing is."""
    from sawlog.log.active_segment import ActiveSegment
    from sawlog.log.segment import Segment

    def stubborn(self: ActiveSegment, segment: Segment) -> None:
        try:
            segment.storage.sync()
        except OSError:
            segment.storage.sync()

    monkeypatch.setattr(ActiveSegment, "_sync", stubborn)
    syncs = [each for each in troubles("append", calls_of(TARGETS["append"])) if each.call.operation == "sync"]
    _, found = failures(syncs[:6], disturb)
    assert found


def test_a_file_that_is_synced_again_is_found_among_the_calls() -> None:
    from sawlog.storage import MemoryDirectory
    from sawlog.testing import Fault, FaultyDirectory

    place = FaultyDirectory(MemoryDirectory())
    file = place.create("0.log")
    place.arm(Fault(operations={"sync"}))
    with pytest.raises(OSError, match="injected"):
        file.sync()
    assert _check_not_synced_again(place)
    file.sync()
    with pytest.raises(AssertionError, match="tried again"):
        _check_not_synced_again(place)
