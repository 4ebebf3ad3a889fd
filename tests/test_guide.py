"""Each page of the guide and each how-to guide runs from top to bottom in an empty directory; in the slow tests, twice.

In the first run the output of its snippets must match the page, except for times and process ids. In the second run
records exist already, so numbers differ; everything else must match.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sawlog
from sawlog import errors
from sawlog._kernel_info import KernelInfo
from sawlog.aio.store import AsyncConsumer, AsyncStore
from sawlog.aio.topic import AsyncTopic
from sawlog.broker.config import BrokerConfig, changed, read_toml
from sawlog.sql.engine import load_duckdb
from sawlog.store.settings import SETTINGS
from sawlog.testing import Broker

from .documents import ROOT, Step, blocks, make_program, steady, steps, take, typed, without_numbers
from .interop.files import lay
from .interop.kafkas import batch

GUIDE = ROOT / "docs" / "guide"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(GUIDE.glob("*.md"))}
HOW_TO = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "how-to").glob("*.md"))}
MOVING = PAGES["moving-from-kafka.md"]
#: Of these, only what comes before the first command is quick.
SPARK = ("spark.md",)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, which is the current one, with `sawlog` and `python` for shells."""
    make_program(tmp_path)
    make_program(tmp_path, "python", "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("SAWLOG_DATA", "SAWLOG_BROKER", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run_once(page: list[Step], place: Path, compared: Callable[[str], list[str]] = steady) -> None:
    for step in page:
        assert compared(take(step, place)) == compared(step.shown), step.text


def run_twice(page: list[Step], place: Path) -> None:
    for compared in (steady, without_numbers):
        run_once(page, place, compared)


@pytest.mark.parametrize("name", [name for name in PAGES if name not in SPARK])
def test_a_page_prints_what_it_shows(name: str, place: Path) -> None:
    page = steps(PAGES[name])
    assert page or name == "README.md"
    run_once(page, place)


@pytest.mark.slow  # the quick tier runs it once
@pytest.mark.parametrize("name", [name for name in PAGES if name not in SPARK])
def test_a_page_can_be_run_again(name: str, place: Path) -> None:
    run_twice(steps(PAGES[name]), place)


@pytest.mark.parametrize("name", SPARK)
def test_what_comes_before_spark_runs_and_its_programs_are_python(name: str, place: Path) -> None:
    page = steps(PAGES[name])
    first = next(number for number, step in enumerate(page) if step.kind == "command")
    assert first
    run_once(page[:first], place)
    for step in page:
        if step.kind != "command":
            compile(step.text, name, "exec")


@pytest.mark.slow
@pytest.mark.group("spark")
@pytest.mark.parametrize("name", SPARK)
def test_a_page_with_spark_prints_what_it_shows_and_can_be_run_again(name: str, place: Path) -> None:
    run_twice(steps(PAGES[name]), place)


# --- how-to guides

#: Needs Spark.
HOW_TO_SPARK = "kafka-clients-to-spark.md"


@pytest.mark.costly  # several programs
@pytest.mark.parametrize("name", [name for name in HOW_TO if name != HOW_TO_SPARK])
def test_a_how_to_guide_prints_what_it_shows(name: str, place: Path) -> None:
    run_once(steps(HOW_TO[name]), place)


@pytest.mark.slow  # the quick tier runs it once
@pytest.mark.parametrize("name", [name for name in HOW_TO if name != HOW_TO_SPARK])
def test_a_how_to_guide_can_be_run_again(name: str, place: Path) -> None:
    run_twice(steps(HOW_TO[name]), place)


@pytest.mark.slow
@pytest.mark.group("spark")
def test_the_how_to_guide_with_spark_prints_what_it_shows_and_can_be_run_again(place: Path) -> None:
    run_twice(steps(HOW_TO[HOW_TO_SPARK]), place)


def test_the_configuration_in_the_how_to_guide_about_services_is_valid(place: Path) -> None:
    [text] = re.findall(r"```toml\n(.*?)```", HOW_TO["run-as-a-service.md"], re.DOTALL)
    (place / "sawlog.toml").write_text(text)
    assert changed(BrokerConfig(), read_toml(place / "sawlog.toml")).allow_anonymous


def test_the_how_to_guide_about_services_names_the_pages_that_the_broker_has() -> None:
    """tests/broker/test_serve.py asks for them."""
    named = re.findall(r"`(?:GET )?(/(?:health|ready|metrics)\w*)`", HOW_TO["run-as-a-service.md"])
    assert sorted(named) == ["/healthz", "/metrics", "/readyz"]


# --- common to all pages


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_it_is_for_and_where_to_go_next(name: str) -> None:
    title, first, *_ = PAGES[name].split("\n\n")
    assert title.startswith("# ")
    assert name == "README.md" or first.startswith("After this page you ")
    last = PAGES[name].rpartition("\n## ")[2]
    assert last.startswith("Next\n")
    assert re.search(r"\]\([\w-]+\.md\)", last)


def test_the_index_lists_every_page() -> None:
    listed = re.findall(r"^\| \d+\. \[.*?\]\(([\w-]+\.md)\)", PAGES["README.md"], re.MULTILINE)
    assert sorted([*listed, "README.md"]) == sorted(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_links_into_pages_find_their_headings(name: str) -> None:
    for target, heading in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", PAGES[name]):
        text = (GUIDE / target).read_text(encoding="utf-8") if target else PAGES[name]
        titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        assert heading in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in titles}, (target, heading)


def test_troubleshooting_names_every_error() -> None:
    listed = re.findall(r"^\| `(\w+)`", PAGES["troubleshooting.md"].partition("## All errors")[2], re.MULTILINE)
    public = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.SawlogError) and value is not errors.SawlogError
    }
    assert sorted(listed) == sorted(public)


