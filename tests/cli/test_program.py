"""The real program as people meet it: pipes that close, Ctrl-C, locks, terminals, shells, a missing extra.

Starting it takes most of a second. What does not depend on the process is asked inside this one, and of variants that
differ in an option one is started with the quick tests.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sawlog as package
from sawlog import Log
from sawlog.cli import run
from sawlog.store.directory.store import DirectoryStore

from ..looping import for_each
from .conftest import PATIENCE_S, Cli, Program


def eventually(what: Callable[[], bool]) -> None:
    """Wait until it is so; the patience is for slow machines."""
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


def variants(quick: list[str], *slow: list[str]) -> list[Any]:
    """Options of a test: the first ones with the quick tests, each of the others with the slow ones."""
    return [quick, *(pytest.param(each, marks=pytest.mark.slow) for each in slow)]


@pytest.fixture
def large(data: Path) -> Path:
    """A topic with more than any pipe holds."""
    with DirectoryStore.open(data) as store:
        store.create_topic("large", durability="os").append_many([b"%06d " % n + b"x" * 100 for n in range(20_000)])
    return data


# --- pipes


@pytest.mark.parametrize(
    "more", variants([], ["--output", "ndjson"], ["--output", "json"], ["--output", "table"], ["--raw"])
)
def test_a_closed_pipe_ends_the_command_silently(program: Program, large: Path, more: list[str]) -> None:
    process = program.start("read", "large", *more)
    assert process.stdout is not None
    assert process.stdout.read(100)
    process.stdout.close()
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, b"")


@pytest.mark.slow  # in the quick tests, a reader goes away without a shell
def test_head_receives_its_line_in_a_shell_pipeline(program: Program, large: Path) -> None:
    line = f"set -o pipefail; {sys.executable} -m sawlog.cli read large | head -1"
    environment = {**os.environ, "SAWLOG_DATA": str(large), "PYTHONWARNINGS": "ignore"}
    result = subprocess.run(["bash", "-c", line], capture_output=True, env=environment, timeout=PATIENCE_S, check=False)
    assert (result.returncode, result.stdout[:6], result.stderr) == (0, b"000000", b"")


@pytest.mark.slow  # in the quick tests, a reader goes away later
def test_a_command_survives_an_output_closed_before_it_starts(program: Program, orders: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    result = program("read", "orders", stdout=write)
    os.close(write)
    assert (result.code, result.err) == (0, "")


def test_a_full_disk_is_an_error(program: Program, large: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with open("/dev/full", "wb") as full:
        result = program("read", "large", stdout=full)
    assert result.code == 1
    assert "No space left" in result.err
    assert "Traceback" not in result.err


def test_records_go_through_a_pipe_from_one_topic_to_another(program: Program, sawlog: Cli, orders: Path) -> None:
    sawlog("topic", "create", "copy").ok()
    first = program.start("read", "orders", "--output", "ndjson")
    second = program.start("produce", "copy", "--input", "records", stdin=first.stdout)
    assert second.wait(PATIENCE_S) == 0
    assert first.wait(PATIENCE_S) == 0
    for process in (first, second):
        process.communicate()
    assert sawlog("read", "copy").ok().out == sawlog("read", "orders").ok().out


@pytest.mark.slow  # in the quick tests, Ctrl-C and SIGTERM come after a line was stored while the input is open
@pytest.mark.parametrize("more", [[], ["--compression", "zstd"]])
def test_lines_are_stored_while_the_input_is_open(program: Program, sawlog: Cli, orders: Path, more: list[str]) -> None:
    process = program.start("produce", "orders", "--partition", "1", *more)
    assert process.stdin is not None
    process.stdin.write(b"typed\n")
    process.stdin.flush()
    eventually(lambda: "typed" in sawlog("read", "orders", "-p", 1).out)
    process.communicate(b"last\n", timeout=PATIENCE_S)
    assert process.returncode == 0
    assert sawlog("read", "orders", "-p", 1).lines[-2:] == ["typed", "last"]


# --- following and stopping


@contextlib.contextmanager
def following(program: Program, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    process = program.start("read", "orders", "--follow", *arguments)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("more", variants([], ["--output", "ndjson"], ["--grep", "n"]))
def test_follow_prints_new_records_until_ctrl_c(program: Program, orders: Path, more: list[str]) -> None:
    with following(program, "-o", "-1", *(more if more != ["--grep", "n"] else ["--grep", "9|4|new"])) as process:
        assert process.stdout is not None
        assert b"a9" in process.stdout.readline()
        assert b"b4" in process.stdout.readline()
        with DirectoryStore.open(orders) as store:
            store.topic("orders").append(b"new one", partition=1)
            assert b"new one" in process.stdout.readline()
            store.topic("orders").append(b"new two", partition=0)
            assert b"new two" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, err) == (130, b"")


def test_follow_reports_trimmed_and_truncated_records(program: Program, orders: Path) -> None:
    with following(program, "-p", "0", "-o", "-1") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"a9\n"
        with DirectoryStore.open(orders) as store:
            log = store.topic("orders").partition(0)
            log.truncate(4)
            assert b"offsets from 4 on were truncated" in process.stderr.readline()
            log.append(b"again")
            assert process.stdout.readline() == b"again\n"


@pytest.mark.slow  # a process more; the quick tests follow until Ctrl-C
def test_follow_ends_after_a_count(program: Program, orders: Path) -> None:
    with following(program, "-p", "0", "-o", "end", "-n", "2") as process:
        with DirectoryStore.open(orders) as store:

            def tick() -> bool:  # it may begin to follow at any time
                store.topic("orders").append(b"tick", partition=0)
                return process.poll() is not None

            eventually(tick)
        assert process.communicate()[0] == b"tick\ntick\n"
        assert process.returncode == 0


@pytest.mark.slow  # in the quick tests, Ctrl-C ends a reader and SIGTERM a producer
def test_ctrl_c_while_producing_keeps_accepted_records(program: Program, sawlog: Cli, orders: Path) -> None:
    process = program.start("produce", "orders", "--partition", "1")
    assert process.stdin is not None
    process.stdin.write(b"kept\n")
    process.stdin.flush()
    eventually(lambda: "kept" in sawlog("read", "orders", "-p", 1).out)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert b"interrupted; stored 1 record to orders" in err
    assert b"Traceback" not in err
    sawlog("verify").ok()


@pytest.mark.slow  # about these tests, not about the program
def test_ctrl_c_works_if_the_parent_ignores_it(program: Program, orders: Path) -> None:
    """A background shell or nohup ignores SIGINT; the tests set the handlers that they need."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with following(program, "-p", "0", "-o", "-1") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"a9\n"
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 130
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_sigterm_ends_a_command_in_order(program: Program, sawlog: Cli, orders: Path) -> None:
    process = program.start("produce", "orders", "--partition", "1")
    assert process.stdin is not None
    process.stdin.write(b"kept\n")
    process.stdin.flush()
    eventually(lambda: "kept" in sawlog("read", "orders", "-p", 1).out)
    process.terminate()
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert b"interrupted; stored 1 record to orders" in err
    assert sawlog("inspect", orders / "topics/orders/partition-1/checkpoint", "--output", "json").json["clean"] is True


