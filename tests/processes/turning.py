"""Processes that append to one topic, and one that has a log open meanwhile.

python -m tests.processes.turning append STORE TOPIC TAG COUNT    append COUNT batches of ten records, print each
python -m tests.processes.turning open DIRECTORY                  keep a log open until a line arrives
"""

from __future__ import annotations

import sys

from sawlog import Log
from sawlog.store.directory.store import DirectoryStore

from .launch import say

TURN = 10


def append(path: str, topic: str, tag: str, count: str) -> None:
    """Append, and print the acknowledged records."""
    with DirectoryStore.open(path, maintenance_interval_s=None) as store:
        orders = store[topic]
        say("ready")
        sys.stdin.readline()
        for number in range(int(count)):
            orders.append_many([b"%s %d %d" % (tag.encode(), number, each) for each in range(TURN)], partition=0)
            say(number)


def keep_open(path: str) -> None:
    """Keep a log open as its writer."""
    with Log.open(path) as log:
        log.append(b"theirs")
        say("ready")
        sys.stdin.readline()


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    {"append": append, "open": keep_open}[role](*arguments)
