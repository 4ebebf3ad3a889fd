"""Replacement for `test/service.py` of kafka-python, which its source package does not contain.

With an existing broker (KAFKA_URI), the fixtures need only the names; nothing is started.
"""

from __future__ import annotations


class ExternalService:
    """A broker that is already running."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def open(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


class SpawnedService:
    """A broker that the fixtures would start."""

    def __init__(self, *arguments: object) -> None:
        raise RuntimeError("this run has a broker already, and starts no other")
