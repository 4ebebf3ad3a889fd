"""A store of topics, and a group that shares the work: two members, one of which is killed."""

import subprocess
import sys
from tempfile import TemporaryDirectory

import sawlog

#: A member in another process that reads all records, commits half of them and is killed.
MEMBER = """
import os, signal, sys, sawlog
with sawlog.open(sys.argv[1]) as store, store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
    for number, record in enumerate(consumer.drain(), 1):
        if number == 50:
            consumer.commit()
    print("first member: took", number, "and committed 50", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""

with TemporaryDirectory() as directory, sawlog.open(directory) as store:
    orders = store.create_topic("orders", partitions=4, retention_ms="7d")
    for number in range(100):
        orders.append(b"order %d" % number, key=b"customer %d" % (number % 10))
    partitions = {orders.append(b"one more", key=b"customer 7").partition for _ in range(3)}
    print("a key has its partition:", partitions, flush=True)  # before the lines of the other process

    subprocess.run([sys.executable, "-c", MEMBER, directory], check=False)

    with store.consumer("billing", ["orders"]) as consumer:
        print("second member: took the other", sum(1 for _ in consumer.drain()))
    group = store.groups.describe("billing")
    print("members now:", len(group.members), "lag:", sum(row.lag for row in group.rows))

    store.groups.seek("billing", {("orders", row.partition): "earliest" for row in group.rows})
    with store.consumer("billing", ["orders"]) as consumer:
        print("after rewinding:", sum(1 for _ in consumer.drain()))
