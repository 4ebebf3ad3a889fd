"""The examples do what they say: each runs in its own process, as a reader would run it, and leaves no files behind.

Their whole output is compared, so that an example cannot drift away from the library unnoticed. The tour runs with few
events; its findings, messages and files are checked, never its speed.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import sawlog
from sawlog import Log

from . import warm
from .looping import Test, for_each

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"

PRINTED = {
    "segmented_log.py": """\
offsets 0 to 99 in 2 segments
read(57): record 57
rolled back: the record is longer than 820 bytes; the next offset is still 100
recovered: the next offset is 100
appended: {"offset": 100}
fetched: [{"offset": 99, "value": "record 99"}, {"offset": 100, "value": "by HTTP"}]
expired segments: 1 - start: 60
truncated: 97 is the last offset
""",
    "append_and_read.py": """\
first offset: 0
read(1): b'world' (('language', b'en'),)
log[-1]: b'greeting' None
scan: 0 b'greeting' b'hello'
scan: 1 None b'world'
scan: 2 b'greeting' None
no offset 3: there are 0 to 2
""",
    "batches_and_arrow.py": """\
batch: range(0, 3)
after the writer: 10003
table: range(10003, 10006)
columns: ['offset', 'timestamp', 'key', 'value']
records per key: {b'even': 5000, b'odd': 5000, b'a': 1, b'b': 1, b'c': 1}
longest value: 4 bytes
""",
    "stream_a_file.py": """\
offset 0: the same as the file: True
aborted: the upload broke off; of 5,120,086 bytes the log now holds 5,120,086
""",
    "follow_from_another_process.py": """\
reader: 0 written before the reader started
reader: 1 event 0
reader: 2 event 1
reader: 3 event 2
reader: 4 bye
writer: the reader ended with 0
""",
    "group_commit_asyncio.py": """\
acknowledged: 1000 different offsets: 1000
durable up to: 1000
in order for each client: True
batches written and synced: FEW
""",
    "time_travel.py": """\
readings: 48 in 7 segments
first one after eleven and a half hours: b'reading of hour 12'
trim drops: 12 and the log starts at 12
older than a day, dropped: 9 now from 21
by retention_ms, dropped: 14 now from 35
oldest reading kept: b'reading of hour 35' - next offset still 48
""",
    "exactly_once_producer.py": """\
sent: range(0, 3)
sent again: range(0, 3)
after a restart: range(0, 3)
the next batch: range(3, 4)
a gap: refused
the predecessor wakes up: refused
stored: [b'order 1', b'order 2', b'order 3', b'order 4', b'order 5']
""",
    "topics_and_groups.py": """\
a key has its partition: {2}
first member: took 103 and committed 50
second member: took the other 53
members now: 0 lag: 0
after rewinding: 103
""",
    "transactions.py": """\
committed: {'orders': 1, 'stock': 1}
aborted: not that many {'orders': 1, 'stock': 1}
attempt 1 replayed: False {'orders': 2, 'stock': 1}
attempt 2 replayed: True {'orders': 2, 'stock': 1}
""",
    "typed_orders.py": """\
orders/0 offset 1: the value cannot be decoded: id: expected an integer, got 'two'
total: 18.75
set aside: b'{"id": "two"}' of offset 1
""",
    "dead_letter_queue.py": """\
first worker: died with b'resize'
second worker: b'resize' delivery 2
second worker: b'publish' delivery 1
second worker: b'publish' delivery 2
second worker: b'impossible' delivery 1
second worker: b'impossible' delivery 2
second worker: b'impossible' delivery 3
dead: b'impossible' b'released after 3 deliveries'
put back: 1
after the fix: b'impossible' delivery 1
""",
    "compaction.py": """\
298 records removed; 1 segment left
297 b'apples' b'199 cents'
298 b'pears' b'199 cents'
300 b'plums' None
there is no record at offset 0: it was removed by compaction, or its transaction was aborted; the next is at 297
""",
    "first_week/01_http_to_group.py": """\