CLOSED = ("verify <&- >&- 2>&-", "read orders >&-", "produce orders <&-", "read nope 2>&-")


@pytest.mark.parametrize("command", variants(*([each] for each in CLOSED)))
def test_closed_standard_streams_are_tolerated(orders: Path, command: list[str]) -> None:
    line = f"{sys.executable} -W ignore -m sawlog.cli {command[0]}"
    environment = {**os.environ, "SAWLOG_DATA": str(orders)}
    result = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, timeout=PATIENCE_S, check=False)
    assert result.returncode == (3 if "nope" in line else 0)
    assert b"Traceback" not in result.stderr


# --- locks


def test_a_process_that_accepts_no_forwarded_appends_locks_its_partition_for_writers_only(
    program: Program, sawlog: Cli, orders: Path
) -> None:
    with Log.open(orders / "topics" / "orders" / "partition-0") as log:
        log.append(b"mine")
        refused = program("produce", "orders", "-p", 0, "--lock-timeout", 0.2, stdin=b"theirs\n")
        assert "locked" in refused.failed(5)
        assert str(os.getpid()) in refused.err
        assert sawlog("read", "orders", "-p", 0, "-o", "-1").ok().lines == ["mine"]
        sawlog("verify").ok()
        sawlog("produce", "orders", "-p", 1, stdin=b"theirs\n").ok()
    sawlog("produce", "orders", "-p", 0, stdin=b"theirs\n").ok()


