"""Find a point in time and drop old records: offset_at, trim, and retention by age."""

from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory

from sawlog import Log, LogConfig

HOUR_MS = 3_600_000
start = datetime.now(UTC) - timedelta(hours=48)

# Whole segments expire. A new one begins when a record is more than six hours newer than the segment's first.
config = LogConfig(segment_age_ms=6 * HOUR_MS, retention_ms=12 * HOUR_MS)
with TemporaryDirectory() as directory, Log.open(directory, config) as log:
    for hour in range(48):
        log.append(b"reading of hour %d" % hour, timestamp=start + timedelta(hours=hour))
    print("readings:", len(log), "in", len(log.segments), "segments")

    moment = log.offset_at(start + timedelta(hours=11, minutes=30))
    print("first one after eleven and a half hours:", log.read(moment).value)

    print("trim drops:", log.trim(moment), "and the log starts at", log.lowest_offset)
    print("older than a day, dropped:", log.remove_expired(timedelta(days=1)), "now from", log.lowest_offset)
    report = log.apply_retention()  # as configured in LogConfig: twelve hours
    print("by retention_ms, dropped:", report.removed_records, "now from", report.lowest_offset)
    print("oldest reading kept:", log[log.lowest_offset].value, "- next offset still", log.next_offset)
