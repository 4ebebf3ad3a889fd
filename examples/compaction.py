"""A topic as a table: the latest value of each key, and deleted keys."""

from tempfile import TemporaryDirectory

import sawlog

with TemporaryDirectory() as directory, sawlog.open(directory) as store:
    prices = store.create_topic("prices", cleanup_policy="compact", segment_bytes=4096, min_cleanable_dirty_ratio=0.1)
    for day in range(100):
        for item in (b"apples", b"pears", b"plums"):
            prices.append(b"%d cents" % (100 + day), key=item)
    prices.append(None, key=b"plums")  # a tombstone: plums are no longer sold
    log = prices.partition(0)
    assert isinstance(log, sawlog.Log)  # a partition in a directory
    log.seal()  # the active segment is not compacted

    [report] = store.maintain()  # also runs in the background
    if report.compaction is not None:
        print(report.compaction.records_removed, "records removed;", report.compaction.segments_after, "segment left")
    for record in prices.scan():
        print(record.offset, record.key, record.value)
    try:
        log.read(0)
    except sawlog.errors.RecordRemoved as error:
        print(error)
