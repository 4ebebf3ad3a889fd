"""`RemoteAcls`: the access control rules of a broker, with the methods of `StoredAcls`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..security.acls import Binding, Filter, Operation, Pattern, Permission, Resource
from ..security.authorizer import sorted_bindings
from ..wire.apis import Key
from ..wire.schema import Body
from .cluster import Cluster
from .refusals import check


class RemoteAcls:
    """The rules, read and changed where the broker keeps them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def find(self, wanted: Filter) -> list[Binding]:
        """The bindings that match, in order."""
        answer = self._cluster.any().call(Key.DESCRIBE_ACLS, _asked(wanted))
        check(answer["error_code"], self._what("listing"), answer["error_message"])
        return sorted_bindings(_binding({**each, **entry}) for each in answer["resources"] for entry in each["acls"])

    def add(self, bindings: Iterable[Binding]) -> None:
        """Add bindings; those that are there already stay."""
        creations = [
            {
                "resource_type": each.resource,
                "resource_name": each.name,
                "resource_pattern_type": each.pattern,
                "principal": each.principal,
                "host": each.host,
                "operation": each.operation,
                "permission_type": each.permission,
            }
            for each in bindings
        ]
        answer = self._cluster.controller().call(Key.CREATE_ACLS, {"creations": creations})
        for each in answer["results"]:
            check(each["error_code"], self._what("adding"), each["error_message"])

    def delete(self, filters: Sequence[Filter]) -> list[list[Binding]]:
        """Delete what matches one of the filters; what each of them matched."""
        answer = self._cluster.controller().call(Key.DELETE_ACLS, {"filters": list(map(_asked, filters))})
        for each in answer["filter_results"]:
            check(each["error_code"], self._what("deleting"), each["error_message"])
        return [sorted_bindings(map(_binding, each["matching_acls"])) for each in answer["filter_results"]]

    def _what(self, doing: str) -> str:
        return f"{doing} access control rules at {self._cluster.name}"


def _asked(wanted: Filter) -> Body:
    return {
        "resource_type_filter": wanted.resource,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.pattern,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def _binding(given: Body) -> Binding:
    return Binding(
        resource=Resource(given["resource_type"]),
        name=given["resource_name"],
        principal=given["principal"],
        operation=Operation(given["operation"]),
        permission=Permission(given["permission_type"]),
        pattern=Pattern(given["pattern_type"]),
        host=given["host"],
    )
