"""A job queue: one job is retried, one worker is killed while it holds a job, one job never succeeds."""

import subprocess
import sys
from tempfile import TemporaryDirectory

import sawlog

#: A worker process that takes a job and is killed.
WORKER = """
import os, signal, sys, sawlog
queue = sawlog.open(sys.argv[1]).queue("jobs", group="workers", worker="unlucky")
print("first worker: died with", queue.receive()[0].value, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

with TemporaryDirectory() as directory, sawlog.open(directory) as store:
    store.create_topic("jobs").append_many([b"resize", b"publish", b"impossible"])
    subprocess.run([sys.executable, "-c", WORKER, directory], check=False)

    with store.queue("jobs", group="workers", max_deliveries=3, prefetch=1) as queue:
        for message in queue.drain():
            print("second worker:", message.value, "delivery", message.deliveries)
            if message.value == b"impossible" or message.deliveries == 1:
                queue.release(message)  # with delay_s=30 it would be redelivered after half a minute
            else:
                queue.ack(message)

    for letter in store["jobs-dead"].scan():
        print("dead:", letter.value, dict(letter.headers)["sawlog.dead.reason"])
    print("put back:", sawlog.redrive(store, "jobs-dead")[0].letters)
    with store.queue("jobs", group="workers") as queue:
        for message in queue.drain():
            print("after the fix:", message.value, "delivery", message.deliveries)
            queue.ack(message)
