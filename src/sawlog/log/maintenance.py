"""Maintenance of a log in use: retention, compaction, merging, recompression, scrubbing, tiering.

`maintain` runs the tasks that a policy (`MaintenanceConfig`) asks for and reports them. Each task can also be called
alone. Tasks work on sealed segments, concurrently with appends and reads, one at a time per log, and can be interrupted
safely at any point (rewrite.py describes how files are replaced).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..batch.compression import codec_id
from ..clock import Stopwatch, now_ms
from ..config import MaintenanceConfig
from ..display import counted
from ..errors import CorruptBatch, InvalidConfig, StorageError
from ..storage.counters import count, count_damage
from . import compaction, retention, rewrite, tiering
from .appender import Appender
from .compaction import CompactionReport, times_of
from .maintenance_state import load_state, store_state
from .rebatch import RewriteOptions
from .retention import RetentionReport
from .rewrite import SegmentsRemoved, TooLarge, detect_removal, locked
from .segment import Segment
from .segments import SegmentSet
from .tiering import ShippedSegments, TieringReport
from .verify import Checked, Problem, VerifyReport, verify_segment

#: Minimum number of small neighbours for a merge in the background: fewer would be rewritten again and again.
_MIN_RUN = 4
#: Recompression must save at least 5 % to be worth a new file.
_MAX_RECOMPRESSED_RATIO = 0.95


@dataclass(slots=True)
class MergeReport:
    """Result of merging small segments."""

    segments_before: int = 0
    segments_after: int = 0
    bytes_copied: int = 0

    def __bool__(self) -> bool:
        return self.segments_after < self.segments_before

    def __str__(self) -> str:
        return f"merged {counted(self.segments_before, 'segment')} into {self.segments_after}"


@dataclass(slots=True)
class RecompressionReport:
    """Result of recompressing sealed segments."""

    segments: int = 0
    bytes_before: int = 0
    bytes_after: int = 0

    def __bool__(self) -> bool:
        return self.segments > 0

    def __str__(self) -> str:
        return (
            f"recompressed {counted(self.segments, 'segment')}: {self.bytes_before:,} bytes became {self.bytes_after:,}"
        )


@dataclass(slots=True)
class ScrubReport(Checked):
    """Result of scrubbing: the segments read, and the damage found."""

    segments: int = 0
    size_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.segments > 0

    def __str__(self) -> str:
        verdict = "all good" if self.ok else counted(len(self.problems), "problem")
        return "\n  ".join([f"scrubbed {counted(self.segments, 'segment')}: {verdict}", *map(str, self.problems)])


@dataclass(slots=True)
class MaintenanceReport:
    """Maintenance of one log; a report is None if its task had nothing to do."""

    path: str
    retention: RetentionReport | None = None
    compaction: CompactionReport | None = None
    merge: MergeReport | None = None
    recompression: RecompressionReport | None = None
    scrub: ScrubReport | None = None
    tiering: TieringReport | None = None
    duration_ms: float = 0.0

    @property
    def actions(self) -> tuple[object, ...]:
        """Reports of the tasks that did something."""
        every = (self.retention, self.compaction, self.merge, self.recompression, self.scrub, self.tiering)
        return tuple(each for each in every if each is not None)

    def __bool__(self) -> bool:
        return bool(self.actions)

    def __str__(self) -> str:
        done = "; ".join(map(str, self.actions)) or "nothing to do"
        return f"{self.path}: {done}"


def maintain(
    appender: Appender, config: MaintenanceConfig, shipped: ShippedSegments | None = None
) -> MaintenanceReport:
    """Run the tasks that are due. `shipped`: the local segments proven to be in the replica, to be removed."""
    try:
        return _maintain(appender, config, shipped)
    except StorageError:
        appender.maintenance_lock.check()  # the log was closed or removed meanwhile
        raise


def _maintain(appender: Appender, config: MaintenanceConfig, shipped: ShippedSegments | None) -> MaintenanceReport:
    watch = Stopwatch()
    report = MaintenanceReport(appender.directory.path)
    removed = retention.apply_retention(appender) if config.delete else None
    report.retention = removed if removed is not None and removed.removed_records else None
    if shipped is not None:  # first, so that no segment is rewritten in vain
        report.tiering = tiering.remove(appender, shipped) or None
    if _compaction_is_due(appender.segments, config):
        report.compaction = compaction.compact(
            appender, delete_retention_ms=config.delete_retention_ms, min_lag_ms=config.min_compaction_lag_ms
        )
    if config.merge_bytes:
        report.merge = merge_segments(appender, config.merge_bytes, least=_MIN_RUN) or None
    if config.recompress_after_ms is not None:
        report.recompression = recompress(appender, "zstd", older_than_ms=config.recompress_after_ms) or None
    if config.scrub_interval_ms is not None:
        report.scrub = scrub(appender, not_since_ms=config.scrub_interval_ms) or None
    report.duration_ms = watch.elapsed_ms
    return report


def is_due(segments: SegmentSet, config: MaintenanceConfig) -> bool:
    """Return True if a task is due. Takes no lock."""
    now = now_ms()
    state = load_state(segments.directory)
    sealed = segments.all[:-1]
    if config.delete and retention.is_due(segments):
        return True
    if _compaction_is_due(segments, config) or (config.merge_bytes and _small_runs(segments, config.merge_bytes)):
        return True
    if config.recompress_after_ms is not None:
        pending = next((each for each in sealed if each.next_offset > state.recompressed_offset and each.size), None)
        if pending is not None and times_of(segments, pending)[1] <= now - config.recompress_after_ms:
            return True
    interval = config.scrub_interval_ms
    return interval is not None and any(now - state.scrubbed.get(each.base_offset, 0) >= interval for each in sealed)


def _compaction_is_due(segments: SegmentSet, config: MaintenanceConfig) -> bool:
    return (
        config.compact
        and segments.remote is None
        and compaction.is_due(
            segments,
            min_dirty_ratio=config.min_dirty_ratio,
            delete_retention_ms=config.delete_retention_ms,
            min_lag_ms=config.min_compaction_lag_ms,
        )
    )


# --- merging


def merge_segments(appender: Appender, below_bytes: int | None = None, *, least: int = 2) -> MergeReport:
    """Merge neighbouring sealed segments smaller than `below_bytes` (default: `segment_bytes`)."""
    report = MergeReport()
    below = appender.config.segment_bytes if below_bytes is None else below_bytes
    with appender.maintenance_lock.hold():
        before = len(appender.segments.all)
        while _merge_runs(appender, below, least, report):
            pass  # the results of runs of maximum length can be merged again
        if report:
            report.segments_after = max(report.segments_before - (before - len(appender.segments.all)), 1)
    return report


def _merge_runs(appender: Appender, below: int, least: int, report: MergeReport) -> bool:
    """Make one pass; return True if a run had the maximum length, so that another pass may find more."""
    runs, again = _small_runs(appender.segments, below, least), False
    while runs:
        run = runs.pop(0)
        try:
            made = rewrite.merge_run(appender, run)
        except CorruptBatch as error:  # damaged segments are not changed
            runs[:0] = [part for part in _around(run, error.path) if len(part) >= least]
            continue
        except (SegmentsRemoved, TooLarge):
            continue
        if rewrite.swap(appender, made):
            report.segments_before += len(run)
            report.segments_after += 1
            report.bytes_copied += made.size
            again = again or len(run) == rewrite.max_segments()
    return again


def _around(run: Sequence[Segment], path: str | None) -> list[list[Segment]]:
    """Return the segments before and after the one at `path`."""
    at = next((number for number, each in enumerate(run) if each.path == path), len(run))
    return [list(run[:at]), list(run[at + 1 :])] if at < len(run) else []


def _small_runs(segments: SegmentSet, below: int, least: int = _MIN_RUN) -> list[list[Segment]]:
    """Return runs of small neighbours that fit into one segment and span no more time than `segment_age_ms`."""
    runs: list[list[Segment]] = [[]]
    most = rewrite.max_segments()
    for segment in segments.all[:-1]:
        if segment.size >= below:
            runs.append([])
        elif runs[-1] and (len(runs[-1]) == most or not _fits(segments, runs[-1], segment)):
            runs.append([segment])
        else:
            runs[-1].append(segment)
    return [run for run in runs if len(run) >= least]


def _fits(segments: SegmentSet, run: Sequence[Segment], segment: Segment) -> bool:
    age = segments.config.segment_age_ms
    total = sum(each.size for each in run) + segment.size
    span_ms = times_of(segments, segment)[1] - times_of(segments, run[0])[0]
    return total <= segments.config.segment_bytes and (age is None or span_ms <= age)


# --- recompression


def recompress(
    appender: Appender, compression: str = "zstd", *, level: int | None = None, older_than_ms: int = 0
) -> RecompressionReport:
    """Compress sealed segments whose newest record is older than `older_than_ms`, each once. Also joins small batches,
    which compresses better."""
    codec = codec_id(compression)
    if not codec:
        raise InvalidConfig("recompress needs a codec: gzip, snappy, lz4 or zstd")
    report = RecompressionReport()
    newest = now_ms() - older_than_ms
    with appender.maintenance_lock.hold():
        cuts, state = rewrite.begin(appender)
        for segment in appender.segments.all[:-1]:
            if segment.next_offset <= state.recompressed_offset or not segment.size:
                continue
            if older_than_ms and times_of(appender.segments, segment)[1] > newest:
                break
            _recompress_one(
                appender,
                segment,
                RewriteOptions(codec=codec, level=level, remembered=appender.producers.remembers),
                report,
            )
            with locked(appender):  # a truncation has either happened, or will see the new state
                if appender.truncations != cuts:
                    break
                state.note_recompressed(segment.next_offset)
                store_state(appender.directory, state)
    return report


def _recompress_one(appender: Appender, segment: Segment, wanted: RewriteOptions, report: RecompressionReport) -> None:
    try:
        made = rewrite.replace_run(appender, [segment], wanted)
    except (CorruptBatch, SegmentsRemoved, TooLarge):
        return  # leave the segment unchanged
    before = segment.size
    if made.size > before * _MAX_RECOMPRESSED_RATIO:
        rewrite.discard(appender, made)
    elif rewrite.swap(appender, made):
        report.segments += 1
        report.bytes_before += before
        report.bytes_after += made.size


# --- scrubbing


def scrub(appender: Appender, *, not_since_ms: int = 0) -> ScrubReport:
    """Verify every sealed segment that was not verified within `not_since_ms`; report the problems."""
    report = ScrubReport()
    now = now_ms()
    with appender.maintenance_lock.hold():
        cuts, state = rewrite.begin(appender)
        listed = appender.segments.all[:-1]
        known = {segment.base_offset: state.scrubbed.get(segment.base_offset, -1) for segment in listed}
        for segment in listed:
            if known[segment.base_offset] >= 0 and now - known[segment.base_offset] < not_since_ms:
                continue
            appender.maintenance_lock.check()
            found = VerifyReport()
            try:
                with detect_removal(appender, [segment]):
                    verify_segment(segment, found, appender.config.max_decompressed_bytes, threads=1)
            except SegmentsRemoved:
                continue
            if segment not in appender.segments.all:
                continue  # trimmed meanwhile
            report.segments += 1
            report.size_bytes += segment.size
            report.problems.extend(found.problems)
            count("scrubbed_bytes", segment.size)
            count("scrub_problems", len(found.problems))
            for problem in found.problems:
                count_damage(problem.path, problem.position)
            if found.ok:
                known[segment.base_offset] = now
        with locked(appender):  # as in `recompress`
            if report.segments and appender.truncations == cuts:
                state.note_scrubbed({base: when for base, when in known.items() if when >= 0})
                store_state(appender.directory, state)
    return report
