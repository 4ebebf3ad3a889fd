"""The bindings of a store, in its registry: `registry/acls.json`.

```
"bindings": [{"resource": "topic", "name": "orders", "pattern": "literal", "principal": "User:ann", "host": "*",
              "operation": "read", "permission": "allow"}, ...]
```

A document that cannot be understood is an error, like one whose checksum is wrong: a rule that was skipped could be one
that denies.

`Authority`: what the clients of a broker may do, by the bindings of its store as last read.

```
no binding            everything is allowed
one binding or more   what the bindings allow (decisions.py), and everything to super users; with `open_without` also
                      what no binding concerns
unreadable bindings   nothing is allowed, except to super users
```

Bindings are looked at again every `refresh_s`, because other processes change them; what this broker changes itself
holds at once. If the file cannot be read for a moment (no descriptor is free), the last ones that were read hold.

It lives in the event loop's thread; reading and changing run in other threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from ...display import counted
from ...errors import CorruptData, CorruptFile, InvalidConfig, SawlogError
from ...store.base import DocumentRegistry
from ...store.directory.documents import Document
from .acls import CLUSTER_NAME, OPERATIONS, Binding, Filter, Operation, Resource, Rules, Who

DOCUMENT: Final = "acls"
#: Every change stores all of them, and every broker reads them again.
BINDINGS_MAX: Final = 10_000
_FIELD = "bindings"


def bindings_of(document: Document) -> frozenset[Binding]:
    """The bindings in a document; `CorruptFile` if it is not one of them."""
    return _read(document.fields)


def _read(fields: Mapping[str, Any]) -> frozenset[Binding]:
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
    """In the order in which they are stored and listed: by resource, then by principal."""
    return sorted(
        bindings,
        key=lambda each: (
            each.resource,
            each.name,
            each.pattern,
            each.principal,
            each.host,
            each.operation,
            each.permission,
        ),
    )


class StoredAcls:
    """The bindings of a store, read and changed where they are stored. Safe for threads and processes."""

    def __init__(self, registry: DocumentRegistry) -> None:
        self._registry = registry

    def read(self) -> Document:
        """The document as it is now."""
        return self._registry.read(DOCUMENT)

    def find(self, wanted: Filter) -> list[Binding]:
        """The bindings that match, in order."""
        return sorted_bindings(filter(wanted.matches, bindings_of(self.read())))

    def add(self, bindings: Iterable[Binding]) -> None:
        """Add bindings; those that are there already stay."""
        new = frozenset(bindings)
        self._change(lambda there: there | new)

    def delete(self, filters: Sequence[Filter]) -> list[list[Binding]]:
        """Delete what matches one of the filters; what each of them matched."""
        matched: list[list[Binding]] = []

        def remove(there: frozenset[Binding]) -> frozenset[Binding]:
            matched[:] = [sorted_bindings(filter(each.matches, there)) for each in filters]
            return there.difference(*matched)

        self._change(remove)
        return matched

    def _change(self, edit: Callable[[frozenset[Binding]], frozenset[Binding]]) -> None:
        def change(fields: Mapping[str, Any]) -> Mapping[str, Any]:
            there = _read(fields)
            made = edit(there)
            if len(made) > max(BINDINGS_MAX, len(there)):
                raise InvalidConfig(f"at most {BINDINGS_MAX:,} rules can be stored, not {len(made):,}; use prefixes")
            return {_FIELD: [each.fields for each in sorted_bindings(made)]} if made != there else fields

        self._registry.change(DOCUMENT, change)


_logger = logging.getLogger("sawlog.broker")

#: IPv4 addresses as a listener for both families shows them.
_MAPPED = "::ffff:"


class Runner(Protocol):
    """Calls something in a thread: `Broker.run`."""

    def __call__(self, call: Callable[..., Any], /, *args: Any) -> Awaitable[Any]:
        """Return what the call returns."""


class Sender(Protocol):
    """Whoever sent a request: the `Context` of a handler."""

    @property
    def principal(self) -> str: ...
    @property
    def client_host(self) -> str: ...


def who(context: Sender) -> Who:
    """Whoever sent a request, as rules name them."""
    return Who(context.principal, context.client_host.removeprefix(_MAPPED))


class Authority:
    """Decides, for one broker."""

    def __init__(
        self, stored: StoredAcls, run: Runner, super_users: Iterable[str], *, open_without: bool = False
    ) -> None:
        self._stored = stored
        self._run = run
        self._super_users = frozenset(super_users)
        self._open_without = open_without
        self._rules = Rules(())
        self._document: Document | None = None
        #: The newest version that was read.
        self._newest = 0
        #: Why nothing is allowed; None unless the bindings cannot be read.
        self._trouble: str | None = "the access control lists were not read yet"
        self._turn = asyncio.Lock()
        #: Whether everybody may do everything, because there is no binding: what a broker tests for each request.
        self.is_open = False

    # --- decisions

    def trusts(self, principal: str) -> bool:
        """Whether this is a super user."""
        return principal in self._super_users

    def allows(self, who: Who, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> bool:
        """Whether somebody may do something with one resource."""
        return self.is_open or self.trusts(who.principal) or self._rules.allows(who, operation, resource, name)

    def allows_some(self, who: Who, operation: Operation, resource: Resource) -> bool:
        """Whether there can be a resource of the type with which somebody may do something."""
        return self.is_open or self.trusts(who.principal) or self._rules.allows_some(who, operation, resource)

    def operations(self, context: Sender, resource: Resource, name: str = CLUSTER_NAME) -> int:
        """All that a client may do with a resource, as the bits that Kafka's responses have for it."""
        asking = who(context)
        return sum(1 << each for each in OPERATIONS[resource] if self.allows(asking, each, resource, name))

    def sees(self, context: Sender) -> Callable[[str], bool]:
        """Which topics a client may know of, whenever that is asked."""
        asking = who(context)
        return lambda name: self.allows(asking, Operation.DESCRIBE, Resource.TOPIC, name)

    # --- the bindings

    async def refresh(self) -> None:
        """Look at the bindings again. Nothing is raised: an error decides."""
        async with self._turn:
            try:
                self._take(await self._run(self._stored.read))
            except CorruptData as error:
                self._refuse(str(error))
            except (SawlogError, OSError) as error:
                _logger.error("the access control lists cannot be read, the last ones hold: %s", error)

    def bindings(self, wanted: Filter) -> list[Binding]:
        """Those that match, in order."""
        return sorted_bindings(filter(wanted.matches, self._rules.bindings))

    @property
    def trouble(self) -> str | None:
        """Why nothing is allowed; None if the bindings could be read."""
        return self._trouble

    async def add(self, bindings: Iterable[Binding]) -> None:
        """Add bindings: stored and in force when it returns."""
        async with self._turn:
            await self._run(self._stored.add, tuple(bindings))
            self._take(await self._run(self._stored.read))

    async def delete(self, filters: Sequence[Filter]) -> list[list[Binding]]:
        """Delete bindings, likewise; what each filter matched."""
        async with self._turn:
            matched: list[list[Binding]] = await self._run(self._stored.delete, filters)
            self._take(await self._run(self._stored.read))
            return matched

    def _take(self, document: Document) -> None:
        """These hold from now on."""
        if document == self._document:
            return
        if self._newest and not document.version:  # deleting the last rule leaves a document, which has none
            self._refuse("the access control lists are gone; put the file back, or start the broker again without it")
            return
        self._newest = max(self._newest, document.version)
        bindings = bindings_of(document)
        if bindings and self.is_open:
            _logger.warning(
                "access control is on: the first rules were added, and everything that they do not allow is refused"
                " except to super users (%s)",
                ", ".join(sorted(self._super_users)) or "there are none",
            )
        elif bindings or self._document is not None:
            _logger.info("%s hold (version %s)", counted(len(bindings), "access control rule"), document.version)
        self._rules = Rules(bindings, open_without=self._open_without)
        self._document, self._trouble = document, None
        self.is_open = not bindings

    def _refuse(self, trouble: str) -> None:
        """Nothing is allowed until the bindings can be read again."""
        if trouble != self._trouble:
            _logger.error("every request is refused, except those of super users: %s", trouble)
        self._rules, self._document, self._trouble = Rules(()), None, trouble
        self.is_open = False