def test_troubleshooting_has_the_messages_that_an_installation_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, package = blocks(PAGES["troubleshooting.md"].partition("\n## Installing\n")[2].partition("\n## ")[0], "")
    assert kernel.strip() == f"RuntimeWarning: sawlog: {KernelInfo(False, '…/kernel/__init__.py')}"
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(sawlog.errors.MissingPackage) as caught:
        load_duckdb()
    assert package.strip() == f"sawlog.errors.MissingPackage: {caught.value}"


# --- moving from Kafka: nothing in a table is invented


def rows_of(title: str) -> Iterator[list[str]]:
    """The cells of the table below a heading, without its first two lines."""
    section = MOVING.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    assert len(lines) > 5
    for line in lines[2:]:
        yield [cell.strip() for cell in line.split("|")[1:-1]]


def calls_in(cell: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the calls in a cell as (object, method, keywords)."""
    for code in re.findall(r"`([^`]+)`", cell):
        if "(" not in code or code.startswith("."):
            continue
        for node in ast.walk(ast.parse(f"async def cell():\n {code}")):
            if isinstance(node, ast.Call):
                keywords = [each.arg for each in node.keywords if each.arg]
                if isinstance(node.func, ast.Attribute) and (owner := dotted(node.func.value)):
                    yield owner, node.func.attr, keywords
                elif isinstance(node.func, ast.Name):
                    yield "", node.func.id, keywords


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


OURS: dict[str, Any] = {
    "sawlog": sawlog,
    "store": sawlog.Store,
    "topic": sawlog.Topic,
    "consumer": sawlog.Consumer,
    "writer": sawlog.TopicWriter,
    "store.groups": sawlog.Groups,
}
OURS_ASYNC = {**OURS, "store": AsyncStore, "topic": AsyncTopic, "consumer": AsyncConsumer}


@pytest.mark.parametrize(
    ("title", "ours"), [("kafka-python", OURS), ("aiokafka", OURS_ASYNC), ("confluent-kafka", OURS), ("Java", OURS)]
)
def test_calls_of_the_library_that_a_table_names_exist(title: str, ours: dict[str, Any]) -> None:
    found = [call for row in rows_of(title) for call in calls_in(row[2])]
    assert len(found) > 5
    for owner, name, keywords in found:
        if owner in ours:
            check_call(OURS["store"] if name == "transaction" else ours[owner], name, keywords)


def check_call(owner: Any, name: str, keywords: list[str]) -> None:
    method = getattr(owner, name)
    parameters = inspect.signature(method).parameters
    if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()) or name == "consumer":
        assert set(keywords) <= set(parameters), f"{name}: {keywords}"


def clients() -> dict[str, dict[str, Any]]:
    """Return the objects that the names in the tables stand for, by client."""
    import aiokafka
    import confluent_kafka
    import kafka

    return {
        "kafka-python": {
            "": kafka,
            "producer": kafka.KafkaProducer,
            "consumer": kafka.KafkaConsumer,
            "admin": kafka.KafkaAdminClient,
        },
        "aiokafka": {"": aiokafka, "producer": aiokafka.AIOKafkaProducer, "consumer": aiokafka.AIOKafkaConsumer},
        "confluent-kafka": {
            "": confluent_kafka,
            "producer": confluent_kafka.Producer,
            "consumer": confluent_kafka.Consumer,
            "message": confluent_kafka.Message,
        },
    }


@pytest.mark.filterwarnings("ignore:(open|read)_text is deprecated:DeprecationWarning")  # kafka-python uses them
def test_calls_of_clients_that_a_table_names_exist() -> None:
    import kafka.admin

    for title, theirs in clients().items():
        found = [call for row in rows_of(title) for call in calls_in(row[1])]
        assert len(found) > 5
        for owner, name, keywords in found:
            if owner:
                assert hasattr(theirs[owner], name), f"{title}: {owner}.{name}"
            elif not hasattr(theirs[""], name):
                assert hasattr(kafka.admin, name) or hasattr(kafka.structs, name), f"{title}: {name}"
            if title != "confluent-kafka" and owner:  # whose methods are C and tell nothing
                assert set(keywords) <= set(inspect.signature(getattr(theirs[owner], name)).parameters), name


@pytest.mark.filterwarnings("ignore:(open|read)_text is deprecated:DeprecationWarning")
def test_settings_that_the_table_names_exist_with_the_defaults_that_it_tells() -> None:
    from kafka import KafkaConsumer, KafkaProducer

    theirs = {**KafkaProducer.DEFAULT_CONFIG, **KafkaConsumer.DEFAULT_CONFIG}
    ours: dict[str, inspect.Parameter] = {}
    places: list[Callable[..., Any]] = [
        sawlog.Store.transaction,
        sawlog.Topic.writer,
        sawlog.Topic.typed,
        sawlog.Consumer.poll,
        sawlog.Store.consumer,
    ]
    for place in places:
        ours |= inspect.signature(place).parameters
    topic = {setting.keyword for setting in SETTINGS.values()}
    for names, _, here, default in rows_of("Names of settings"):
        for name in re.findall(r"`([^`]+)`", names):
            assert name.replace(".", "_") in theirs, name
        for name in re.findall(r"`(\w+)=`", here):
            assert name in ours or name in topic, name
            if default.strip('"`').isalnum() and name in ours and default != "none":
                assert str(ours[name].default) == default.strip('"`'), name


def test_the_commands_that_bring_data_from_kafka_do(place: Path) -> None:
    importing, copying = (block.splitlines() for block in blocks(MOVING.partition("## Bring the data")[2], ""))
    source = place / "kafka-logs"
    lay(source, {"meta.properties": b"version=1\n", f"clicks-0/{0:020}.log": batch(0, b"a", b"b")})
    assert "2 records from kafka" in str(typed(importing[0].replace("/var/lib/kafka", str(source))))

    with Broker() as broker:
        broker.create_topic("orders")
        broker.store["orders"].append_many([(b"one", b"ada"), (b"two", b"bob")])
        typed(copying[0])
        reading, _, producing = copying[1].replace("broker:9092", broker.address).partition(" | ")
        Path("orders.ndjson").write_text("\n".join(typed(reading)))
        typed(producing.replace("orders -d", "orders orders.ndjson -d"))
    with sawlog.open("data") as store:
        assert [record.value for record in store["clicks"].scan()] == [b"a", b"b"]
        assert [(record.value, record.key) for record in store["orders"].scan()] == [(b"one", b"ada"), (b"two", b"bob")]
