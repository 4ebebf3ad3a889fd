"""`sawlog sql`: queries from the command line, from stdin and at a prompt."""

from __future__ import annotations

import builtins
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sawlog.cli import sql as prompts
from sawlog.cli.sql import Prompt
from sawlog.store.directory.store import DirectoryStore

from .conftest import Cli, Program

ORDERS = b"".join(b'{"id": %d, "amount": %d.5}\n' % (n, n) for n in range(20))
AVRO = {"type": "record", "name": "o", "fields": [{"name": "id", "type": "int"}, {"name": "amount", "type": "double"}]}


@pytest.fixture
def filled(sawlog: Cli) -> Cli:
    sawlog("topic", "create", "orders", "--partitions", 2).ok()
    sawlog("produce", "orders", "--input", "ndjson", "--key", "id", stdin=ORDERS).ok()
    return sawlog


def test_a_query_prints_rows_in_every_format(filled: Cli) -> None:
    query = "select decode(key) as k, offset from orders where key in ('3', '4') order by k"
    assert [row["k"] for row in filled("sql", query, "--output", "json").ok().json] == ["3", "4"]
    assert filled("sql", query, "--output", "csv").ok().lines[0] == "k,offset"
    assert filled("sql", query).ok().lines[0].split() == ["K", "OFFSET"]
    lines = filled("sql", query, "--output", "ndjson").ok().lines
    assert [json.loads(line)["k"] for line in lines] == ["3", "4"]


def test_numbers_times_and_bytes_are_printed_as_elsewhere(filled: Cli) -> None:
    query = "select sum(1) s, 1.50 d, key, timestamp t, timestamp t, [true] l from orders where key = '7' group by all"
    [row] = filled("sql", query, "--output", "json").ok().json
    assert (row["s"], row["d"], row["key"], row["l"]) == (1, "1.50", "7", [True])
    assert row["t"] == row["t_2"]
    assert row["t"].endswith("Z")


def test_a_query_is_read_from_stdin_by_default(filled: Cli) -> None:
    assert filled("sql", "--output", "csv", stdin=b"select count(*) as n from orders;\n").ok().lines == ["n", "20"]


def test_a_declared_schema_and_one_on_the_command_line_make_values_structs(filled: Cli, tmp_path: Path) -> None:
    query = "select sum(value.amount) as s from orders"
    assert "value" in filled("sql", query).failed(2)
    (tmp_path / "orders.avsc").write_text(json.dumps(AVRO))
    for schema in ("orders=id INT, amount DOUBLE", f"orders=@{tmp_path}/orders.avsc"):
        assert filled("sql", "--schema", schema, query, "--output", "csv").ok().lines == ["s", "200.0"]
    filled("topic", "alter", "orders", "--set", f"sawlog.schema=@{tmp_path}/orders.avsc").ok()
    assert filled("sql", query, "--output", "csv").ok().lines == ["s", "200.0"]
    assert filled("sql", "--schema", "orders=", "select octet_length(value) from orders limit 1").ok()
    assert "not TOPIC=SCHEMA" in filled("sql", "--schema", "orders", query).failed(2)
    assert filled("sql", "--schema", "orders=@missing.avsc", query).failed(3)


def test_failures_have_the_exit_codes_of_other_commands(filled: Cli, tmp_path: Path) -> None:
    assert "nope" in filled("sql", "select nope from orders").failed(2)
    assert "only queries" in filled("sql", f"copy orders to '{tmp_path}/x.csv'").failed(2)
    assert "there is no query" in filled("sql").failed(2)
    assert filled("sql", "-d", tmp_path / "nothing", "select 1").failed(3)
    assert "its topics are orders" in filled("sql", "select * from nope").failed(3)
    assert "works on the files of a store" in filled("sql", "-b", "127.0.0.1:9092", "select 1").failed(2)


