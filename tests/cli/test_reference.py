"""The generated reference matches the help of the commands, and every command is documented."""

from __future__ import annotations

import re
import runpy
import shlex
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sawlog.cli.help import EXAMPLES, EXIT_CODES
from sawlog.cli.program import COMMANDS, command

from ..looping import for_each
from .conftest import Cli

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "make_cli_reference.py"))


def commands(found: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with its path on the command line."""
    found = command() if found is None else found
    if not hasattr(found, "commands"):
        yield path, found
        return
    for name, below in found.commands.items():
        yield from commands(below, (*path, name))


ALL = dict(commands())
each_command = for_each("path", ALL)


def test_reference_is_up_to_date() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert text == TOOL["reference"](), "run: python tools/make_cli_reference.py"


def test_every_command_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert {" ".join(("sawlog", *path)) for path in ALL} <= set(re.findall(r"^## (.+)$", text, re.MULTILINE))


def test_all_designed_commands_exist() -> None:
    topic = {("topic", name) for name in ("create", "list", "describe", "alter", "delete", "trim")}
    groups = {("groups", name) for name in ("list", "describe", "seek")}
    others = {(name,) for name in ("produce", "read", "verify", "inspect", "repair", "doctor", "bench", "stats")}
    assert topic | groups | others <= set(ALL)


@each_command
def test_help_teaches_by_examples(sawlog: Cli, path: tuple[str, ...]) -> None:
    text = sawlog(*path, "--help").ok().out
    assert text.startswith(f"Usage: sawlog {' '.join(path)}")
    assert "Examples:" in text
    assert f"sawlog {' '.join(path)}" in text.split("Examples:")[1]
    assert sawlog(*path, "-h").ok().out == text


@each_command
def test_help_has_two_examples(path: tuple[str, ...]) -> None:
    """tests/cli/test_printed_commands.py runs them, those of pipelines tests/pipelines/test_printed_commands.py."""
    lines = (ALL[path].help or "").partition("Examples:")[2].splitlines()
    assert sum("sawlog" in line for line in lines) >= 2


def test_a_flag_letter_has_one_meaning_in_all_commands() -> None:
    found = defaultdict(set)
    for path, each in ALL.items():
        for option in each.params:
            [name, *_] = [name for name in option.opts if name.startswith("--")] or [f"argument {path}"]
            for letter in [*option.opts, *option.secondary_opts]:
                if len(letter) == 2:
                    found[letter].add((name, option.is_flag))
    assert len(found) > 10
    assert {letter: meanings for letter, meanings in found.items() if len(meanings) > 1} == {}


@each_command
def test_every_option_says_what_it_is_for(path: tuple[str, ...]) -> None:
    for option in ALL[path].params:
        assert len(option.help or "") > 5, option.name
        assert option.metavar or getattr(option, "is_flag", False), option.name


@each_command
def test_every_command_has_output_for_programs(path: tuple[str, ...]) -> None:
    silent = {("serve",)}
    assert ("--output" in [name for option in ALL[path].params for name in option.opts]) == (path not in silent)


def examples() -> list[str]:
    """Return every example of a `sawlog` call in the help, without the rest of its pipeline."""
    lines = [*EXAMPLES.splitlines(), *(line for found in ALL.values() for line in (found.help or "").splitlines())]
    found = []
    for line in lines:
        if re.match(r"\s*[^#]*\bsawlog [a-z]", line) and "`" not in line:
            found += [
                part.strip()
                for part in re.split(r" \| | > ", re.sub(r"\s+#.*", "", line.strip()))
                if part.strip().startswith("sawlog ")
            ]
    return found


@for_each("example", examples())
def test_example_is_a_command_line_that_parses(example: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    (data.parent / "broker.toml").touch()  # an example names it, and it has to exist
    words = shlex.split(example)[1:]
    found, context = command(), None
    context = found.make_context("sawlog", words, resilient_parsing=True)
    while hasattr(found, "commands"):
        name, found, words = found.resolve_command(context, words)
        context = found.make_context(name, list(words), parent=context)


def test_the_help_has_examples() -> None:
    assert len(examples()) > 40


def test_help_of_the_program_fits_on_one_screen_and_names_every_command(
    sawlog: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = sawlog("--help").ok().out
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= 80
    assert set(COMMANDS) <= set(re.findall(r"[a-z]+", text))
    assert sawlog().out == sawlog("-h").ok().out == text


def test_help_of_a_group_shows_an_example_of_each_command(sawlog: Cli) -> None:
    text = sawlog("topic", "--help").ok().out.partition("Examples:")[2]
    first = [line.split()[:3] for line in text.strip().splitlines()]
    assert first == [["sawlog", *path] for path in ALL if path[0] == "topic"]


def test_help_without_a_command_lists_commands_exit_codes_and_examples(sawlog: Cli) -> None:
    text = sawlog("help").ok().out
    assert all(f"  {name:<11}  {summary}\n" in text for name, (summary, _, _) in COMMANDS.items())
    assert all(f"{code:<4} {meaning}" in text for code, meaning in EXIT_CODES.items())
    assert all(line in text for line in EXAMPLES.splitlines())
    assert [row["command"] for row in sawlog("help", "--output", "json").ok().json] == list(COMMANDS)


def test_help_of_a_command_is_what_its_option_prints(sawlog: Cli) -> None:
    assert sawlog("help", "topic", "create").ok().out == sawlog("topic", "create", "--help").ok().out
    assert sawlog("help", "groups").ok().out == sawlog("groups", "--help").ok().out
    assert "no command 'topic make'" in sawlog("help", "topic", "make").failed(2)
    assert "no command 'read on'" in sawlog("help", "read", "on").failed(2)
