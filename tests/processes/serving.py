"""A process that serves a group as a broker does, until its input ends.

python -m tests.processes.serving serve STORE GROUP ADDRESS     says "ready" when it serves the group
"""

from __future__ import annotations

import sys

from sawlog.topics.store import Store

from .launch import say


def serve(store: str, group: str, address: str) -> None:
    with Store.open(store, upkeep_interval_s=None) as opened:
        served = opened.groups.claim(group, address).take()
        say("ready")
        sys.stdin.read()
        served.release()


if __name__ == "__main__":
    {"serve": serve}[sys.argv[1]](*sys.argv[2:])
