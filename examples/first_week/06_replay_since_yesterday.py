"""Replay everything since yesterday, with a new group and with the existing one."""

from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory

import sawlog

now = datetime.now(UTC)
yesterday = now - timedelta(days=1)

with TemporaryDirectory() as directory, sawlog.open(directory) as store:
    clicks = store.create_topic("clicks", partitions=2)
    for hours in range(72, 0, -1):  # three days, one click per hour
        clicks.append(b"%d hours ago" % hours, key=b"user %d" % hours, timestamp=now - timedelta(hours=hours))
    with store.consumer("billing", "clicks") as consumer:
        print("billing has read:", sum(1 for _ in consumer.drain()))

    with store.consumer("audit", "clicks", start=yesterday) as consumer:  # a new group starts where it is told to
        print("audit reads since yesterday:", sum(1 for _ in consumer.drain()))

    places = {("clicks", partition): yesterday for partition in range(clicks.partitions)}
    print("billing goes back to offsets:", store.groups.seek("billing", places))
    with store.consumer("billing", "clicks") as consumer:
        print("billing reads again:", sum(1 for _ in consumer.drain()), "- lag:", sum(consumer.lag().values()))

    since = clicks.offset_at(yesterday)  # without a group
    oldest = min(clicks.scan(start=since), key=lambda record: record.timestamp)
    print("the oldest of them:", oldest.value)
