"""Workers of a queue that can be killed.

python -m tests.processes.queueing work STORE OPTIONS      print received and acknowledged messages (see `work`)
python -m tests.processes.queueing hold STORE OPTIONS      receive ten messages, acknowledge them at the end of input
python -m tests.processes.queueing put-back STORE          print "ready", return dead letters, print "done"
"""

from __future__ import annotations

import json
import sys

import sawlog
from sawlog.store.queues.redrive import redrive

from .launch import say


def work(path: str, options: str) -> None:
    """Print "got PARTITION OFFSET DELIVERIES" for each message, "acking PARTITION OFFSET" before it acknowledges it,
    and "acked PARTITION OFFSET" when that is durable, after each tenth. Ends when no message came for a while."""
    chosen = json.loads(options)
    idle_s = chosen.pop("idle_s", 2.0)
    with sawlog.open(path) as store, store.queue("orders", group="workers", **chosen) as queue:
        say("ready")
        while messages := queue.receive(10, timeout_s=idle_s):
            for message in messages:
                say(f"got {message.partition} {message.offset} {message.deliveries}")
            for message in messages:
                say(f"acking {message.partition} {message.offset}")
                queue.ack(message)
            queue.flush()
            for message in messages:
                say(f"acked {message.partition} {message.offset}")


def hold(path: str, options: str) -> None:
    """Print received messages as `work` does, then wait."""
    with sawlog.open(path) as store, store.queue("orders", group="workers", **json.loads(options)) as queue:
        say("ready")
        messages = queue.receive(10)
        for message in messages:
            say(f"got {message.partition} {message.offset} {message.deliveries}")
        sys.stdin.read()
        for message in messages:
            queue.ack(message)


def put_back(path: str) -> None:
    """Return dead letters to their topics, a few at a time."""
    with sawlog.open(path) as store:
        say("ready")
        while redrive(store, "orders-dead", limit=7):
            say("some")
        say("done")


if __name__ == "__main__":
    {"work": work, "hold": hold, "put-back": put_back}[sys.argv[1]](*sys.argv[2:])