def test_produce_forwards_records_to_the_process_that_holds_the_topic(program: Program, orders: Path) -> None:
    with DirectoryStore.open(orders) as store:
        topic = store.topic("orders")
        for number in range(topic.partitions):
            topic.partition(number).append(b"mine")  # through the log: it is kept
        before = topic.describe().records
        program("produce", "orders", stdin=b"1\n2\n3\n").ok()
        assert topic.describe().records == before + 3


@pytest.mark.slow  # six starts; the quick tier has one of them
def test_produce_forwards_every_kind_of_input_to_the_process_that_holds_the_topic(
    program: Program, orders: Path
) -> None:
    with DirectoryStore.open(orders) as store:
        topic = store.topic("orders")
        for number in range(topic.partitions):
            topic.partition(number).append(b"mine")  # through the log: it is kept
        (orders.parent / "file").write_bytes(b"a file")
        before = topic.describe().records
        program("produce", "orders", stdin=b"1\n2\n3\n").ok()
        program("produce", "orders", "-p", 0, stdin=b"4\n").ok()
        program("produce", "orders", "-p", 0, "--compression", "zstd", stdin=b"5\n").ok()
        program("produce", "orders", "-p", 0, orders.parent / "file", "--input", "file").ok()
        assert topic.describe().records == before + 6
        assert [record.value for record in topic.partition(0).scan()][-3:] == [b"4", b"5", b"a file"]
        assert "locked" in program("topic", "delete", "orders", "--yes").failed(5)


# --- terminals


def in_terminal(program: Program, *arguments: object, typed: bytes = b"", **environment: str) -> tuple[int, str]:
    """Run with a terminal for stdin, stdout and stderr; the exit code and everything that appeared on it."""
    controller, terminal = pty.openpty()
    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    process = program.start(*arguments, env={"TERM": "xterm", **environment}, **streams)
    os.close(terminal)
    if typed:
        os.write(controller, typed)
    seen = shown_on(controller)
    return process.wait(PATIENCE_S), seen


def in_terminal_here(
    monkeypatch: pytest.MonkeyPatch, *arguments: object, typed: bytes = b"", **environment: str
) -> tuple[int, str]:
    """Run a command at a terminal in this process; its output must fit into the terminal's buffer."""
    controller, terminal = pty.openpty()
    if typed:
        os.write(controller, typed)
    with contextlib.ExitStack() as last, monkeypatch.context() as patched:
        for name, value in {"TERM": "xterm", **environment}.items():
            patched.setenv(name, value)
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            patched.setattr(sys, name, last.enter_context(open(os.dup(terminal), mode, encoding="utf-8")))
        code = run([str(each) for each in arguments])
    os.close(terminal)
    return code, shown_on(controller)


def shown_on(controller: int) -> str:
    """Return everything that appears on a terminal until its last user closes it."""
    seen = b""
    with contextlib.suppress(OSError):  # a terminal's error after its last user has closed it
        while chunk := os.read(controller, 4096):
            seen += chunk
    os.close(controller)
    return seen.decode()


