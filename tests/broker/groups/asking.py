"""A coordinator with its handlers, asked over the codec but without sockets."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace, TracebackType
from typing import Any

from sawlog.broker import wire
from sawlog.broker.config import BrokerConfig
from sawlog.broker.groups.coordinator import Coordinator
from sawlog.broker.groups.members import Sender
from sawlog.broker.groups.stored import NewOffset
from sawlog.broker.handlers import HANDLERS, Context, groups  # noqa: F401  groups registers its handlers
from sawlog.broker.security.authorizer import Authorizer, StoredAcls
from sawlog.broker.wire import ErrorCode, Key
from sawlog.store.base import TopicPartition
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.serving import Node

Body = dict[str, Any]
NO_MEMBER = Sender()


@dataclass(frozen=True)
class Address:
    host: str = "127.0.0.1"
    port: int = 9092


class OneNode:
    """Membership of a broker without peers, as far as groups use it."""

    def of(self, kind: str, key: str, advertised: Address) -> Node:
        return Node(7, advertised.host, advertised.port)


class Asked:
    """A broker as far as groups use it."""

    node_id = 7
    nodes = OneNode()

    def __init__(self, store: DirectoryStore, **settings: int) -> None:
        self.store = store
        self._threads = ThreadPoolExecutor(4)
        self._numbers = itertools.count()
        self._tasks: list[asyncio.Task[Body]] = []
        #: Offsets of the only transaction, by group.
        self.staged: dict[str, dict[TopicPartition, NewOffset]] = {}
        #: Calls of the thread pool.
        self.runs = 0
        loop = asyncio.get_running_loop()

        def run(call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
            self.runs += 1
            return loop.run_in_executor(self._threads, call, *args)

        self.config = BrokerConfig(**{"group_min_session_timeout_ms": 100, **settings})
        served = SimpleNamespace(
            store=store._serve(),
            loop=loop,
            config=self.config,
            run=run,
            server=SimpleNamespace(advertised="127.0.0.1:9092"),
            nodes=SimpleNamespace(coordinates=lambda kind, name: True),
            transactions=SimpleNamespace(pending=lambda group: frozenset(self.staged.get(group, ()))),
        )
        self.transactions = served.transactions
        self.groups = Coordinator(served)  # type: ignore[arg-type]
        self.authorizer = Authorizer(StoredAcls(store._registry), run, ())
        self.authorizer.is_open = True
        self.server = SimpleNamespace(advertised=Address())

    async def __aenter__(self) -> Asked:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.groups.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.groups.close()
        self._threads.shutdown()

    async def ask(self, key: Key, version: int | None = None, /, **body: Any) -> Body:
        """One request, there and back."""
        version = wire.BY_KEY[key].versions[-1] if version is None else version
        sent = b"".join(wire.encode_request(key, version, next(self._numbers), "tests", body))
        frame = memoryview(sent)[4:]
        header = wire.parse_header(frame)
        answer = HANDLERS[key](Context(self, header, "127.0.0.1"), wire.decode_request(header, frame))
        if asyncio.iscoroutine(answer):
            answer = await answer
        received = b"".join(map(bytes, wire.encode_response(header, answer)))
        return wire.decode_response(key, version, memoryview(received)[4:])[1]

    def begin(self, key: Key, version: int | None = None, /, **body: Any) -> asyncio.Task[Body]:
        """A request that may wait."""
        made = asyncio.ensure_future(self.ask(key, version, **body))
        self._tasks.append(made)
        return made

    def members(self, group: str = "billing") -> list[Any]:
        """The members of a group."""
        found = self.groups._groups.get(group)
        return [] if found is None else [*found.classic.members, *found.consumers.members]

    # --- a transaction

    async def stage(
        self, group: str, offsets: dict[TopicPartition, NewOffset], sender: Sender = NO_MEMBER
    ) -> dict[TopicPartition, ErrorCode]:
        """Add offsets to the transaction, as the transaction coordinator does."""
        async with self.groups.staging(group, offsets, sender) as codes:
            fit = {each: new for each, new in offsets.items() if codes[each] is ErrorCode.NONE}
            self.staged.setdefault(group, {}).update(fit)
        return codes

    def restart(self, group: str, offsets: dict[TopicPartition, NewOffset]) -> None:
        """Find a transaction that a broker left behind."""
        self.staged = {group: offsets}
        self.groups.hold(group)

    async def complete(self, *, commit: bool, mark: str = "1") -> None:
        """End the transaction."""
        if commit:
            await self.groups.commit_transaction(self.staged, ("payments", mark))
        ended, self.staged = self.staged, {}
        for group in ended:
            self.groups.release(group)

    # --- a consumer

    async def joined(self, group: str = "billing", *, session_ms: int = 10_000, **body: Any) -> Body:
        """A member that has joined, with its id."""
        request = {
            "group_id": group,
            "session_timeout_ms": session_ms,
            "rebalance_timeout_ms": 60_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\1\0\6orders\xff\xff\xff\xff"}],
            **body,
        }
        found = await self.ask(Key.JOIN_GROUP, **request)
        if found["error_code"] == wire.ErrorCode.MEMBER_ID_REQUIRED:
            found = await self.ask(Key.JOIN_GROUP, **{**request, "member_id": found["member_id"]})
        return found

    async def synced(self, joined: Body, group: str = "billing", assignment: bytes = b"all") -> Body:
        """The assignment of a member; the leader's is that."""
        return await self.ask(
            Key.SYNC_GROUP,
            group_id=group,
            generation_id=joined["generation_id"],
            member_id=joined["member_id"],
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": each["member_id"], "assignment": assignment} for each in joined["members"]],
        )

    async def commit(
        self,
        offsets: dict[tuple[str, int], Any],
        joined: Body | None = None,
        *,
        group: str = "billing",
        version: int = 9,
        **body: Any,
    ) -> dict[tuple[str, int], int]:
        """Commit; the error code of each partition. An offset may come with its metadata and leader epoch."""
        topics: dict[str, list[Body]] = {}
        for (topic, partition), given in offsets.items():
            offset, metadata, epoch = given if isinstance(given, tuple) else (given, None, -1)
            topics.setdefault(topic, []).append(
                {
                    "partition_index": partition,
                    "committed_offset": offset,
                    "committed_metadata": metadata,
                    "committed_leader_epoch": epoch,
                }
            )
        member = {} if joined is None else {"member_id": joined["member_id"]}
        if joined is not None:
            member["generation_id_or_member_epoch"] = joined["generation_id"]
        made = await self.ask(
            Key.OFFSET_COMMIT,
            version,
            group_id=group,
            topics=[{"name": name, "partitions": parts} for name, parts in topics.items()],
            **{**member, **body},
        )
        return {
            (topic["name"], each["partition_index"]): each["error_code"]
            for topic in made["topics"]
            for each in topic["partitions"]
        }

    async def committed(
        self, *shares: tuple[str, int], group: str = "billing", version: int = 7, **body: Any
    ) -> dict[tuple[str, int], tuple[int, str, int, int]]:
        """Offset, metadata, leader epoch and error code of these partitions; of all, if none is named."""
        topics = [{"name": topic, "partition_indexes": [number]} for topic, number in shares] or None
        if version >= 8:
            request: Body = {"groups": [{"group_id": group, "topics": topics}]}
        else:
            request = {"group_id": group, "topics": topics}
        made = await self.ask(Key.OFFSET_FETCH, version, **request, **body)
        found = made["groups"][0] if version >= 8 else made
        assert found["error_code"] == 0
        return {
            (topic["name"], each["partition_index"]): (
                each["committed_offset"],
                each["metadata"],
                each["committed_leader_epoch"],
                each["error_code"],
            )
            for topic in found["topics"]
            for each in topic["partitions"]
        }


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 60))

    return run


async def until(condition: Callable[[], Any]) -> None:
    """Wait until the condition is true."""
    deadline = asyncio.get_running_loop().time() + 30
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen"
        await asyncio.sleep(0.005)
