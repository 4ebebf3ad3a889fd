"""Nothing acknowledged is lost, whenever and however the work ends. The long form: `python -m tests.faults`.

Here, every workload runs with the seed of this run (see seeds.py), some of those with readers, and is crashed at a few
of its changes within the time box; the seed decides which workloads come first. Seeds that have failed before are
replayed in every run (failing_seeds.py). The slow form takes all workloads, at every change.

The enumeration itself is tested, too: it finds planted bugs, and its findings can be replayed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from sawlog import Log, LogConfig

from .. import warm
from ..looping import for_each
from .__main__ import COMMANDS, main
from .crashes import WORKLOADS
from .device import Step
from .disk import FaultyStorage
from .enumeration import ENDINGS, Scenario, Workload, enumerate_crashes
from .failing_seeds import FAILING_SEEDS
from .readers import READERS
from .seeds import Box, repeat, seed_of_this_run, shuffled
from .stores import STORES
from .transactions import TRANSACTIONS
from .workloads import LOGS

ROOT = Path(__file__).resolve().parents[2]
#: Share of the scenarios of a workload that is tried; a store takes longer than a log.
SHARES = {
    "tests.faults.workloads": 0.015,
    "tests.faults.transactions": 0.006,
    "tests.faults.stores": 0.006,
    "tests.faults.readers": 0.0012,
}
#: These make few changes; the seed decides on the changes and the interrupts.
SEEDS = {"interrupted": 8}


def seeds_of(name: str) -> int:
    """Return the number of seeds for a workload."""
    return next((count for start, count in SEEDS.items() if name.startswith(start)), 1)


def few(scenario: Scenario, share: float = 1.0) -> bool:
    """Choose some scenarios, the same ones every time; a checksum costs far less than a `Random` for each."""
    return zlib.crc32(str(scenario).encode()) < SHARES[scenario.workload.partition(":")[0]] * share * 2**32


def very_few(scenario: Scenario) -> bool:
    """Choose few scenarios, for tests of the work itself."""
    return few(scenario, 0.2)


#: Workloads with a common time box: (workloads, seconds of CPU, minimum of scenarios).
#: All boxes together: 4 s; work that is not crashed takes 2 s more.
BOXES: dict[str, tuple[list[str], float, int]] = {
    **{f"logs-{part}": (shuffled(LOGS, "logs")[part::3], 0.7, 12) for part in range(3)},
    "stores": (shuffled([*TRANSACTIONS, *STORES], "stores"), 1.0, 8),
    "readers": (shuffled(READERS, "readers"), 1.2, 3),
}


def crashed(name: str, seed: int, wanted: Callable[[Scenario], bool], box: Box | None = None) -> int:
    """Do the work of one workload, crash it where that is wanted, and return the number of changes it makes."""
    kind = WORKLOADS[name]
    again = f"python -m tests.faults crashes --workload {name} --seed {seed} --scenarios 1; {repeat()}"

    def count(scenario: Scenario) -> None:
        if box is not None:
            box.tries += 1

    try:
        outcome = enumerate_crashes(kind, seed, wanted=wanted, on_scenario=count)
    except Exception as error:
        raise AssertionError(f"{name} is not as it should be before any crash; repeat with {again}") from error
    assert not outcome.violations, f"{outcome}\nrepeat with {again}"
    return outcome.steps


@pytest.mark.costly  # a time box
@pytest.mark.parametrize("part", BOXES)
def test_nothing_acknowledged_is_lost(part: str) -> None:
    names, cpu_s, least = BOXES[part]
    box = Box(cpu_s, least)
    for name in names:
        if not box.has_room:
            break  # the work itself takes time, also if nothing crashes
        seeds = range(seed_of_this_run(), seed_of_this_run() + seeds_of(name))
        changes = sum(crashed(name, seed, lambda scenario: box.has_room and few(scenario), box) for seed in seeds)
        assert changes > 3, f"{name} changes next to nothing; repeat with {repeat()}"
    box.check()


def test_every_workload_is_in_one_box() -> None:
    assert sorted(name for names, _, _ in BOXES.values() for name in names) == sorted(WORKLOADS)


@pytest.mark.costly  # one test for all seeds that have failed
@for_each(("name", "seed", "reason"), FAILING_SEEDS)
def test_a_seed_that_has_failed_does_not_fail_again(name: str, seed: int, reason: str) -> None:
    crashed(name, seed, few)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_nothing_acknowledged_is_lost_at_any_change_in_any_way(name: str) -> None:
    for seed in (101, 102, seed_of_this_run()):
        outcome = enumerate_crashes(WORKLOADS[name], seed, depth=3)
        assert set(outcome.counts) == set(ENDINGS)
        assert not outcome.violations, f"{outcome}\nrepeat with {repeat()}"


# --- the enumeration itself


class Ledger(Workload):
    """Numbers in a log, as in the documentation."""

    config: LogConfig | None = None

    def work(self, disk: FaultyStorage) -> None:
        with Log.open(disk.plain, self.config) as log:
            for number in range(4):
                log.append(b"%d" % number)
                self.promise.append(number)

    def recover(self, disk: FaultyStorage, promise: list[int], *, power_cut: bool) -> None:
        with Log.open(disk.plain, self.config) as log:
            found = [int(record.value or b"") for record in log]
            assert found[: len(promise)] == promise, "lost"
            log.append(b"%d" % len(found))
            promise[:] = [*found, len(found)]


class Hasty(Ledger):
    """Acknowledges before the data is durable."""

    config = LogConfig(durability="os")


class Forgetful(Ledger):
    """Recovers from one crash, and not from two."""

    def recover(self, disk: FaultyStorage, promise: list[int], *, power_cut: bool) -> None:
        log = Log.open(disk.plain, LogConfig(durability="os"))  # not closed cleanly: that would make it durable
        found = [int(record.value or b"") for record in log]
        assert found[: len(promise)] == promise, "lost"
        log.append(b"%d" % len(found))
        promise[:] = [*found, len(found)]


class Random(Ledger):
    """Its work and its ids are left to chance."""

    def work(self, disk: FaultyStorage) -> None:
        import uuid

        disk.replace(str(uuid.uuid4()), self.random.randbytes(self.random.randrange(2000)), durable=False)
        super().work(disk)
        self.promise.append(99)


def test_what_is_promised_too_early_is_found_after_a_power_cut_and_not_after_a_kill() -> None:
    outcome = enumerate_crashes(Hasty)
    assert outcome.violations
    assert {violation.scenario.mode for violation in outcome.violations if len(violation.crashes) == 1} >= {"lose"}
    assert not [each for each in outcome.violations if each.crashes[0].startswith("dies") and len(each.crashes) == 1]


def test_a_sound_ledger_keeps_its_promises() -> None:
    outcome = enumerate_crashes(Ledger, depth=3)
    assert not outcome.violations, str(outcome)
    assert outcome.steps > 10
    assert set(outcome.counts) == set(ENDINGS)


def test_a_second_crash_finds_what_the_first_does_not() -> None:
    assert not enumerate_crashes(Forgetful, depth=1).violations
    assert enumerate_crashes(Forgetful, depth=2).violations


def test_a_scenario_happens_again() -> None:
    outcome = enumerate_crashes(Random, seed=3)
    assert outcome.violations
    for violation in outcome.violations[:5]:
        wanted = violation.scenario

        def same(scenario: Scenario, wanted: Scenario = wanted) -> bool:
            return scenario == wanted

        [again] = enumerate_crashes(Random, seed=3, endings=(wanted.mode,), wanted=same).violations
        assert (str(again), again.crashes) == (str(violation), violation.crashes)


def test_the_line_that_is_printed_replays_the_violation() -> None:
    violation = enumerate_crashes(Hasty, seed=2, endings=["lose"]).violations[0]
    line = str(violation).splitlines()[-1].split()
    assert line[:4] == ["python", "-m", "tests.faults", "replay"]
    again = warm.run(line[1:], timeout=120)
    assert again.returncode == 1, again.stderr
    assert str(violation) in again.stdout
    assert "1 scenarios" in again.stdout


def test_the_work_is_the_same_whether_it_is_crashed_or_not() -> None:
    """Else a scenario would not happen again when it is the only one."""
    seed = seed_of_this_run()
    box = Box(0.5, 3)
    for name in box.fill(shuffled(WORKLOADS, "the same")):
        kind = WORKLOADS[name]
        steps = [enumerate_crashes(kind, seed, wanted=wanted).steps for wanted in (lambda scenario: False, very_few)]
        assert steps[0] == steps[1], f"{name}; repeat with {repeat()}"
    box.check()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [name for name in WORKLOADS if name.startswith(("interrupted", "ticking", "beside"))])
def test_what_comes_in_the_middle_comes_at_the_same_place_every_time(name: str) -> None:
    seed = seed_of_this_run()
    seen: list[list[str]] = [[], []]
    kind = WORKLOADS[name]
    for found, wanted in zip(seen, (lambda scenario: False, very_few), strict=True):

        def work(self: Workload, disk: FaultyStorage, found: list[str] = found) -> None:
            watch = disk.watch

            def noted(step: Step) -> None:
                found.append(str(step))
                if watch is not None:
                    watch(step)

            disk.watch = noted
            kind.work(self, disk)

        noting = type(kind.__name__, (kind,), {"work": work, "__module__": kind.__module__})
        enumerate_crashes(noting, seed, wanted=wanted)
    assert seen[0] == seen[1], repeat()


# --- the command


def test_the_command_counts_and_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crashes", "--scenarios", "60", "--workload", "syncing_os", "--seed", "5", "--depth", "1"]) == 0
    said = capsys.readouterr().out
    assert "0 violations" in said
    assert "reorder" in said


def test_the_commands_say_what_they_take(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("crashes", "errors"):
        assert name in COMMANDS
        with pytest.raises(SystemExit) as raised:
            main([name, "--help"])
        assert raised.value.code == 0
        assert "--seed" in capsys.readouterr().out
