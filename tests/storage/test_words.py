"""Words in a shared file: visibility in other processes, and wake-ups between processes."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sawlog.storage import words as words_module
from sawlog.storage.words import WaitPoint, Words, wait_any

from ..processes.launch import PATIENCE_S, finish, ready, start
from .worded import COUNT, KINDS, POSITION, opened


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "futex" and words_module._futex is None:
        pytest.skip("this system has no futex")
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "words"


@pytest.fixture
def words(kind: str, path: Path) -> Iterator[Words]:
    with opened(kind, path) as made:
        yield made


def test_a_word_is_stored_in_four_bytes_of_the_file(words: Words, path: Path) -> None:
    words[3] = 0x01020304
    words[COUNT - 1] = 2**32 - 1
    assert (words[3], words[4], words[COUNT - 1]) == (0x01020304, 0, 2**32 - 1)
    data = path.read_bytes()
    assert data[POSITION + 12 : POSITION + 16] == (0x01020304).to_bytes(4, sys.byteorder)
    assert data[: POSITION + 12].strip(b"\0") == b""


@pytest.mark.parametrize("number", [-1, 2**32])
def test_a_number_that_does_not_fit_is_refused(words: Words, number: int) -> None:
    words[1] = 5
    with pytest.raises((ValueError, OverflowError)):
        words[1] = number
    assert words[1] == 5


def test_every_kind_sees_the_stores_of_every_other(path: Path) -> None:
    with opened("futex", path) as one, opened("polled", path) as other:
        one[0], other[1] = 7, 8
        assert (other[0], one[1]) == (7, 8)


def test_a_wait_for_a_word_that_has_changed_returns_at_once(words: Words) -> None:
    words[0] = 1
    assert words.wait(0, 0, PATIENCE_S)


@pytest.mark.parametrize("seconds", [0.02, 0.0, -1.0])
def test_a_wait_ends_with_its_time(words: Words, seconds: float) -> None:
    began = time.monotonic()
    while not words.wait(0, 0, seconds) and time.monotonic() - began < seconds:
        pass  # it may return early
    assert words[0] == 0
    assert time.monotonic() - began >= seconds


def test_a_process_is_woken_by_another(words: Words, kind: str, path: Path) -> None:
    """The sleeper has a read-only mapping, as readers of a log have."""
    sleeper = ready(start("words", kind, path, "sleep", PATIENCE_S))
    words[0] = 9
    words.wake(0)
    assert finish(sleeper) == "changed 9\n"


def test_a_sleeping_process_ends_its_wait_by_itself(kind: str, path: Path, words: Words) -> None:
    assert finish(ready(start("words", kind, path, "sleep", 0.05))) == "unchanged\n"


def test_no_change_of_a_word_is_missed_by_a_process_that_sleeps_on_it(words: Words, kind: str, path: Path) -> None:
    """Each number is sent after the answer to the previous one, so a lost wake-up would stop the exchange."""
    rounds = 2000 if kind == "futex" else 100
    answering = ready(start("words", kind, path, "answer", rounds))
    for number in range(1, rounds + 1):
        words[0] = number
        words.wake(0)
        while words[1] != number:
            assert words.wait(1, number - 1, PATIENCE_S) or words[1] != number
    finish(answering)


def test_one_call_wakes_every_sleeper_of_the_word(words: Words, kind: str, path: Path) -> None:
    sleepers = [ready(start("words", kind, path, "sleep", PATIENCE_S)) for _ in range(2)]
    woken: list[bool] = []
    threads = [threading.Thread(target=lambda: woken.append(words.wait(0, 0, PATIENCE_S))) for _ in range(2)]
    for thread in threads:
        thread.start()
    words[0] = 1
    words.wake(0)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert woken == [True, True]
    assert [finish(each) for each in sleepers] == ["changed 1\n"] * 2


def test_a_killed_sleeper_leaves_nothing_behind(words: Words, kind: str, path: Path) -> None:
    sleeper = ready(start("words", kind, path, "sleep", PATIENCE_S))
    sleeper.kill()
    sleeper.communicate()
    test_a_process_is_woken_by_another(words, kind, path)


def test_a_stopped_sleeper_sees_the_change_when_it_continues(words: Words, kind: str, path: Path) -> None:
    sleeper = ready(start("words", kind, path, "sleep", PATIENCE_S))
    os.kill(sleeper.pid, signal.SIGSTOP)
    words[0] = 4
    words.wake(0)
    os.kill(sleeper.pid, signal.SIGCONT)
    assert finish(sleeper) == "changed 4\n"


def test_a_signal_handler_that_raises_ends_a_wait(words: Words) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)  # again, in case the first one comes before the wait
        with pytest.raises(InterruptedError):
            words.wait(0, 0, PATIENCE_S)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("count", [1, 3, 200])
def test_a_wait_for_several_words_ends_with_a_change_of_any(kind: str, tmp_path: Path, count: int) -> None:
    """More words than the kernel can wait for are polled."""
    with ExitStack() as stack:
        files = [stack.enter_context(opened(kind, tmp_path / str(number))) for number in range(min(count, 3))]
        points = [WaitPoint(files[number % 3], number % COUNT, 0) for number in range(count)]
        last = points[-1]

        def change() -> None:
            last.words[last.at] = 1
            last.words.wake(last.at)

        timer = threading.Timer(0.02, change)
        timer.start()
        while not last.has_changed:
            wait_any(points, PATIENCE_S)
        timer.join()
        wait_any(points, PATIENCE_S)  # at once: it has changed
    assert not points[0].has_changed or points[0] == last


def test_a_wait_for_several_words_ends_with_its_time(kind: str, path: Path) -> None:
    with opened(kind, path) as words:
        points = [WaitPoint(words, at, 0) for at in range(2)]
        began = time.monotonic()
        while time.monotonic() - began < 0.02:
            wait_any(points, 0.02)


def test_words_are_polled_where_the_system_call_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some sandboxes have no futex of shared memory."""

    def refuse(*_: object) -> int:
        ctypes.set_errno(errno.ENOSYS)
        return -1

    monkeypatch.setattr(words_module, "_futex", refuse)
    with opened("futex", path) as words:
        timer = threading.Timer(0.02, lambda: words.__setitem__(0, 1))
        timer.start()
        assert words.wait(0, 0, PATIENCE_S)
        timer.join()


def test_unaligned_words_are_refused(path: Path) -> None:
    path.write_bytes(bytes(65))
    with path.open("r+b") as file:
        view = memoryview(mmap.mmap(file.fileno(), 65))
        with pytest.raises(ValueError, match="aligned"):
            Words(view[1:])