@pytest.mark.parametrize("more", variants([], ["--input", "file", "--partition", "1"]))
def test_no_progress_bar_is_drawn_into_typed_input(
    program: Program, sawlog: Cli, orders: Path, more: list[str]
) -> None:
    code, seen = in_terminal(program, "produce", "orders", *more, typed=b"hello\nworld\n\x04", TERM="xterm-256color")
    assert code == 0
    assert "\x1b" not in seen
    assert "producing" not in seen
    assert [line.removeprefix("^D").strip("\b ") for line in seen.split("\r\n")[:2]] == ["hello", "world"]
    assert "record" in seen
    assert "hello" in sawlog("read", "orders").out


@pytest.mark.slow  # as the test of progress below, with another terminal
def test_progress_is_drawn_for_input_from_a_file(program: Program, orders: Path, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"x\n" * 20_000)
    code, seen = in_terminal(program, "produce", "orders", tmp_path / "lines", TERM="xterm-256color")
    assert code == 0
    assert "producing" in seen


def test_terminal_gets_colour_unless_no_color_is_set(
    sawlog: Cli, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b[1m" in in_terminal_here(monkeypatch, "topic", "list")[1]
    for said in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        code, seen = in_terminal_here(monkeypatch, "topic", "list", **said)
        assert code == 0
        assert "orders" in seen
        assert "\x1b" not in seen
    assert b"\x1b" not in sawlog("topic", "list").ok().raw


@pytest.mark.slow  # the same as a process of its own
def test_the_program_uses_colour_on_a_terminal(program: Program, orders: Path) -> None:
    assert "\x1b[1m" in in_terminal(program, "topic", "list")[1]
    assert "\x1b" not in in_terminal(program, "topic", "list", NO_COLOR="1")[1]
    assert b"\x1b" not in program("topic", "list").ok().raw


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_statistics_fit_the_terminal(orders: Path, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with DirectoryStore.open(orders) as store:
        store.create_topic("a.topic.with.a.name.that.is.rather.long").append(b"x")
    code, seen = in_terminal_here(monkeypatch, "stats", COLUMNS=str(columns), NO_COLOR="1")
    assert code == 0
    lines = [line for line in seen.splitlines() if not line.startswith("not shown")]
    assert "PARTITION" in seen
    assert max(map(len, lines)) <= max(columns, 60)  # charts are at least that wide


def test_progress_is_shown_on_a_terminal_only(program: Program, sawlog: Cli, orders: Path, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes(b"line\n" * 20_000)
    code, seen = in_terminal(program, "produce", "orders", file)
    assert code == 0
    assert "producing" in seen
    assert re.search(r"\d%", seen)
    assert re.search(r"[\d,]+ records, [\d.]+[kM]?/s", seen)
    assert sawlog("produce", "orders", file).ok().err.startswith("20,000 records to orders")


def test_delete_asks_for_confirmation_at_a_terminal(sawlog: Cli, orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, seen = in_terminal_here(monkeypatch, "topic", "delete", "orders", typed=b"n\n")
    assert code == 1
    assert "15 records" in seen
    assert sawlog("topic", "list", "--output", "json").json
    assert in_terminal_here(monkeypatch, "topic", "delete", "orders", typed=b"y\n")[0] == 0
    assert sawlog("topic", "list", "--output", "json").json == []


# --- the program itself


def test_version(sawlog: Cli) -> None:
    kernel = "compiled" if package.kernel_info().compiled else "interpreted"
    assert sawlog("--version").ok().out == f"sawlog {package.__version__}, {kernel} kernel\n"


@for_each(
    ("arguments", "complaint"),
    [
        (["reed"], "No such command 'reed'"),
        (["consume", "orders"], "no command 'consume'; did you mean `sawlog read orders`?"),
        (["tail"], "`sawlog read TOPIC --tail 10 --follow`?"),
        (["ls"], "`sawlog topic list`?"),
        (["topic", "ls"], "`sawlog topic list`?"),
        (["groups", "reset"], "`sawlog groups seek`?"),
        (["topic"], "sawlog topic --help"),
        (["topic", "create"], "TOPIC"),
        (["topic", "create", "a", "--partitions", "many"], "'--partitions' / '-P': 'many' is not an integer;"),
        (["topic", "create", "a", "--partitions", "0"], "must be at least 1, not 0;"),
        (["produce", "a", "--rate", "fast"], "'--rate': 'fast' is not a number;"),
        (["read", "a", "-n", str(2**63)], f"must be at most {2**62}, not {2**63};"),
        (["produce", "a", "nul\0"], "'[FILE]...': embedded null byte;"),
        (["--bogus"], "--bogus"),
        (["read", "a", "--tial", "3"], "--tial; did you mean --tail?"),
        (["topic", "list", "--output", "yaml"], "ndjson"),
    ],
)
def test_a_usage_error_is_one_line_with_exit_code_2(sawlog: Cli, arguments: list[str], complaint: str) -> None:
    result = sawlog(*arguments)
    assert complaint in result.failed(2)
    assert len(result.err.splitlines()) == 1
    assert "Input should" not in result.err


def test_without_a_store_the_error_says_how_to_name_one(sawlog: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAWLOG_DATA")
    assert "-d DIR" in sawlog("topic", "list").failed(2)
    assert "-d DIR" in sawlog("verify").failed(2)


def test_a_directory_without_a_store_is_left_unchanged(sawlog: Cli, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"x")
    assert sawlog("topic", "list", "-d", tmp_path).failed(3)
    assert sawlog("topic", "create", "orders", "-d", tmp_path).code != 0
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


@pytest.mark.parametrize("missing", ["typer", pytest.param("rich", marks=pytest.mark.slow)])
def test_a_missing_extra_is_named_with_the_command_to_install_it(missing: str) -> None:
    result = without(missing, "topic", "list")
    assert result.returncode == 1
    assert result.stderr == f"sawlog: the command line needs {missing}: run pip install '.[cli]' in a clone of sawlog\n"


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], []])
def test_without_the_extra_the_version_and_how_to_get_the_rest_are_printed(arguments: list[str]) -> None:
    result = without("typer", *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    version, advice = result.stdout.splitlines()
    assert version.startswith(f"sawlog {package.__version__}, ")
    assert advice.endswith("run pip install '.[cli]' in a clone of sawlog")


def without(missing: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program in an environment that lacks a package."""
    code = f"import sys; sys.modules[{missing!r}] = None; from sawlog.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def completed(words: str) -> dict[str, str]:
    """The environment in which bash asks for completions of a line."""
    return {"_SAWLOG_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}


@for_each(
    ("words", "offered"),
    [
        ("sawlog ver", "verify"),
        ("sawlog topic describe or", "orders"),
        ("sawlog groups seek bil", "billing"),
        ("sawlog read orders --fo", "--follow"),
        ("sawlog read orders --group bil", "billing"),
        ("sawlog topic create x --set retention.m", "retention.ms="),
        ("sawlog topic create x --set cleanup.policy=com", "cleanup.policy=compact,delete"),
        ("sawlog topic alter orders --unset segment.b", "segment.bytes"),
    ],
)
def test_shell_completes_commands_topics_groups_and_options(
    sawlog: Cli, orders: Path, monkeypatch: pytest.MonkeyPatch, words: str, offered: str
) -> None:
    with DirectoryStore.open(orders) as store:
        store.groups.commit("billing", {("orders", 0): 1})
    for name, value in completed(words).items():
        monkeypatch.setenv(name, value)
    assert offered in sawlog().out.split()


@pytest.mark.slow  # the same as a process of its own
def test_the_program_completes_for_a_shell(program: Program, orders: Path) -> None:
    assert "orders" in program(env=completed("sawlog topic describe or")).out.split()


def test_completion_without_a_store_is_empty_and_silent(sawlog: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in completed("sawlog read or").items():
        monkeypatch.setenv(name, value)
    result = sawlog()
    assert (result.out.strip(), result.err) == ("", "")


def test_reading_is_possible_without_the_right_to_write(program: Program, orders: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    for path in [orders, *orders.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert len(program("read", "orders").ok().lines) == 15
        program("verify").ok()
        assert "Permission denied" in program("produce", "orders", stdin=b"x\n").failed(1)
    finally:
        for path in [orders, *orders.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
