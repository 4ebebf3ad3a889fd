"""`Where`: a store, as a job knows it: its path or address, and how to connect to it.

It is sent to the tasks, so it can be pickled. Options about the connection may contain credentials, so they are not in
its text. What is not given comes from the environment of each process: that of the driver, and that of the workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..addresses import is_address
from ..objects.connecting import is_option


@dataclass(frozen=True, slots=True)
class Where:
    """Where a store is."""

    path: str
    #: Options for object storage, by name.
    storage: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return self.path

    @property
    def options(self) -> dict[str, str] | None:
        """For `open_store`; None if there are none, as for every directory."""
        return dict(self.storage) or None


def divided(options: Mapping[str, str]) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """The options of a job, and those about the connection, which only an address has."""
    path = next((str(value) for name, value in options.items() if name.lower() == "path"), "")
    ours, storage = dict(options), {}
    if is_address(path):
        storage = {name: str(value) for name, value in options.items() if is_option(name.lower())}
        ours = {name: value for name, value in options.items() if name not in storage}
    return ours, tuple(sorted((name.lower(), value) for name, value in storage.items()))
