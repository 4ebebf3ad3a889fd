"""Run and judge a history: a broker, actors, kills at random moments, and the final content of the topics.

The seed determines which processes are killed and when. Their progress until then depends on the machine, so a run
cannot be repeated exactly. The directory of a run with a violation is kept, with the notes of all actors.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ..serving import PATIENCE_S, ROOT, Serving
from .actors import COPIERS, INPUT, MIRROR, OUTPUT, PARTITIONS, READERS, common
from .checker import Copied, History, Numbered, Violation, mirrored, violations

#: Who takes part.
CAST = {"producer": 2, "copier": 2, "reader": 2}
#: The same, with the library next to the broker.
BESIDE = {**CAST, "appender": 1, "writer": 1}
#: The same, with Spark, whose processes take seconds to start.
WITH_SPARK = {**BESIDE, "spark": 1}
#: Actors that write to `in`.
SOURCES = ("producer", "appender", "writer")
#: Time for copiers and readers to catch up after the last kill, and time without progress before they count as
#: stuck. Longer than sessions and transactions of the dead last, and than Spark needs to start.
DRAIN_S, STILL_S, SPARK_STILL_S = 300.0, 30.0, 120.0


@dataclass(slots=True)
class Outcome:
    """Result of a run."""

    violations: list[Violation]
    kills: Counter[str] = field(default_factory=Counter)
    counts: dict[str, int] = field(default_factory=dict)
    #: Duration of each part.
    seconds: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        killed = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        counted = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.seconds.items())
        return f"killed: {killed or 'nobody'}; {counted}; {len(self.violations)} violations; {took}"

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """Measure the duration of a block."""
        began = time.monotonic()
        yield
        self.seconds[what] = time.monotonic() - began


class Actor:
    """A role: a process and its successors."""

    def __init__(self, kind: str, number: int, broker: Serving, directory: Path) -> None:
        self.kind = kind
        self._name = f"{kind}{number}"
        self._broker, self._directory = broker, directory
        self._lives = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, seed: int) -> None:
        """Start a successor with its own diary."""
        self._lives += 1
        name = f"{self._name}.{self._lives}"
        command = [sys.executable, "-m", "tests.broker.history.actors", self.kind, name]
        command += [self._broker.address, str(self._broker.data), str(self._directory / f"{name}.jsonl"), str(seed)]
        with (self._directory / f"{name}.err").open("wb") as errors:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # Spark is a JVM, and Pythons
            self._process.wait()
            self._process = None

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        if self._process is not None:
            self._process.terminate()

    def ended(self) -> str | None:
        """Wait for the exit after SIGTERM and return the failure, if any."""
        if self._process is None:
            return None
        try:
            code = self._process.wait(PATIENCE_S + 20)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"{self._name} did not end"
        self._process = None
        # A process that has just started may not handle SIGTERM yet.
        return None if code in (0, -signal.SIGTERM) else f"{self._name} ended with {code}: {self._errors()}"

    def check(self) -> None:
        """Raise unless the process runs."""
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(f"{self._name} exited: {self._errors()}")

    def _errors(self) -> str:
        return (self._directory / f"{self._name}.{self._lives}.err").read_text(errors="replace")[-2000:]


#: Kills somebody.
Strike = Callable[[random.Random, Serving, list[Actor], Outcome], None]


def play(
    directory: Path,
    *,
    kills: int,
    seed: int,
    broker: Serving | None = None,
    cast: Mapping[str, int] = CAST,
    strike: Strike | None = None,
) -> Outcome:
    """Run one history with `kills` kills, mostly of the broker unless `strike` chooses differently, and judge it."""
    strike = _strike if strike is None else strike
    rng = random.Random(seed)
    diaries = directory / "diaries"
    diaries.mkdir(parents=True)
    broker = Serving(directory / "data") if broker is None else broker
    outcome = Outcome([])
    actors = [Actor(kind, number, broker, diaries) for kind, count in cast.items() for number in range(count)]
    with broker:
        _create(broker.address)
        try:
            with outcome.timing("kills"):
                for actor in actors:
                    actor.start(rng.getrandbits(32))
                for _ in range(kills):
                    time.sleep(rng.uniform(0.2, 1.2))
                    strike(rng, broker, actors, outcome)
                time.sleep(0.5)
            drained, trouble = _drain(broker, actors, outcome)
        finally:
            for actor in actors:
                actor.kill()
        with outcome.timing("reading"):
            history = remembered(diaries)
            inputs, outputs = _numbered(broker.address), _copied(broker.address, OUTPUT)
            mirror = _copied(broker.address, MIRROR) if "spark" in cast else None
    found = violations(history, inputs, outputs, is_copied="copier" in drained, is_read="reader" in drained)
    if mirror is not None:
        found += mirrored(inputs, mirror, is_drained="spark" in drained)
    outcome.violations += [Violation("stuck", each) for each in trouble] + found
    outcome.counts = {
        "sent": sum(history.sent.values()),
        "acknowledged": len(history.acknowledged),
        "transactions": len(history.attempts),
        "committed": len(history.committed),
        "aborted": len(history.aborted),
        "copied": len(outputs),
        "seen": sum(map(len, history.sessions)),
        "mirrored": len(mirror or ()),
    }
    return outcome


def _create(address: str) -> None:
    admin = AdminClient(common(address))  # keep a reference: its futures fail when it is collected
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (INPUT, OUTPUT, MIRROR)]).values():
        future.result(PATIENCE_S)


def kill_a_client(rng: random.Random, broker: Serving, actors: list[Actor], outcome: Outcome) -> None:
    """Kill a client and start its successor. The broker continues."""
    for actor in actors:
        actor.check()
    assert broker.is_running, f"the broker exited\n{broker.said[-4000:]}"
    _replace(rng, rng.choice(actors), outcome)


def _strike(rng: random.Random, broker: Serving, actors: list[Actor], outcome: Outcome) -> None:
    """Kill a process and start its successor."""
    for actor in actors:
        actor.check()
    assert broker.is_running, f"the broker exited\n{broker.said[-4000:]}"
    if rng.random() < 0.7:
        if rng.random() < 0.15:
            outcome.kills["broker (SIGTERM)"] += 1
            broker.stop()
        else:
            outcome.kills["broker"] += 1
            broker.kill()
        if rng.random() < 0.3:  # two at once
            _replace(rng, rng.choice(actors), outcome)
        time.sleep(rng.choice([0, 0, 0.3]))
        broker.start()
    else:
        _replace(rng, rng.choice(actors), outcome)


def _replace(rng: random.Random, actor: Actor, outcome: Outcome) -> None:
    actor.kill()
    outcome.kills[actor.kind] += 1
    actor.start(rng.getrandbits(32))


# --- the end


def _drain(broker: Serving, actors: list[Actor], outcome: Outcome) -> tuple[set[str], list[str]]:
    """Stop the writers of `in`, then the others once they have caught up. Return which did, and the failures."""
    address, drained = broker.address, set[str]()
    with outcome.timing("ending sources"):
        trouble = _end_all(actors, *SOURCES)
    ends = _ends(address, INPUT)
    kinds = {each.kind for each in actors}
    with outcome.timing("copying the rest"):
        if "copier" in kinds and _reaches(address, COPIERS, INPUT, ends):
            drained.add("copier")
        trouble += _end_all(actors, "copier")
    # A control record is the last of a partition; a reader's position ends before or after it.
    last = {number: _last(address, number) + 1 for number in range(PARTITIONS)}
    with outcome.timing("reading the rest"):
        if "reader" in kinds and _reaches(address, READERS, OUTPUT, last):
            drained.add("reader")
        trouble += _end_all(actors, "reader")
    if "spark" in kinds:
        with outcome.timing("Spark's rest"):
            if _holds(address, MIRROR, sum(ends.values())):
                drained.add("spark")
            trouble += _end_all(actors, "spark")
    late = kinds - drained - set(SOURCES)
    return drained, trouble + [f"{kind} did not come to the end of {ends}" for kind in late]


def _end_all(actors: list[Actor], *kinds: str) -> list[str]:
    chosen = [each for each in actors if each.kind in kinds]
    for actor in chosen:
        actor.terminate()
    return [trouble for actor in chosen if (trouble := actor.ended()) is not None]


def _committed(address: str, group: str, topic: str) -> dict[int, int]:
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, number) for number in range(PARTITIONS)])
    admin = AdminClient(common(address))
    found = admin.list_consumer_group_offsets([asked])[group].result(30)
    return {place.partition: max(place.offset, 0) for place in found.topic_partitions}


def _reaches(address: str, group: str, topic: str, ends: dict[int, int]) -> bool:
    """Return whether a group commits these offsets in time."""
    return _arrives(
        lambda: _committed(address, group, topic),
        lambda found: all(found.get(number, 0) >= end for number, end in ends.items()),
    )


def _holds(address: str, topic: str, wanted: int) -> bool:
    """Return whether a topic has `wanted` records in time."""
    return _arrives(lambda: _ends(address, topic), lambda found: sum(found.values()) >= wanted, SPARK_STILL_S)


def _arrives(
    look: Callable[[], dict[int, int]], is_there: Callable[[dict[int, int]], bool], still_s: float = STILL_S
) -> bool:
    """Poll until a condition holds; give up without progress."""
    began = moved = time.monotonic()
    seen: dict[int, int] = {}
    while not is_there(found := look()):
        now = time.monotonic()
        if found != seen:
            seen, moved = found, now
        if now - moved > still_s or now - began > DRAIN_S:
            return False
        time.sleep(0.2)
    return True


def _ends(address: str, topic: str) -> dict[int, int]:
    consumer = Consumer({**common(address), "group.id": "ends"})
    found = {
        number: consumer.get_watermark_offsets(TopicPartition(topic, number), 30)[1] for number in range(PARTITIONS)
    }
    consumer.close()
    return found


def _last(address: str, partition: int) -> int:
    """The offset of the last committed record of `out`; -1 if there is none."""
    return max((message.offset() for message in _messages(address, OUTPUT, [partition])), default=-1)


def _messages(address: str, topic: str, partitions: list[int]) -> Iterator[Any]:
    """Return all committed records."""
    consumer = Consumer(
        {
            **common(address),
            "group.id": "verdict",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    left, deadline = set(partitions), time.monotonic() + DRAIN_S
    while left:
        for message in consumer.consume(10_000, 1.0):
            if message.error() is None:
                yield message
            elif message.error().name() == "_PARTITION_EOF":
                left.discard(message.partition())
            else:
                raise KafkaException(message.error())
        assert time.monotonic() < deadline, f"{topic} cannot be read to its end: {left} are left"
    consumer.close()


def _numbered(address: str) -> list[Numbered]:
    made = []
    for message in _messages(address, INPUT, list(range(PARTITIONS))):
        key, _, number = message.value().decode().split("\0", 1)[0].rstrip("/").rpartition("/")
        made.append(Numbered(key, int(number), (message.partition(), message.offset())))
    return made


def copied(value: str, place: tuple[int, int]) -> Copied:
    """Parse a record of `out`."""
    attempt, partition, offset = value.rsplit("/", 2)
    return Copied(attempt, (int(partition), int(offset)), place)


def _copied(address: str, topic: str) -> list[Copied]:
    return [
        copied(message.value().decode(), (message.partition(), message.offset()))
        for message in _messages(address, topic, list(range(PARTITIONS)))
    ]


def remembered(diaries: Path) -> History:
    """Return the notes of all actors, of all their processes."""
    history = History()
    for path in sorted(diaries.glob("*.jsonl")):
        session: list[Copied] = []
        for line in path.read_bytes().split(b"\n")[:-1]:  # the last one is empty, or was cut short
            event = json.loads(line)
            if "session" in event:
                history.sessions.append(session)
                session = []
            elif "seen" in event:
                session.append(copied(event["seen"], (event["partition"], event["offset"])))
            else:
                _enter(history, event)
        history.sessions.append(session)
    return history


def _enter(history: History, event: dict[str, Any]) -> None:
    if "send" in event:
        history.sent[event["send"]] = event["below"]
    elif "ack" in event:
        history.acknowledged[event["ack"], event["number"]] = (event["partition"], event["offset"])
    elif "begin" in event:
        history.attempts[event["begin"]] = [(partition, offset) for partition, offset in event["sources"]]
    elif "committed" in event:
        history.committed.add(event["committed"])
    elif "aborted" in event:
        history.aborted.add(event["aborted"])
    elif "unite" in event:
        history.united.append([(key, event["number"]) for key in event["unite"]])
        for key in event["unite"]:
            history.sent[key] = max(history.sent.get(key, 0), event["number"] + 1)
    elif "united" in event:
        for index in range(PARTITIONS):
            history.acknowledged[f"{event['united']}/{index}", event["number"]] = None
    elif "refused" in event:
        history.refused.append(event["refused"])


def rounds(kills: int, per_round: int) -> Iterator[int]:
    """Divide kills into rounds, because the history to check grows with each round."""
    for _ in itertools.count():
        if kills <= 0:
            return
        yield min(kills, per_round)
        kills -= per_round


def keep(directory: Path, found: list[Violation]) -> None:
    """Write the verdict next to the history."""
    (directory / "violations.txt").write_text("\n".join(map(str, found)) + os.linesep, encoding="utf-8")