consumer ended with -9 - at least 7 events have their bill
consumer ended with -9 - at least 20 events have their bill
""",
    "first_week/02_two_writers.py": """\
ended with: [0, 0]
records: 20000
web has all its records, in its order: True
worker has all its records, in its order: True
""",
    "first_week/03_asyncio_service.py": """\
lines consumed: 1000 - stored: 1000
""",
    "first_week/05_exactly_once_copy.py": """\
invoices: 5000 as they should be: True
audited: 5000
""",
    "first_week/06_replay_since_yesterday.py": """\
billing has read: 72
audit reads since yesterday: 24
billing goes back to offsets: {('clicks', 0): 29, ('clicks', 1): 19}
billing reads again: 24 - lag: 0
the oldest of them: b'24 hours ago'
""",
    "first_week/07_move_a_kafka_topic_in.py": """\
records moved so far: 1000 - the first: (('shop', b'7'),)
records moved so far: 2000 - the first: (('shop', b'7'),)
""",
    "first_week/09_sql_over_the_last_hour.py": """\
ada 20 157.5
customer 9 4 39.0
customer 6 4 36.0
orders in the last hour: 60 of 600
""",
}

#: The ones that need Spark.
PRINTED_BY_SPARK = {
    "first_week/10_spark_aggregation.py": "".join(
        f"12:0{minute} {country} 9900\n" for minute in range(3) for country in ("DE", "FR", "PT")
    )
    + "cents in all: 89100 of 89100\n",
}

#: The README's promise about the first-week tasks: their number, and the maximum lines of a program.
TASKS, TASK_LINES = 10, 40

#: Environment variables that change the output of programs.
_LOUD = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "PYTHONWARNINGS")


#: Warnings are errors, except that a kernel may be interpreted.
WARNINGS = ("error", "ignore::RuntimeWarning")


@dataclass(frozen=True, slots=True)
class Place:
    """An empty working directory for a program, and a separate directory for its temporary files."""

    work: Path
    temporary: Path

    def environment(self, **more: str) -> dict[str, str]:
        """Ours, without what would change the output."""
        kept = {name: value for name, value in os.environ.items() if name not in _LOUD}
        return kept | {"TMPDIR": str(self.temporary), "PYTHONIOENCODING": "utf-8"} | more

    def run(self, *arguments: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        """A Python program, to its end. Its warnings are errors, except that a kernel may be interpreted."""
        return subprocess.run(
            [sys.executable, *(f"-W{each}" for each in WARNINGS), *map(str, arguments)],
            cwd=self.work,
            env=self.environment(**more),
            capture_output=True,
            encoding="utf-8",
            timeout=300,
            check=False,
        )

    def left(self) -> list[Path]:
        """Return the files that a program left behind."""
        return [*self.work.iterdir(), *self.temporary.iterdir()]


def make_place(path: Path) -> Place:
    place = Place(path / "work", path / "temporary")
    place.work.mkdir()
    place.temporary.mkdir()
    return place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_place(tmp_path)


def assert_succeeded(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stderr == ""


def assert_printed(name: str, done: subprocess.CompletedProcess[str], place: Place) -> None:
    assert_succeeded(done)
    printed = re.sub(r"(?<=synced: )\d{1,2}$", "FEW", done.stdout, flags=re.MULTILINE)
    assert printed == PRINTED[name]
    assert place.left() == []


#: Examples that take two seconds of CPU or more, because they start several processes of their own, Kafka's client or
#: DuckDB. They run in the slow tier. The quick tier has follow_from_another_process.py and dead_letter_queue.py, which
#: start processes as well.
HEAVY = {
    "first_week/01_http_to_group.py",
    "first_week/02_two_writers.py",
    "first_week/05_exactly_once_copy.py",
    "first_week/07_move_a_kafka_topic_in.py",
    "first_week/09_sql_over_the_last_hour.py",
}
LIGHT = [name for name in PRINTED if name not in HEAVY]

#: A forger who puts the byte back: there is no damage to find, and the tour must not say that it found some. The two
#: acts that neither write nor read the log in question are left out.
FORGERY = """\
import sys
from pathlib import Path
import tour