def test_a_schema_is_changed_only_if_earlier_values_can_still_be_read(filled: Cli) -> None:
    filled("topic", "alter", "orders", "--set", "sawlog.schema=id BIGINT, amount DOUBLE").ok()
    said = filled("topic", "alter", "orders", "--set", "sawlog.schema=id STRING").failed(2)
    assert "'id' was long and cannot become string" in said
    assert "sawlog.schema: the type of 'id' is unknown" in filled(
        "topic", "alter", "orders", "--set", "sawlog.schema=id THING"
    ).failed(2)
    filled("topic", "alter", "orders", "--set", "sawlog.schema=id BIGINT, amount DOUBLE, more STRING").ok()
    filled("topic", "alter", "orders", "--unset", "sawlog.schema").ok()
    filled("topic", "alter", "orders", "--set", "sawlog.schema=id STRING").ok()
    assert "sawlog.schema=id STRING" in filled("topic", "list").ok().out


def test_produce_checks_values_and_names_the_line(filled: Cli) -> None:
    assert "has no schema" in filled("produce", "orders", "--check", stdin=b"{}\n").failed(2)
    filled("topic", "alter", "orders", "--set", "sawlog.schema=id INT NOT NULL, amount DOUBLE").ok()
    lines = b'{"id": 1}\n{"id": "x"}\n{"amount": 1}\nnonsense\n{"id": 2}\n'
    said = filled("produce", "orders", "--check", stdin=lines).failed(1)
    assert "stdin, line 2: id should be an integer, not a string (x)" in said
    done = filled("produce", "orders", "--check", "--on-error", "skip", "--output", "json", stdin=lines).ok()
    assert (done.json["records"], done.json["skipped"]) == (2, 3)
    for reason in ("line 2: id should be", "line 3: id is missing", "line 4: not JSON"):
        assert reason in done.err
    assert "without being parsed" in filled("produce", "orders", "--check", "-i", "file", stdin=b"x").failed(2)


# --- the prompt


@pytest.fixture
def typed(filled: Cli, data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Prompt]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with DirectoryStore.open(data, mode="r") as store:
        yield Prompt(store, lambda query: sys.stdout.write(f"{store.sql(query).to_pylist()}\n"))


def lines(monkeypatch: pytest.MonkeyPatch, *given: str | type[BaseException]) -> None:
    left = list(given)

    def ask(prompt: str) -> str:
        if not left:
            raise EOFError
        if isinstance(first := left.pop(0), str):
            return first
        raise first

    monkeypatch.setattr(builtins, "input", ask)


def test_the_prompt_runs_queries_of_several_lines_and_survives_errors(
    typed: Prompt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines(
        monkeypatch,
        "select",
        "1 as a;",
        "selec;",
        "select 7",
        KeyboardInterrupt,
        "help",
        "select 2 as b;",
        "quit",
        "x;",
    )
    typed.loop()
    out, err = capsys.readouterr()
    assert out.splitlines() == ["[{'a': 1}]", "[{'b': 2}]"]
    assert "syntax error" in err
    assert "show tables;" in err


def test_the_prompt_completes_topics_columns_and_fields(typed: Prompt, filled: Cli, data: Path) -> None:
    filled("topic", "create", "web.clicks").ok()
    filled("topic", "alter", "orders", "--set", "sawlog.schema=id INT, amount DOUBLE").ok()

    def offered(text: str) -> list[str]:
        found = []
        while (each := typed.complete(text, len(found))) is not None:
            found.append(each)
        return found

    assert offered("or")[:1] == ["orders"]
    assert offered('"we') == ['"web.clicks"']
    assert offered("times") == ["timestamp"]
    assert offered("value.") == ["value.id", "value.amount"]
    assert "select" in offered("SEL")


def test_the_prompt_keeps_its_history(typed: Prompt, monkeypatch: pytest.MonkeyPatch) -> None:
    lines(monkeypatch, "quit")
    typed.loop()
    assert prompts._history_file().exists()
    assert prompts._history_file().stat().st_mode & 0o077 == 0


@pytest.mark.slow  # 2 s; the quick tier has it for `sawlog read`
def test_the_program_ends_quietly_when_its_reader_does(filled: Cli, program: Program) -> None:
    with program.start("sql", "select * from orders, range(100000)", "--output", "ndjson") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        assert not [line for line in said.splitlines() if b"interpreted kernel" not in line]
        assert process.wait(60) == 0
