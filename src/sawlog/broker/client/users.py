"""`RemoteUsers`: the users of a broker, with the methods of `Users`.

What is sent is a salted password, which is as good as the password: use TLS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import UserNotFound
from ..security.mechanisms import BY_NUMBER, MECHANISMS, Salted
from ..wire.apis import Key
from ..wire.errors import ErrorCode
from .cluster import Cluster
from .refusals import check


class RemoteUsers:
    """The users of a broker. `RemoteStore.users` returns it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def list(self) -> dict[str, dict[str, int]]:
        """The names of all users, sorted, with the iterations of each mechanism."""
        return dict(sorted(self._described(None).items()))

    def put(self, name: str, salted: Sequence[Salted]) -> None:
        """Add a user, or replace its passwords."""
        given = {each.mechanism.name for each in salted}
        others = [each for each in self._described([name]).get(name, {}) if each not in given]
        self._alter(
            name,
            deletions=[{"name": name, "mechanism": MECHANISMS[each].number} for each in others],
            upsertions=[
                {
                    "name": name,
                    "mechanism": each.mechanism.number,
                    "iterations": each.iterations,
                    "salt": each.salt,
                    "salted_password": each.password,
                }
                for each in salted
            ],
        )

    def delete(self, name: str) -> None:
        """Delete a user. Connections that it has go on."""
        found = self._described([name]).get(name)
        if not found:
            raise UserNotFound(f"no user {name!r}")
        self._alter(
            name, deletions=[{"name": name, "mechanism": MECHANISMS[each].number} for each in found], upsertions=[]
        )

    def _described(self, names: Sequence[str] | None) -> dict[str, dict[str, int]]:
        asked = None if names is None else [{"name": name} for name in names]
        answer = self._cluster.controller().call(Key.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": asked})
        check(answer["error_code"], f"the users at {self._cluster.name}", answer["error_message"])
        found = {}
        for each in answer["results"]:
            if each["error_code"] == ErrorCode.RESOURCE_NOT_FOUND:
                continue
            check(each["error_code"], f"the user {each['user']!r}", each["error_message"])
            known = [info for info in each["credential_infos"] if info["mechanism"] in BY_NUMBER]
            found[each["user"]] = {BY_NUMBER[info["mechanism"]].name: info["iterations"] for info in known}
        return found

    def _alter(self, name: str, **changes: Any) -> None:
        answer = self._cluster.controller().call(Key.ALTER_USER_SCRAM_CREDENTIALS, changes)
        (result,) = answer["results"]
        check(result["error_code"], f"the user {name!r}", result["error_message"])