def forge(copy, real=tour.damaging.forge):
    forgery = real(copy)
    file = next(Path(copy).glob(forgery.file))
    file.write_bytes(file.read_bytes().replace(forgery.after, forgery.before))
    return forgery

tour.damaging.forge = forge
tour.acknowledging.play = tour.killing.play = lambda *given: None
sys.exit(tour.main(["--events", "1000"]))
"""

#: Arguments that the tour rejects, and its messages.
REFUSED = {
    "few": (("--events", "999"), "at least 1,000"),
    "full": (("--keep", "full"), "not an empty directory"),
    "misspelt": (("--evnts",), "usage:"),
}

Forked = dict[str, tuple[subprocess.CompletedProcess[str], Place]]


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Forked:
    """Every program that a quick test looks at, each in a process that was forked from one that has imported the
    library; by name."""
    done: Forked = {}

    def add(name: str, *arguments: str, full: bool = False) -> None:
        place = make_place(tmp_path_factory.mktemp("example"))
        if full:
            (place.work / "full").mkdir()
            (place.work / "full" / "precious").write_text("keep me")
        ended = warm.run(arguments, cwd=place.work, environment=place.environment(), warnings=WARNINGS, timeout=300)
        done[name] = ended, place

    for each in LIGHT:
        add(each, str(EXAMPLES / each))
    add("help", str(EXAMPLES / "tour.py"), "--help")
    add("forgery", "-c", f"import sys\nsys.path.insert(0, {str(EXAMPLES)!r})\n{FORGERY}")
    for each, (arguments, _) in REFUSED.items():
        add(each, str(EXAMPLES / "tour.py"), *arguments, full=True)
    add("demo", str(EXAMPLES / "demo.py"), "--output", "full", full=True)
    return done


# One process for each program that a test of this file looks at.
@pytest.mark.costly
@pytest.mark.group("examples")
def test_examples_print_what_they_promise_and_leave_nothing(forked: Forked) -> None:
    for name in LIGHT:
        assert_printed(name, *forked[name])


@pytest.mark.slow  # a second for each; the quick tier forks all but the heavy ones
@pytest.mark.parametrize("name", PRINTED)
def test_example_that_is_started_alone_prints_what_it_promises(name: str, place: Place) -> None:
    assert_printed(name, place.run(EXAMPLES / name), place)


@pytest.mark.slow
@pytest.mark.group("spark")
@pytest.mark.parametrize("name", PRINTED_BY_SPARK)
def test_example_with_spark_prints_what_it_promises(name: str, place: Place) -> None:
    done = place.run(EXAMPLES / name)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout == PRINTED_BY_SPARK[name]
    assert list(place.work.iterdir()) == []


def test_every_example_is_tested_and_listed() -> None:
    scripts = {
        str(path.relative_to(EXAMPLES)) for folder in (".", "first_week") for path in EXAMPLES.glob(f"{folder}/*.py")
    }
    listed = set(re.findall(r"^\|(?: \d+ \|)? `([\w/]+\.py)`", listing(), re.MULTILINE))
    assert scripts == listed == {*PRINTED, *PRINTED_BY_SPARK, "tour.py", "demo.py"}


def listing() -> str:
    return (EXAMPLES / "README.md").read_text(encoding="utf-8")


def test_tasks_of_a_first_week_are_short_programs() -> None:
    tasks = {int(number): name for number, name in re.findall(r"^\| (\d+) \| `([\w/]+\.py)`", listing(), re.MULTILINE)}
    assert list(tasks) == list(range(1, TASKS + 1))
    lengths = {name: len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) for name in tasks.values()}
    assert {name: lines for name, lines in lengths.items() if lines > TASK_LINES} == {}


# --- the tour of the engine


@dataclass(frozen=True, slots=True)
class Played:
    """One run of the tour and the files that it kept."""

    done: subprocess.CompletedProcess[str]
    place: Place

    @property
    def kept(self) -> Path:
        return self.place.work / "kept"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    place = make_place(tmp_path_factory.mktemp("tour"))
    return Played(place.run(EXAMPLES / "tour.py", "--events", "1000", "--keep", "kept"), place)


def whole_tour(test: Test) -> Test:
    """Mark a test of a whole tour. It takes three seconds and kills a process on the way; the quick tier plays three of
    the acts (`FORGERY`)."""
    marked: Test = pytest.mark.slow(pytest.mark.group("tour")(test))
    return marked


def control_characters(text: str) -> set[str]:
    return {character for character in text if (character < " " and character != "\n") or character == "\x7f"}


@whole_tour
def test_tour_holds_all_its_checks(played: Played) -> None:
    assert_succeeded(played.done)
    ticks = played.done.stdout.count("✓")
    assert ticks > 10
    assert f"All {ticks} checks held." in played.done.stdout


@whole_tour
def test_tour_without_a_terminal_is_plain(played: Played) -> None:
    lines = played.done.stdout.splitlines()
    assert control_characters(played.done.stdout) == set()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line != line.rstrip()] == []


@whole_tour
def test_tour_shows_every_act(played: Played) -> None:
    titles = re.findall(r"^(\d)  (\w+) ─+$", played.done.stdout, re.MULTILINE)
    assert titles == list(zip("123456", ("Write", "Read", "Acknowledge", "Kill", "Damage", "Summary"), strict=True))


@whole_tour
def test_tour_keeps_what_it_is_asked_to_keep(played: Played) -> None:
    with Log.open(played.kept / "orders", mode="r") as log:
        assert (len(log), log.verify().ok) == (1000, True)
        assert b'"order":999,' in log[-1].value
    assert sorted(path.name for path in played.kept.iterdir()) == ["damaged", "killed", "orders", "receipts"]
    assert list(played.place.temporary.iterdir()) == []


@whole_tour
def test_tour_really_killed_a_writer_in_the_middle_of_a_record(played: Played) -> None:
    torn = list((played.kept / "killed").glob("*.torn"))
    assert [path.stat().st_size > 1_000_000 for path in torn] == [True]
    with Log.open(played.kept / "killed", mode="r") as log:
        assert log[-1].value == b"life goes on"
        said = re.search(r"had acknowledged (\d+) records", played.done.stdout)
        assert said is not None
        assert len(log) > int(said[1]) > 100


@whole_tour
def test_tour_really_damaged_one_byte_of_the_copy(played: Played) -> None:
    differing = []
    for path in (played.kept / "orders").glob("*.log"):
        pairs = zip(path.read_bytes(), (played.kept / "damaged" / path.name).read_bytes(), strict=True)
        differing += [(path.name, position) for position, (good, bad) in enumerate(pairs) if good != bad]
    assert len(differing) == 1
    name, position = differing[0]
    assert f"{name}, byte {position:,}" in played.done.stdout
    with Log.open(played.kept / "damaged", mode="r") as log:
        assert len(log.verify().problems) == 1


@pytest.mark.slow  # a whole tour; the quick tier plays three of its acts
def test_tour_speaks_ascii_where_there_is_nothing_else_and_removes_its_directory(place: Place) -> None:
    done = place.run(EXAMPLES / "tour.py", "--events", "1000", PYTHONIOENCODING="ascii")
    assert_succeeded(done)
    assert done.stdout.isascii()
    assert "US  ####" in done.stdout
    assert "checks held." in done.stdout
    assert place.left() == []


@pytest.mark.group("examples")
def test_tour_fails_when_a_check_fails(forked: Forked) -> None:
    done, place = forked["forgery"]
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.count("✗") == 3
    assert re.search(r"3 of \d+ checks FAILED:", done.stdout)
    assert re.findall(r"^\d  (\w+) ─+$", done.stdout, re.MULTILINE) == ["Write", "Read", "Damage", "Summary"]
    assert done.stdout.count("✓") > 3
    assert control_characters(done.stdout) == set()
    assert place.left() == []


@pytest.mark.group("examples")
@for_each("name", REFUSED)
def test_tour_refuses_what_it_cannot_do(name: str, forked: Forked) -> None:
    done, place = forked[name]
    assert (done.returncode, done.stdout) == (2, "")
    assert REFUSED[name][1] in done.stderr
    assert [path.name for path in (place.work / "full").iterdir()] == ["precious"]


@pytest.mark.group("examples")
def test_tour_help_names_every_act(forked: Forked) -> None:
    done, _ = forked["help"]
    assert done.returncode == 0
    for word in ("Write", "Read", "Acknowledge", "Kill", "Damage", "--events", "--keep", "examples:"):
        assert word in done.stdout


def read_to_the_end(fd: int) -> str:
    """Everything that a terminal was sent; on Linux its end is an error, elsewhere it is empty."""
    parts = []
    while True:
        try:
            part = os.read(fd, 65536)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode("utf-8")


@pytest.mark.slow  # a whole tour; the quick tier plays three of its acts
def test_tour_in_a_terminal_of_eighty_columns_is_coloured_and_never_wraps(place: Place) -> None:
    ours, theirs = pty.openpty()
    environment = place.environment(TERM="xterm-256color", COLUMNS="80", LINES="24")
    command = [sys.executable, str(EXAMPLES / "tour.py"), "--events", "1000"]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, cwd=place.work, env=environment) as process:
        os.close(theirs)
        shown = read_to_the_end(ours)
    os.close(ours)
    assert process.returncode == 0
    assert "\x1b[1;32m✓" in shown
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "1,000 orders as JSON" in plain
    assert max(len(line) for line in re.split(r"[\r\n]+", plain)) <= 80
    assert place.left() == []


def without_kernel(path: Path) -> Path:
    """A copy of the library as it is where there was no compiler."""
    shutil.copytree(
        Path(sawlog.__file__).parent, path / "sawlog", ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    )
    return path


@pytest.mark.slow  # a whole tour; the quick tier has the interpreted kernel in tests/batch
def test_tour_runs_with_the_interpreted_kernel_and_says_so(place: Place, tmp_path: Path) -> None:
    library = without_kernel(tmp_path / "library")
    done = place.run(EXAMPLES / "tour.py", "--events", "1000", PYTHONPATH=str(library))
    assert_succeeded(done)
    assert "interpreted kernel" in done.stdout
    assert "1,000 orders as JSON" in done.stdout


@pytest.mark.slow
def test_tour_lowers_the_number_of_events_by_itself_where_the_kernel_is_interpreted(
    place: Place, tmp_path: Path
) -> None:
    library = without_kernel(tmp_path / "library")
    done = place.run(EXAMPLES / "tour.py", PYTHONPATH=str(library))
    assert_succeeded(done)
    assert "20,000 orders" in done.stdout
    assert "20,000 orders as JSON" in done.stdout


# --- the demo, which needs Spark


@pytest.mark.slow
@pytest.mark.group("spark")
def test_demo_loses_and_doubles_nothing_and_leaves_a_table_and_a_picture(place: Place) -> None:
    done = place.run(EXAMPLES / "demo.py", "--events", "6000", "--sales", "30000")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert re.search(r"^ +sent by a Kafka client +6,000 events", done.stdout, re.MULTILINE)
    assert "windows expected, 0 missing" in done.stdout
    assert "✗" not in done.stdout
    assert re.search(r"Spark, table and log: [\d.]+ million events/s, [\d.]+ × Parquet", done.stdout)
    assert re.search(r"SQL, table and log: [\d.]+ million events/s, [\d.]+ × Parquet", done.stdout)
    kept = place.work / "demo-output"
    assert (kept / "revenue.csv").read_text().startswith("minute,category,clicks,orders,revenue_cents")
    assert (kept / "revenue.svg").read_text().startswith("<svg")


@pytest.mark.group("examples")
def test_demo_refuses_to_replace_what_is_not_its_own(forked: Forked) -> None:
    done, place = forked["demo"]
    assert (done.returncode, done.stdout) == (2, "")
    assert "not of an earlier run" in done.stderr
    assert (place.work / "full" / "precious").read_text() == "keep me"
