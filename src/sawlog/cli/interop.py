"""`sawlog import` and `sawlog export`: copy other systems' logs into topics, and topics into their formats."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import typer

from ..display import counted, duration_text, rate_text, size_text
from ..units import size_bytes
from . import CORRUPT
from .options import DirectoryData, Output, Topic, argument, flag, named_values, option, parsed
from .output import Column, OutputFormat, Printer, ProgressBar, columns, note
from .parsing import time_ms
from .stores import open_directory
from .topic import Settings, parse_settings

if TYPE_CHECKING:
    from ..interop import Detection, ForeignLog, LogLocation


#: The supported systems.
System = Literal["kafka", "laminarmq", "rustlog", "gumlog", "plain"]

OnDamage = Literal["stop", "skip"]

#: Option values that are numbers; longer ones are ids.
_SMALL_NUMBER = re.compile(r"[0-9]{1,10}")
_OFFSETS = columns("partition", Column("start_offset", "from"), Column("next_offset", "to"))
_SOURCE = [
    Column("findings", shown=lambda found: str(len(found)) if found else "none"),
    Column("path", "source", cut=False),
]
_IMPORTED = columns("topic", *_OFFSETS, "records size_bytes", *_SOURCE)
_TO_IMPORT = columns("topic", *_OFFSETS, "size_bytes", Column("action", cut=False), *_SOURCE)
_TO_EXPORT = columns(*_OFFSETS, "size_bytes path")
_EXPORTED = columns(*_OFFSETS, "records size_bytes", Column("files", shown=lambda files: str(len(files))), "path")
#: Columns of the machine-readable output; the table prints these as separate lines.
_REMARKS = columns("dropped notes")


# --- import


def import_(
    data: DirectoryData,
    source: Path = argument("SOURCE", "The other system's directory: one log, one topic, or all topics.", ...),
    topic: str | None = argument(
        "[TOPIC]", "The topic to import, if the source has several; otherwise the name of the new topic."
    ),
    system: System | None = option("--format SYSTEM", "The system that wrote the log.  [default: detected]"),
    settings: Settings = None,
    on_damage: OnDamage = option(
        "--on-damage stop|skip", "Stop at records that cannot be read, or skip them and continue.", "stop"
    ),
    timestamp: str | None = option(
        "--timestamp TIME", "The timestamp of records from systems that store none.  [default: now]"
    ),
    dry_run: bool = flag("--dry-run", "Show what would be imported; write nothing."),
    output: Output = "table",
) -> None:
    """Copy another system's logs into topics and keep their offsets. Run it again to continue where it stopped.

    \b
    Systems (--format):
      kafka       the log directory of a stopped broker, or one partition of it (orders-0); batches stay unchanged
      laminarmq   .store and .index, dense index, CRC-32
      rustlog     topics/<name>/partition-<n>, .log and .index
      gumlog      .store and .index, protobuf records
      plain       a segmented log without an index, addressed by byte position

    A missing topic is created with the settings of --set. An existing topic is continued if it holds the beginning of
    the same log. All data is checked, and problems are listed. A torn end, left by a crash, is discarded. Other damage
    stops the import; everything before it is stored. With --on-damage skip, the import skips damaged records,
    continues, and exits with 4. The source is never modified.

    \b
    Examples:
      sawlog import /var/lib/kafka -d data --dry-run
      sawlog import /var/lib/kafka -d data
      sawlog import /var/lib/kafka orders -d data --set segment.bytes=256MiB
      sawlog import /var/lib/kafka/orders-0 old-orders -d data
      sawlog import ./commit_log events -d data --format laminarmq --on-damage skip
    """
    from .. import interop
    from ..interop.detection import detect_required

    stamp = parsed("--timestamp", timestamp, time_ms)
    if not source.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"no such directory: {source}")
    found = detect_required(source, system)
    rename, only = _names(found, topic)
    for ignored in found.ignored:
        if only is None or ignored.startswith(f"{only}-"):
            note(f"not imported: {ignored}")
    given = parse_settings(settings)
    if dry_run:
        _show_plan(found, data, rename, only, on_damage, output)
        return
    began = monotonic()
    with open_directory(data, "w", create=True) as store, ProgressBar("importing", 0, "bytes") as bar:
        report = interop.import_log(
            source,
            store,
            format=found.format,
            topic=rename,
            only=only,
            settings=given,
            damage=on_damage,
            timestamp=stamp,
            progress=bar.reach,
        )
    rows = [
        {
            "topic": Path(each.target).parent.name,
            "partition": each.location.partition,
            "start_offset": each.start_offset,
            "next_offset": each.next_offset,
            "records": each.records,
            "size_bytes": each.size_bytes,
            "findings": [str(finding) for finding in each.report],
            "path": each.location.path,
        }
        for each in report.logs
    ]
    printer = Printer(output)
    printer.rows(rows, _IMPORTED, empty="nothing to import")
    for each in report.logs:
        for finding in each.report:
            note(f"!! {each.location.path}/{finding} ({finding.outcome})")
    seconds = max(monotonic() - began, 1e-9)
    rate = f"{size_text(report.size_bytes / seconds)}/s, {rate_text(report.records / seconds)} records/s"
    printer.remark(
        f"{counted(report.records, 'record')} from {report.format} in {duration_text(seconds * 1000)}: {rate}"
    )
    if any(finding.outcome == "lost" for finding in report.findings):
        raise typer.Exit(CORRUPT)


def _names(found: Detection, topic: str | None) -> tuple[str | None, str | None]:
    """Return (name of the topic in the store, topic to take from the source)."""
    known = dict.fromkeys(location.topic for location in found.logs)
    if topic is None or topic in known:
        return None, topic
    if len(known) <= 1:
        return topic, None
    there = ", ".join(name for name in known if name is not None)
    why = next((f" ({each})" for each in found.ignored if each.startswith(f"{topic}-")), "")
    raise FileNotFoundError(errno.ENOENT, f"no topic {topic!r} in {found.path}{why}; its topics are {there}")


def _show_plan(
    found: Detection, data: Path, rename: str | None, only: str | None, on_damage: OnDamage, output: OutputFormat
) -> None:
    """Show each log and the action an import would take. Writes nothing, not even a new store."""
    printer = Printer(output)
    printer.remark(f"{found.path}: {found.format}, {found.kind} ({found.why})")
    locations = [location for location in found.logs if only is None or location.topic == only]
    rows = list(_planned(found.format, locations, rename, on_damage, _existing(data)))
    printer.rows(rows, _TO_IMPORT, empty="nothing to import")
    printer.remark("dry run: nothing was written")


def _planned(
    system: str, locations: list[LogLocation], rename: str | None, on_damage: OnDamage, ends: dict[tuple[str, int], int]
) -> Iterator[dict[str, Any]]:
    from .. import interop

    for location in locations:
        name = rename or location.topic or Path(location.path).resolve().name
        with interop.open(location.path, format=system, damage=on_damage) as log:
            yield {
                "topic": name,
                "partition": location.partition,
                "start_offset": log.lowest_offset,
                "next_offset": log.next_offset,
                "size_bytes": log.size_bytes,
                "action": _action(log, ends.get((name, location.partition))),
                "findings": [str(finding) for finding in log.report],
                "path": location.path,
            }


def _action(log: ForeignLog, end: int | None) -> str:
    if end is None:
        return "create the topic and copy all"
    if end in (0, log.lowest_offset):
        return "copy all"
    return "nothing new" if end >= log.next_offset else f"continue at {end}"


def _existing(data: Path) -> dict[tuple[str, int], int]:
    """Return the end offset of each partition in the store; empty if the store does not exist yet."""
    if not (data / "sawlog.json").exists():
        return {}
    with open_directory(data) as store:
        return {(topic.name, n): topic.partition(n).next_offset for topic in store for n in range(topic.partitions)}


# --- export


def export(
    topic: Topic,
    data: DirectoryData,
    target: Path = argument("DIR", "The other system's data directory to write to.", ...),
    system: System = option("--format SYSTEM", "kafka, laminarmq, rustlog, gumlog or plain.", ...),
    given: list[str] | None = option(
        "--option -O NAME=VALUE", "A format option, such as segment_bytes=64MiB; can be repeated."
    ),
    dry_run: bool = flag("--dry-run", "Show what would be written; write nothing."),
    output: Output = "table",
) -> None:
    """Write all partitions of a topic in another system's format and directory layout.

    A partition's directory appears only when it is complete; a directory that holds records is never changed. Fields
    that the other system cannot store (keys, headers, timestamps) are counted and reported.

    With kafka the batches stay unchanged, and Kafka's DumpLogSegments reads them. To let a broker serve them: create
    the topic there with the same number of partitions, stop the broker, export into its log directory, and start the
    broker.

    \b
    Options (--option):
      segment_bytes=SIZE             the maximum size of a file
      topic_id=ID                    kafka: the topic's id, if the directory does not have it
      cluster_id=ID, node_id=N       kafka: also write meta.properties

    \b
    Examples:
      sawlog export orders ./out -d data --format kafka
      sawlog export orders /var/lib/kafka -d data --format kafka --dry-run
      sawlog export orders ./out -d data --format gumlog --option segment_bytes=16MiB
    """
    from .. import interop

    options = _options(given)
    printer = Printer(output)
    with open_directory(data) as store:
        found = store.topic(topic)
        if dry_run:
            rows = [_export_row(interop.formats(), system, found, number, target) for number in range(found.partitions)]
            printer.rows(rows, _TO_EXPORT)
            printer.remark("dry run: nothing was written")
            return
        began = monotonic()
        with ProgressBar("exporting", 0, "bytes") as bar:
            reports = interop.export_topic(found, target, format=system, progress=bar.reach, **options)
    shown = _EXPORTED if printer.for_people else [*_EXPORTED, *_REMARKS]
    rows = [
        {"partition": number, **{column.name: getattr(each, column.name) for column in shown[1:]}}
        for number, each in enumerate(reports)
    ]
    printer.rows(rows, shown)
    for number, each in enumerate(reports):
        for what, count in each.dropped.items():
            note(f"!! partition {number}: {system} cannot store {what}: dropped from {counted(count, 'record')}")
        for remark in each.notes:
            note(f"partition {number}: {remark}")
    seconds = max(monotonic() - began, 1e-9)
    records, size = sum(each.records for each in reports), sum(each.size_bytes for each in reports)
    printer.remark(f"{counted(records, 'record')}, {size_text(size)} to {target} in {duration_text(seconds * 1000)}")


def _options(given: list[str] | None) -> dict[str, Any]:
    """Parse `name=value` pairs: sizes with units and small integers become numbers, anything else stays text."""
    made: dict[str, Any] = {}
    for given_name, value in named_values(given, "--option", "NAME=VALUE, such as segment_bytes=64MiB"):
        name = given_name.replace(".", "_")
        if name.endswith("_bytes"):
            made[name] = parsed("--option", value, size_bytes)
        else:
            made[name] = int(value) if _SMALL_NUMBER.fullmatch(value) else value
    return made


def _export_row(formats: Any, system: System, topic: Any, number: int, target: Path) -> dict[str, Any]:
    log = topic.partition(number)
    chosen = next(each for each in formats if each.name == system)
    return {
        "partition": number,
        "start_offset": log.lowest_offset,
        "next_offset": log.next_offset,
        "size_bytes": log.size_bytes,
        "path": f"{target}/{chosen.partition_path(topic.name, number)}",
    }
