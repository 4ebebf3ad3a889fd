"""Access control lists as stored, and the broker's decisions based on them.

`StoredAcls` reads and changes the bindings of a store, which live in its registry as `registry/acls.json`:

```
"bindings": [{"resource": "topic", "name": "orders", "pattern": "literal", "principal": "User:ann", "host": "*",
              "operation": "read", "permission": "allow"}, ...]
```

A document that cannot be parsed is an error, like one whose checksum is wrong: a binding that was skipped could be one
that denies.

`Authorizer` decides by the bindings it read last:

```
no binding            everything is allowed
one binding or more   the bindings decide (see `AclIndex`); super users may do everything
unreadable bindings   everything is denied, except to super users
```

The broker calls `refresh` periodically, because other processes change the bindings. Changes made through this broker
take effect immediately. If the file cannot be read temporarily, for want of file descriptors for example, the previous
bindings stay in force.

An `Authorizer` belongs to the event loop's thread; reading and changing the document run in other threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from ...display import counted
from ...errors import CorruptData, CorruptFile, InvalidConfig, SawlogError
from ...store.base import Document, DocumentRegistry
from .acls import CLUSTER_NAME, AclIndex, Binding, ClientIdentity, Filter, Operation, Resource

_logger = logging.getLogger("sawlog.broker")

DOCUMENT: Final = "acls"
#: Maximum number of bindings. Every change rewrites all of them, and every broker rereads them.
BINDINGS_MAX: Final = 10_000
_FIELD = "bindings"


def bindings_of(fields: Mapping[str, Any]) -> frozenset[Binding]:
    """Return the bindings in a document, given by its fields. Raise `CorruptFile` if it cannot be parsed."""
    if not fields:
        return frozenset()
    stored = fields.get(_FIELD)
    if not isinstance(stored, list) or not all(isinstance(each, dict) for each in stored):
        raise CorruptFile(f"the document {DOCUMENT!r} has no list of bindings")
    try:
        return frozenset(Binding.of(each) for each in stored)
    except InvalidConfig as error:
        raise CorruptFile(f"a binding of the document {DOCUMENT!r} is not valid: {error}") from error


def sorted_bindings(bindings: Iterable[Binding]) -> list[Binding]:
    """Sort bindings in the order in which they are stored and listed: by resource, then by principal."""
    return sorted(
        bindings, key=attrgetter("resource", "name", "pattern", "principal", "host", "operation", "permission")
    )


class StoredAcls:
    """The bindings of a store, in its registry. Safe for threads and processes."""

    def __init__(self, registry: DocumentRegistry) -> None:
        self._registry = registry

    def read(self) -> Document:
        return self._registry.read(DOCUMENT)

    def find(self, wanted: Filter) -> list[Binding]:
        """Return the matching bindings, sorted."""
        return sorted_bindings(filter(wanted.matches, bindings_of(self.read().fields)))

    def add(self, bindings: Iterable[Binding]) -> None:
        """Add bindings. Existing ones are left alone."""
        new = frozenset(bindings)
        self._change(lambda existing: existing | new)

    def delete(self, filters: Sequence[Filter]) -> list[list[Binding]]:
        """Delete the bindings that match any filter; return the bindings each filter matched."""
        matched: list[list[Binding]] = []

        def remove(existing: frozenset[Binding]) -> frozenset[Binding]:
            matched[:] = [sorted_bindings(filter(each.matches, existing)) for each in filters]
            return existing.difference(*matched)

        self._change(remove)
        return matched

    def _change(self, edit: Callable[[frozenset[Binding]], frozenset[Binding]]) -> None:
        def change(fields: Mapping[str, Any]) -> Mapping[str, Any]:
            existing = bindings_of(fields)
            changed = edit(existing)
            if len(changed) > max(BINDINGS_MAX, len(existing)):
                raise InvalidConfig(f"at most {BINDINGS_MAX:,} rules can be stored, not {len(changed):,}; use prefixes")
            return {_FIELD: [each.fields for each in sorted_bindings(changed)]} if changed != existing else fields

        self._registry.change(DOCUMENT, change)


class Authorizer:
    """Access control of one broker."""

    def __init__(
        self,
        stored: StoredAcls,
        run: Callable[..., Awaitable[Any]],
        super_users: Iterable[str],
        *,
        allow_if_no_acl: bool = False,
    ) -> None:
        self._stored = stored
        self._run = run
        self._super_users = frozenset(super_users)
        self._allow_if_no_acl = allow_if_no_acl
        self._acls = AclIndex(())
        self._document: Document | None = None
        #: The newest version read.
        self._newest = 0
        #: Why everything is denied; None once the bindings could be read.
        self.unreadable: str | None = "the access control lists have not been read yet"
        self._changing = asyncio.Lock()
        #: True if there is no binding at all, so that everything is allowed. The broker checks this for each request.
        self.is_open = False

    # --- decisions

    def _has_all(self, client: ClientIdentity) -> bool:
        return self.is_open or client.principal in self._super_users

    def allows(
        self, client: ClientIdentity, operation: Operation, resource: Resource, name: str = CLUSTER_NAME
    ) -> bool:
        """Return whether a client may perform an operation on one resource."""
        return self._has_all(client) or self._acls.allows(client, operation, resource, name)

    def allows_some(self, client: ClientIdentity, operation: Operation, resource: Resource) -> bool:
        """Return whether a client may perform an operation on at least one resource of a type, existing or not."""
        return self._has_all(client) or self._acls.allows_some(client, operation, resource)

    # --- the bindings

    async def refresh(self) -> None:
        """Read the bindings again. Never raises: an unreadable document denies everything."""
        async with self._changing:
            try:
                self._apply(await self._run(self._stored.read))
            except CorruptData as error:
                self._deny_all(str(error))
            except (SawlogError, OSError) as error:
                _logger.error("cannot read the access control lists, keeping the previous ones: %s", error)

    def bindings(self, wanted: Filter) -> list[Binding]:
        """Return the matching bindings, sorted."""
        return sorted_bindings(filter(wanted.matches, self._acls.bindings))

    async def add(self, bindings: Iterable[Binding]) -> None:
        """Add bindings. They are stored and in force on return."""
        async with self._changing:
            await self._run(self._stored.add, tuple(bindings))
            self._apply(await self._run(self._stored.read))

    async def delete(self, filters: Sequence[Filter]) -> list[list[Binding]]:
        """Delete bindings, stored and in force on return. Return the bindings each filter matched."""
        async with self._changing:
            matched: list[list[Binding]] = await self._run(self._stored.delete, filters)
            self._apply(await self._run(self._stored.read))
            return matched

    def _apply(self, document: Document) -> None:
        """Put the bindings of a document into force."""
        if document == self._document:
            return
        if self._newest and not document.version:  # deleting the last rule leaves an empty document
            self._deny_all(
                "the access control lists are gone; restore the file, or restart the broker to run without it"
            )
            return
        self._newest = max(self._newest, document.version)
        bindings = bindings_of(document.fields)
        if bindings and self.is_open:
            _logger.warning(
                "access control is on: the first rules were added, and everything they do not allow is refused"
                " except to super users (%s)",
                ", ".join(sorted(self._super_users)) or "there are none",
            )
        elif bindings or self._document is not None:
            _logger.info("%s in force (version %s)", counted(len(bindings), "access control rule"), document.version)
        self._acls = AclIndex(bindings, allow_if_no_acl=self._allow_if_no_acl)
        self._document, self.unreadable = document, None
        self.is_open = not bindings

    def _deny_all(self, reason: str) -> None:
        """Deny everything until the bindings can be read again."""
        if reason != self.unreadable:
            _logger.error("every request is refused, except those of super users: %s", reason)
        self._acls, self._document, self.unreadable = AclIndex(()), None, reason
        self.is_open = False
